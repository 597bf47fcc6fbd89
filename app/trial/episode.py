"""One episode of an environment with a person in the model's place."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grpo_engine.config.settings import RunConfig
from grpo_engine.environments.client import EnvironmentClient, Job, specs_of
from grpo_engine.errors import ConfigError, DataError
from grpo_engine.rollouts.dialogue import EnvironmentReply
from grpo_engine.rollouts.noise import group_seed
from grpo_engine.rollouts.prompts import reward_prompt
from grpo_engine.tasks.base import BUILT_IN, Prompt, Task, draw, load_task

STEP = 1  # the episode is that of the first answer of a run's first step


Line = tuple[Literal["prompt", "hint", "reply", "error"], str]


@dataclass(frozen=True, slots=True)
class Update:
    """What an episode tells the person, and whether it is over or has even failed."""

    lines: tuple[Line, ...]
    over: bool = False
    failed: bool = False


def is_environment(name: str) -> bool:
    """Whether a name is that of an environment and not of a task."""
    family, colon, _ = name.partition(":")
    return bool(colon) and family not in BUILT_IN and not Path(name).expanduser().exists()


class Episode:
    """Begins an episode, gives it answers, and says what the environment told at its end."""

    def __init__(self, config: RunConfig, folder: Path, row: Mapping[str, Any] | None = None):
        """Without a row, the episode is that of the task's first problem."""
        prompt: Prompt = ""
        key, name = "episode", config.task.name
        if is_environment(name):
            settings = config.task.model_copy(update={"environment": name})
            config, task = config.model_copy(update={"task": settings}), Task(name=name, train=())
        else:
            task = load_task(config.task)
            example = draw(task, config.seed, 0, 1)[0]
            prompt, key = example.prompt, example.key
            row = {"prompt": reward_prompt(prompt), **example.columns} if row is None else row
        _, names = specs_of(config, task)
        if not names:
            raise ConfigError(
                f"task {config.task.name} has no environment and no tools; set task.environment or "
                "task.tools",
                "task.environment",
                "task.tools",
            )
        self.row = dict(row or {})
        self._turns, self._max_turns = 0, config.task.max_turns
        self._prompt = prompt
        self._system = task.system_prompt
        self._name = str(self.row.get("environment", "")) if "" not in names else ""
        if self._name not in names:
            raise DataError(
                f"the row's `environment` is {self._name!r}, not one of {', '.join(names)}"
            )
        self._seed = group_seed(seed=config.seed, step=STEP, prompt=key, attempt=0)
        self.client = EnvironmentClient(config, task, folder)

    def begin(self) -> Update:
        """The prompt, what the environment adds, and its tools; needs the open client."""
        job = Job(environment=self._name, row=self.row, seed=self._seed, index=0)
        (opening,) = self.client.begin([job])
        prompt = opening.after(self._prompt)
        system = [{"role": "system", "content": self._system}] if self._system else []
        user = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        lines: list[Line] = [
            ("prompt", f"{message.get('role')}: {message.get('content')}")
            for message in (*system, *user)
        ]
        schemas = (tool["function"] for tool in self.client.described[self._name].tools)
        tools = [
            f"{schema['name']}({', '.join(schema.get('parameters', {}).get('properties', {}))})"
            for schema in schemas
        ]
        if tools:
            call = '<tool_call>{"name": …, "arguments": {…}}</tool_call>'
            lines.append(("hint", f"tools: {', '.join(tools)}; call one by {call}"))
        if error := self.client.last(0).error:
            return Update((*lines, ("error", error)), over=True, failed=True)
        return Update((*lines, self._turn()))

    def answer(self, text: str) -> Update:
        """Give an answer and wait for the reply."""
        self.client.ask(0, text)
        while not (replies := self.client.replies(0.1)):
            pass
        reply = replies[0][1]
        self._turns += 1
        if reply.error:
            return Update((("error", f"the environment failed: {reply.error}"),), True, True)
        lines = tuple(reply_lines(reply))
        if reply.done or self._turns >= self._max_turns:
            return Update((*lines, *(("reply", text) for text in self.end())), over=True)
        return Update((*lines, self._turn()))

    def _turn(self) -> Line:
        return "hint", f"turn {self._turns + 1} of {self._max_turns}, your answer:"

    def end(self) -> Iterator[str]:
        """What the environment says at its end."""
        (outcome,) = self.client.finish([False])
        if outcome.reward is not None:
            yield f"reward at the end: {outcome.reward:g}"
        if outcome.state:
            yield f"attributes: {json.dumps(dict(outcome.state), ensure_ascii=False)}"


def reply_lines(reply: EnvironmentReply) -> Iterator[Line]:
    """A reply for people: its text, its reward, what it told, and how long it took."""
    if reply.text:
        yield "reply", reply.text
    parts = [f"reward {reply.reward:g}"] if reply.reward is not None else []
    parts += [f"{name} {value}" for name, value in reply.info.items()]
    parts += ["the episode is over"] if reply.done else []
    yield "hint", f"({', '.join([*parts, f'{reply.ms:.0f} ms'])})"
