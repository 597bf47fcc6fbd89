"""The environments of a run: which there are, what prompts offer, how episodes begin and end."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo_engine.config.settings import RunConfig
from grpo_engine.environments.client import (
    CHOOSES,
    EnvironmentClient,
    Episode,
    choose,
    specs_of,
)
from grpo_engine.errors import DataError
from grpo_engine.events import Span
from grpo_engine.rollouts.dialogue import Dialogues, EnvironmentReply
from grpo_engine.rollouts.noise import group_seed, occurrences
from grpo_engine.rollouts.prompts import (
    NO_OPENING,
    Opening,
    PromptRenderer,
    RenderedPrompt,
    conversation,
    location,
    reward_prompt,
    without_tools,
)
from grpo_engine.rollouts.replies import ReplyTokens, reply_tokens
from grpo_engine.rollouts.types import Trajectory
from grpo_engine.tasks.base import Example, Message, Task


@dataclass(slots=True, kw_only=True)
class Environments:
    """The client of a run's environments, and what is rendered for them."""

    client: EnvironmentClient
    renderers: Mapping[str, PromptRenderer]  # by environment
    tokens: ReplyTokens
    config: RunConfig

    def render(self, example: Example, opening: Opening = NO_OPENING) -> RenderedPrompt:
        if opening.replaces:
            return self.rendered(example, opening.messages, opening.tools)
        return self.renderers[self._environment_of(example)](example, opening)

    def rendered(
        self, example: Example, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> RenderedPrompt:
        """The dialogue of a program as a prompt."""
        render = replace(self.tokens.render, task=Task(name="agent", train=())).with_tools(tools)
        if not render.template_knows_tools:
            messages = without_tools(messages)
        return render(replace(example, prompt=tuple(messages)))

    def _environment_of(self, example: Example) -> str:
        return choose(self.renderers, example.columns, location(example))

    def begin(
        self,
        examples: Sequence[Example],
        indices: Sequence[int],
        *,
        rows: int,
        step: int,
        attempt: int,
    ) -> list[Opening]:
        """Begin `rows` episodes for each of the examples at these indices; return their openings.

        Answers are compared with each other, so an environment that begins differently from that
        of the group's first answer fails.
        """
        occurrence = occurrences([example.key for example in examples])
        groups = []
        for index in indices:
            example = examples[index]
            seed = group_seed(
                seed=self.config.seed,
                step=step,
                prompt=example.key,
                attempt=attempt,
                occurrence=occurrence[index],
            )
            name, prompt = self._environment_of(example), example.prompt
            if self.client.specs[name].is_agent:
                prompt = conversation(self.renderers[name].task, example)
            row = {"prompt": reward_prompt(prompt), **example.columns}
            if name:
                del row[CHOOSES]
            groups.append(
                [Episode(environment=name, row=row, seed=seed, index=i) for i in range(rows)]
            )
        self.client.begin([episode for group in groups for episode in group])
        return [
            self._opening(examples[index], group)
            for index, group in zip(indices, groups, strict=True)
        ]

    def _opening(self, example: Example, episodes: Sequence[Episode]) -> Opening:
        """The opening of a prompt's episodes; those fail that differ or that cannot be used."""
        started = [episode for episode in episodes if not episode.last.error]
        opening = started[0].opening if started else NO_OPENING
        for episode in started:
            if episode.opening != opening:
                episode.fail(
                    "reset: it begins differently from that of another answer to the same prompt; "
                    "the row and the seed must decide it"
                )
        if opening.replaces:
            try:
                self.render(example, opening)
            except DataError as error:
                for episode in started:
                    episode.fail(f"reset: {error}")
                return NO_OPENING
        return opening

    def dialogues(self) -> Dialogues:
        """What sampling needs for the episodes that have begun."""
        return Dialogues(
            episodes=self.client,
            tokens=self.tokens_of,
            end_token=self.tokens.end_token,
            max_turns=self.config.task.max_turns,
            max_context=self.config.rollout.max_context,
            read=self.read,
        )

    def tokens_of(self, index: int, reply: EnvironmentReply) -> tuple[int, ...]:
        """The tokens of a reply to a row's answer."""
        if reply.restarts:
            example = Example(key="a new context", prompt="")
            return self.rendered(example, reply.messages, self.client.episodes[index].tools).ids
        return self._with_tools(index)(reply.messages)

    def _with_tools(self, index: int) -> ReplyTokens:
        """What renders the replies to a row, which may have tools of its own."""
        tokens, tools = self.tokens, self.client.episodes[index].tools
        if not tools or tokens.render.tools:
            return tokens
        return replace(tokens, render=tokens.render.with_tools(tools))

    def read(self, index: int, ids: Sequence[int], completion: str) -> str:
        """A completion whose tool calls are rewritten from the model's own form."""
        tools = self.client.episodes[index].tools
        return self._with_tools(index).with_calls(ids, completion, tools) if tools else completion

    def finish(self, rollouts: Sequence[Trajectory]) -> list[Trajectory]:
        """The rollouts with the outcomes of their environments."""
        outcomes = self.client.finish([rollout.failed for rollout in rollouts])
        results, episodes = [], self.client.episodes
        for rollout, outcome, episode in zip(rollouts, outcomes, episodes, strict=True):
            last = episode.last
            if last.error and not rollout.failed:
                span = Span(
                    start=len(rollout.ids),
                    length=0,
                    kind="environment",
                    name=last.name,
                    turn=rollout.spans[-1].turn,
                    ms=last.ms,
                    error=last.error,
                )
                spans = (*rollout.spans, span)
                rollout = replace(rollout, spans=spans, finish="environment_error")
            results.append(replace(rollout, environment=outcome))
        return results


def open_environments(
    config: RunConfig,
    folder: Path,
    render: PromptRenderer,
    ends: frozenset[int],
    enter: Callable[[EnvironmentClient], EnvironmentClient],
    interrupted: Callable[[], bool],
    objects: Mapping[str, Any] | None = None,
    *,
    foreign: bool = False,
) -> Environments | None:
    """Start the environments of a run, if it has any; `enter` sees to it that they end.

    `objects` are those that only this process has. `foreign` are those of a run that began
    elsewhere.
    """
    task = render.task
    if not specs_of(config, task)[1]:
        return None
    client = enter(EnvironmentClient(config, task, folder, interrupted, objects, foreign=foreign))
    schemas = {
        tool["function"]["name"]: tool for spec in client.specs.values() for tool in spec.tools
    }
    combined = render.with_tools(list(schemas.values()))
    renderers = {name: render.with_tools(spec.tools) for name, spec in client.specs.items()}
    is_text = bool(len(task.train) and isinstance(conversation(task, task.train[0]), str))
    has_agents = any(spec.is_agent for spec in client.specs.values())
    is_plain = render.is_plain or (is_text and not has_agents)
    tokens = reply_tokens(combined, ends, is_plain=is_plain, uses_tools=bool(schemas))
    return Environments(client=client, renderers=renderers, tokens=tokens, config=config)
