"""A loaded policy that completes prompts, as in training."""

from collections.abc import Generator, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from grpo_engine.api.thread import enter
from grpo_engine.config.settings import ModelConfig, RunConfig
from grpo_engine.control import Control
from grpo_engine.errors import EngineError
from grpo_engine.events import RolloutsAdvanced
from grpo_engine.frozen import frozen
from grpo_engine.policy import load
from grpo_engine.policy.batch import make_batch
from grpo_engine.policy.forward import token_scores
from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts.decode import pause_or_stop, sample_groups
from grpo_engine.rollouts.prompts import PromptRenderer
from grpo_engine.rollouts.types import PromptRows, Sampling, Trajectory
from grpo_engine.tasks.base import Example, Task, user_message

Prompt = str | Iterable[Mapping[str, Any]]


@frozen
class LoadedPolicy:
    """A model with its tokenizer, and how prompts are put to it."""

    policy: Policy
    task: Task
    config: RunConfig
    chat: bool

    def generate(self, prompt: Prompt, *, temperature: float = 0.0, **options: Any) -> str:
        """Answer a prompt, greedily at temperature 0; options are those of `stream`."""
        return self.sample(prompt, 1, temperature=temperature, **options)[0]

    def sample(self, prompt: Prompt, count: int, **options: Any) -> list[str]:
        """Answer a prompt several times; options are those of `stream`."""
        texts = self.stream(prompt, count, **options)
        while True:
            try:
                next(texts)
            except StopIteration as end:
                return [rollout.text for rollout in end.value]

    def stream(
        self,
        prompt: Prompt,
        count: int = 1,
        *,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        seed: int = 0,
        control: Control | None = None,
    ) -> Generator[str, None, list[Trajectory]]:
        """Answer a prompt, yield the text as it grows, and return the rollouts with their tokens.

        A prompt is a text or chat messages; the temperature is the run's if it is not given.
        """
        if count < 1:
            raise EngineError(f"the number of answers must be 1 or more, got {count}")
        enter()
        if not isinstance(prompt, str):
            prompt = tuple(dict(message) for message in prompt)
        elif self.chat:
            prompt = user_message(prompt)
        changes: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature}
        requested = {name: value for name, value in changes.items() if value is not None}
        # RolloutConfig has no temperature 0, which is only for a look at the policy.
        sampling = replace(Sampling.of(self.config.rollout), **requested)
        render = PromptRenderer(
            self.policy.tokenizer,
            self.task,
            self.config.task,
            self.config.model.path,
            self.policy.context_length,
            sampling.max_new_tokens,
        )
        ids = render(Example(key="prompt", prompt=prompt)).ids
        rows = [PromptRows(key="prompt", group=0, ids=ids, rows=count)]
        events = sample_groups(
            self.policy,
            rows,
            sampling,
            seed=seed,
            step=0,
            requests=partial(pause_or_stop, control or Control(), 0),
        )
        while True:
            try:
                event = next(events)
            except StopIteration as end:
                return list(end.value)
            if isinstance(event, RolloutsAdvanced):
                yield "".join(row.text for row in event.rows)

    def logprobs(self, rollout: Trajectory, temperature: float = 1.0) -> tuple[float, ...]:
        """The log-probabilities that this model gives to the tokens of a rollout."""
        enter()
        batch = make_batch([rollout], [0], pad_id=self.policy.pad_id)
        scores = token_scores(self.policy, batch, temperature=temperature, gradient=False)
        return tuple(scores.logprobs[0].tolist()[: len(rollout.ids)])  # type: ignore[arg-type, index]  # one row


def load_policy(model: str | Path = "starter", **settings: Any) -> LoadedPolicy:
    """Load a model: `starter`, a folder or a hub id, with settings of the section `model`.

    Chat models get a text prompt as a user message.
    """
    config = RunConfig(model=ModelConfig(**{"path": str(model), **settings}))
    return of_config(config, Task(name="prompt", train=()), chat=None)


def of_config(config: RunConfig, task: Task, *, chat: bool | None) -> LoadedPolicy:
    """Load the model of these settings, to be asked as in this task."""
    enter()
    policy = load.load_policy(config.model, seed=config.seed)
    if chat is None:
        template = getattr(policy.tokenizer, "chat_template", None)
        chat = bool(template) and config.task.chat_template != "plain"
    return LoadedPolicy(policy=policy, task=task, config=config, chat=chat)
