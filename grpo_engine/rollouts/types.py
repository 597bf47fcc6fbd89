"""Inputs and outputs of sampling."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from grpo_engine.config.settings import RolloutConfig
from grpo_engine.events import Finish, Span, model_tokens
from grpo_engine.frozen import frozen
from grpo_engine.policy.batch import TokenRow
from grpo_engine.rollouts.noise import NOISE
from grpo_engine.tasks.base import Message


@frozen
class Sampling:
    """Sampling parameters; temperature 0 is greedy, for evaluation only."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int = 64
    stop: tuple[str, ...] = ()
    think_budget: int = 0
    max_rows: int = 0
    ignore_end: bool = False
    noise: int = NOISE

    @classmethod
    def of(cls, config: RolloutConfig) -> "Sampling":
        """Take the parameters from a run's settings."""
        settings = config.model_dump(exclude={"prompts", "group_size", "max_context", "options"})
        return cls(**{**settings, **config.options})

    @property
    def truncated(self) -> bool:
        """Whether the sampled distribution differs from the policy's at this temperature."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0 or self.repetition_penalty != 1


@frozen
class PromptRows:
    """One prompt and its number of completions; `group` is its index in the events."""

    key: str
    group: int
    ids: tuple[int, ...]
    rows: int
    attempt: int = 0
    occurrence: int = 0  # earlier occurrences of the prompt in the step
    prefill: str = ""  # the beginning of its completions


@frozen
class EnvironmentOutcome:
    """The result of a rollout's environment; `state` are its public attributes."""

    name: str
    reward: float | None = None
    by_turn: bool = False  # rewards come with its replies; without any their sum is 0
    state: Mapping[str, Any] = field(default_factory=dict)
    calls: int = 0  # calls of tools
    failures: int = 0  # failed calls


@frozen
class Trajectory(TokenRow):
    """One sampled completion: the model's turns and, between them, its environment's replies.

    One turn without an environment has no spans.
    """

    key: str
    group: int
    index: int = 0
    attempt: int = 0
    logprobs: tuple[float, ...] = ()  # under the distribution sampled from
    raw_logprobs: tuple[float, ...] = ()  # at the temperature, over the whole vocabulary
    finish: Finish
    text: str
    ends: tuple[int, ...] = ()  # characters of the text after each token
    spans: tuple[Span, ...] = ()
    messages: tuple[Message, ...] = ()  # the dialogue, for rewards
    environment: EnvironmentOutcome | None = None

    @property
    def length(self) -> int:
        """Tokens without the environment's."""
        return model_tokens(self.ids, self.spans)

    def token_at(self, end: int) -> int:
        """The token that completes the text up to this character; the last if that is unknown."""
        inside = self.ends and end < len(self.text)
        return bisect_left(self.ends, end) if inside else len(self.ids) - 1

    @property
    def failed(self) -> bool:
        """Whether its environment failed, so that it gets no reward."""
        return self.finish == "environment_error"
