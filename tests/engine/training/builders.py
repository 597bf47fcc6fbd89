"""Groups of rollouts as sampling would leave them, for tests of what follows."""

from collections.abc import Sequence
from typing import Any

from grpo_engine.rewards.right import Right
from grpo_engine.rewards.scoring import Scores
from grpo_engine.rollouts.types import Trajectory
from grpo_engine.tasks.base import Example
from grpo_engine.training.samples import SampledGroup


def trajectory(group: int, index: int, length: int = 1, **changes: Any) -> Trajectory:
    """A completion of so many tokens."""
    logprobs = (-1.0,) * length
    base: dict[str, Any] = {
        "key": str(group),
        "group": group,
        "index": index,
        "attempt": 0,
        "prompt_ids": (1,),
        "ids": (2,) * length,
        "logprobs": logprobs,
        "raw_logprobs": logprobs,
        "finish": "stop",
        "text": "",
    }
    return Trajectory(**base | changes)


def sampled(
    index: int,
    rollouts: Sequence[Trajectory],
    scores: Scores,
    example: Example | None = None,
    *,
    right: str = "",
) -> SampledGroup:
    """A group in which a function says what is right."""
    return SampledGroup(
        index=index,
        example=example or Example(key=str(index), prompt=""),
        prompt_ids=rollouts[0].prompt_ids,
        prompt_text="",
        attempt=0,
        rollouts=list(rollouts),
        scores=scores,
        right=Right(right),
        format="",
    )
