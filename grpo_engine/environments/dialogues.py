"""The environments of a run: which there are, what prompts offer, how episodes begin and end."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo_engine.config.settings import RunConfig
from grpo_engine.environments.client import EnvironmentClient, Job
from grpo_engine.errors import DataError
from grpo_engine.events import Span
from grpo_engine.rollouts.dialogue import Dialogues
from grpo_engine.rollouts.noise import group_seed, occurrences
from grpo_engine.rollouts.prompts import (
    NO_OPENING,
    Opening,
    PromptRenderer,
    RenderedPrompt,
    conversation,
    location,
    reward_prompt,
)
from grpo_engine.rollouts.replies import ReplyTokens, reply_tokens, with_calls
from grpo_engine.rollouts.types import Rollout
from grpo_engine.tasks.base import Example, Task

CHOOSES = "environment"  # the column that names a row's environment, where there are several


@dataclass(slots=True, kw_only=True)
class Environments:
    """The client of a run's environments, and what is rendered for them."""

    client: EnvironmentClient
    renderers: Mapping[str, PromptRenderer]  # by the name that a row chooses
    tokens: ReplyTokens
    config: RunConfig

    def render(self, example: Example, opening: Opening = NO_OPENING) -> RenderedPrompt:
        return self.renderers[self.environment_of(example)](example, opening)

    def environment_of(self, example: Example) -> str:
        """The name of the environment that a row chooses; empty if there is only one."""
        if "" in self.renderers:
            return ""
        name = str(example.columns.get(CHOOSES, ""))
        if name not in self.renderers:
            raise DataError(
                f"{location(example)}: its `environment` is {name!r}; task.environment has "
                f"{', '.join(self.renderers)}"
            )
        return name

    def begin(
        self, examples: Sequence[Example], indices: Sequence[int], *, rows: int, step: int,
        attempt: int,
    ) -> list[Opening]:  # fmt: skip
        """Begin `rows` episodes for each of the examples at these indices; return their openings.

        Answers are compared with each other, so an environment that begins differently from that
        of the group's first answer fails.
        """
        occurrence = occurrences([example.key for example in examples])
        jobs = []
        for index in indices:
            example = examples[index]
            seed = group_seed(
                seed=self.config.seed, step=step, prompt=example.key, attempt=attempt,
                occurrence=occurrence[index],
            )  # fmt: skip
            name = self.environment_of(example)
            columns = {key: v for key, v in example.columns.items() if not name or key != CHOOSES}
            row = {"prompt": reward_prompt(example.prompt), **columns}
            jobs += [Job(environment=name, row=row, seed=seed, index=i) for i in range(rows)]
        openings = self.client.begin(jobs)
        firsts = []
        for start in range(0, len(jobs), rows):
            slots = range(start, start + rows)
            started = [slot for slot in slots if self.client.failure(slot) is None]
            first = openings[started[0]] if started else NO_OPENING
            for slot in started:
                if openings[slot] != first:
                    self.client.fail(
                        slot, "reset: it begins differently from that of another answer to the "
                        "same prompt; the row and the seed must decide it",
                    )  # fmt: skip
            firsts.append(first)
        return firsts

    def dialogues(self) -> Dialogues:
        """What sampling needs for the episodes that have begun."""
        return Dialogues(
            episodes=self.client, tokens=self.tokens, end_token=self.tokens.end_token,
            max_turns=self.config.task.max_turns, max_context=self.config.rollout.max_context,
            read=self.read if self.tokens.reads_calls else None,
        )  # fmt: skip

    def read(self, index: int, before: Sequence[int], ids: Sequence[int], answer: str) -> str:
        """An answer whose tool calls are rewritten from the model's own form."""
        tools = self.client.tools(index)
        tokenizer = self.tokens.render.tokenizer
        return with_calls(tokenizer, before, ids, answer, tools) if tools else answer

    def finish(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """The rollouts with what their environments say at the end."""
        outcomes = self.client.finish([rollout.failed for rollout in rollouts])
        results = []
        for index, (rollout, outcome) in enumerate(zip(rollouts, outcomes, strict=True)):
            failure = None if rollout.failed else self.client.failure(index)
            if failure is not None:
                last = Span(
                    start=len(rollout.ids), length=0, kind="environment", name=failure.name,
                    turn=rollout.spans[-1].turn, ms=failure.ms, error=failure.error,
                )  # fmt: skip
                spans = (*rollout.spans, last)
                rollout = replace(rollout, spans=spans, finish="environment_error")
            results.append(replace(rollout, environment=outcome))
        return results


def specs_of(config: RunConfig, task: Task) -> tuple[tuple[str, ...], dict[str, str]]:
    """Tools and environments by the name that a row chooses; from the settings, else the task's."""
    settings = config.task
    if not settings.tools and not settings.environment:
        tools, environment = task.tools, task.environment
        return tools, {"": environment} if tools or environment else {}
    return settings.tools, dict(settings.environments)


def open_environments(
    config: RunConfig,
    task: Task,
    folder: Path,
    render: PromptRenderer,
    ends: frozenset[int],
    enter: Callable[[EnvironmentClient], EnvironmentClient],
    interrupted: Callable[[], bool],
    objects: Mapping[str, Any] | None = None,
) -> Environments | None:
    """Start the environments of a run, if it has any; `enter` sees to it that they end.

    `objects` are those that only this process has.
    """
    tools, names = specs_of(config, task)
    if not names:
        return None
    limit = config.rewards.time_limit
    client = enter(
        EnvironmentClient(
            tools, names, folder, limit, interrupted, objects,
            interpreter=config.task.interpreter, options=config.task.options,
        )
    )  # fmt: skip
    schemas = {
        tool["function"]["name"]: tool
        for described in client.described.values()
        for tool in described.tools
    }
    combined = render.with_tools(list(schemas.values()))
    renderers = {
        name: replace(combined, tools=tuple(described.tools)) if described.tools else render
        for name, described in client.described.items()
    }
    is_plain = render.is_plain or bool(
        len(task.train) and isinstance(conversation(task, task.train[0]), str)
    )
    tokens = reply_tokens(combined, ends, is_plain=is_plain, uses_tools=bool(schemas))
    return Environments(client=client, renderers=renderers, tokens=tokens, config=config)
