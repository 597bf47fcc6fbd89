"""Batched decoding of groups, as a generator of progress events."""

from collections.abc import Generator, Sequence

from grpo_engine.control import Control
from grpo_engine.events import Event
from grpo_engine.policy import Policy
from grpo_engine.rollouts.types import PromptRows, Rollout, Sampling


def sample_groups(
    policy: Policy,
    prompts: Sequence[PromptRows],
    sampling: Sampling,
    *,
    seed: int,
    step: int,
    control: Control | None = None,
) -> Generator[Event, None, list[Rollout]]:
    """Sample all rows, yield `RolloutsAdvanced`, return the rollouts in the order asked for.

    A pause yields `RunPaused` and `RunResumed`; `control.stop_now` raises `StopNow`.
    """
    raise NotImplementedError
