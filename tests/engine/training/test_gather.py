"""What ranks exchange arrives as it was sent."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.distributed.ranks import Ranks
from grpo_engine.events import AlertRaised, RewardValue
from grpo_engine.rewards.scoring import Scores
from grpo_engine.rollouts.types import Trajectory
from grpo_engine.training.sampling import ScoredRollouts, all_rollouts


class Wire(Ranks):
    """Two ranks, of which this one has all the rollouts; they travel as JSON."""

    size = 2

    def __init__(self) -> None:
        pass

    def gather(self, value: Any) -> list[Any]:
        return [json.loads(json.dumps(value))]


ids = st.lists(st.integers(0, 9), max_size=4).map(tuple)
logprobs = st.lists(st.floats(-9, 0), max_size=4).map(tuple)
rollouts = st.builds(
    Trajectory,
    key=st.text(max_size=3),
    group=st.integers(0, 3),
    index=st.integers(0, 3),
    attempt=st.integers(0, 3),
    prompt_ids=ids,
    ids=ids,
    logprobs=logprobs,
    raw_logprobs=logprobs,
    finish=st.sampled_from(["stop", "length"]),
    text=st.text(max_size=5),
    forced=ids,
    ends=ids,
)
rewards = st.builds(
    RewardValue, name=st.just("f"), value=st.none() | st.floats(-1, 1), weight=st.floats(0, 2)
)
steps = st.lists(st.tuples(st.integers(0, 5), st.none() | st.floats(-1, 1)), max_size=3).map(tuple)


@st.composite
def scored(draw: st.DrawFn) -> ScoredRollouts:
    some = draw(st.lists(rollouts, min_size=1, max_size=3))
    each = st.lists(steps, min_size=len(some), max_size=len(some)).map(tuple)
    return some, Scores(
        rewards=tuple((draw(rewards),) for _ in some),
        steps=draw(st.none() | each),
        logged=draw(st.dictionaries(st.text(max_size=3), st.floats(-1, 1), max_size=2)),
        alerts=tuple(
            AlertRaised(step=1, rule="r", severity="warning", explanation=text, remedy="")
            for text in draw(st.lists(st.text(max_size=3), max_size=2))
        ),
    )


@given(st.lists(scored(), min_size=1, max_size=2))
def test_rollouts_and_scores_survive_the_exchange_of_ranks(sent: list[ScoredRollouts]) -> None:
    assert all_rollouts(Wire(), list(enumerate(sent))) == sent
