"""What tests read from a reward client and its results."""

from grpo_engine.rewards.client import RewardClient
from grpo_engine.rewards.outcome import ScoredRewards
from tests.engine.sandbox.processes import pids_of


def values_of(scored: ScoredRewards) -> tuple[tuple[float | None, ...], ...]:
    """`values[f][b]` of function f for completion b."""
    columns = zip(*scored.rewards, strict=True)
    return tuple(tuple(reward.value for reward in column) for column in columns)


def pid_of(client: RewardClient) -> int | None:
    """The id of the first process that runs."""
    pids = [pid for sandbox in client._sandboxes for pid in pids_of(sandbox)]
    return next(iter(pids), None)
