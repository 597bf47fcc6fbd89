"""One episode of an environment with a person in the model's place."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from grpo_engine import consent
from grpo_engine.config.settings import RunConfig
from grpo_engine.environments.client import EnvironmentClient, Episode, choose, specs_of
from grpo_engine.errors import ConfigError
from grpo_engine.rollouts.dialogue import EnvironmentReply
from grpo_engine.rollouts.noise import group_seed
from grpo_engine.rollouts.prompts import conversation, reward_prompt
from grpo_engine.tasks.base import (
    BUILT_IN,
    Example,
    Prompt,
    Task,
    draw,
    load_task,
    user_message,
)

STEP = 1  # The episode is the first one of a run's first step.

Line = tuple[Literal["prompt", "hint", "reply", "error"], str]


def episode(
    config: RunConfig, completions: Iterator[str], row: Mapping[str, Any] | None = None
) -> Iterator[Line]:
    """Play an episode with these completions; yields its lines, an error last.

    Without a row, the episode is that of the task's first problem.
    """
    example, name = Example(key="episode", prompt=""), config.task.name
    family, colon, _ = name.partition(":")
    if colon and family not in BUILT_IN and not Path(name).expanduser().exists():
        settings = config.task.model_copy(update={"environment": name})
        config, task = config.model_copy(update={"task": settings}), Task(name=name, train=())
    else:
        task = load_task(config.task)
        (example,) = draw(task, config.seed, 0, 1)
        row = row or {"prompt": reward_prompt(example.prompt), **example.columns}
    row = dict(row or {})
    _, names = specs_of(config, task)
    if not names:
        raise ConfigError(
            f"task {config.task.name} has no environment and no tools; set task.environment or "
            "task.tools",
            "task.environment",
            "task.tools",
        )
    environment = choose(names, row, "the row")
    seed = group_seed(seed=config.seed, step=STEP, prompt=example.key, attempt=0)
    foreign = consent.is_foreign(config)
    with EnvironmentClient(config, task, None, foreign=foreign) as client:
        played = Episode(environment=environment, row=row, seed=seed, index=0)
        client.begin([played])
        yield from _messages(conversation(task, example, played.opening))
        yield from _tools(client.specs[environment].tools)
        if error := played.last.error:
            yield "error", error
            return
        turns = config.task.max_turns
        for turn in range(1, turns + 1):
            yield "hint", f"turn {turn} of {turns}, your answer:"
            completion = next(completions, None)
            if completion is None:
                break
            client.submit(0, completion)
            while not (replies := client.replies(0.1)):
                pass
            reply = replies[0][1]
            if reply.error:
                yield "error", f"the environment failed: {reply.error}"
                return
            yield from reply_lines(reply)
            if reply.done:
                break
        (outcome,) = client.finish([False])
        if outcome.reward is not None:
            yield "reply", f"reward at the end: {outcome.reward:g}"
        if outcome.state:
            state = json.dumps(dict(outcome.state), ensure_ascii=False)
            yield "reply", f"attributes: {state}"


def _messages(prompt: Prompt) -> Iterator[Line]:
    """The messages that the model would read."""
    for message in user_message(prompt) if isinstance(prompt, str) else prompt:
        yield "prompt", f"{message.get('role')}: {message.get('content')}"


def _tools(tools: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    """The tools with their parameters, and how to call one."""
    schemas = [tool["function"] for tool in tools]
    names = [
        f"{schema['name']}({', '.join(schema.get('parameters', {}).get('properties', {}))})"
        for schema in schemas
    ]
    if names:
        call = '<tool_call>{"name": …, "arguments": {…}}</tool_call>'
        yield "hint", f"tools: {', '.join(names)}; call one by {call}"


def reply_lines(reply: EnvironmentReply) -> Iterator[Line]:
    """A reply for people: its text, reward and details, and how long it took."""
    if reply.text:
        yield "reply", reply.text
    parts = [f"reward {reply.reward:g}"] if reply.reward is not None else []
    parts += [f"{name} {value}" for name, value in reply.info.items()]
    parts += ["the episode is over"] if reply.done else []
    yield "hint", f"({', '.join([*parts, f'{reply.ms:.0f} ms'])})"
