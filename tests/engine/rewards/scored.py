"""What tests read from a reward client and its results."""

from collections.abc import Sequence

from grpo_engine.rewards.client import RewardClient
from grpo_engine.rewards.outcome import FunctionResult, RewardProblem
from tests.engine.sandbox.processes import pids_of


def values_of(outcomes: Sequence[FunctionResult]) -> tuple[tuple[float | None, ...], ...]:
    """`values[f][b]` of function f for completion b."""
    return tuple(tuple(reward.value for reward in outcome.rewards) for outcome in outcomes)


def problems_of(outcomes: Sequence[FunctionResult]) -> list[RewardProblem]:
    return [problem for outcome in outcomes for problem in outcome.problems]


def pid_of(client: RewardClient) -> int | None:
    """The id of the first process that runs."""
    pids = [pid for sandbox in client._sandboxes for pid in pids_of(sandbox)]
    return next(iter(pids), None)
