"""Events survive JSON unchanged."""

import json
import math
from typing import get_args

from grpo_engine import events
from grpo_engine.events import (
    EVENT_TYPES,
    Event,
    StepFinished,
    from_json,
    kind_of,
    to_json,
    total_reward,
)
from tests.experiments.made import group


def test_the_stored_names_of_events_are_these() -> None:
    # stored in users' databases and spill files: a change here needs a migration
    assert list(EVENT_TYPES) == [
        "RunStarted",
        "FunctionsLoaded",
        "ModelLoaded",
        "PhaseStarted",
        "PhaseAdvanced",
        "ServerAwaited",
        "PromptsStarted",
        "RolloutsAdvanced",
        "GroupScored",
        "TokensScored",
        "PassFinished",
        "StepFinished",
        "StepSkipped",
        "AlertRaised",
        "AlertEnded",
        "EvaluationFinished",
        "BenchmarksMeasured",
        "CheckpointSaved",
        "NoteWritten",
        "RunPaused",
        "RunResumed",
        "RunFinished",
        "RunFailed",
    ]
    assert set(EVENT_TYPES.values()) == set(get_args(Event))


def test_the_rollouts_of_a_group_are_stored_as_its_completions() -> None:
    # the field's name in users' spill files
    told = to_json(events.GroupScored(step=1, group=group()))
    assert [one["text"] for one in told["group"]["completions"]] == ["yes", "no"]
    assert told["group"]["attempt"] == 0
    assert not told["group"].keys() & {"rollouts", "refill"}
    assert from_json(told) == events.GroupScored(step=1, group=group())


def test_rewards_add_up_over_the_functions_that_apply() -> None:
    # 1·1 + .5·.4 = 1.2;  only the second: .5·.2 = .1
    assert total_reward([1.0, 0.4], [1.0, 0.5]) == 1.2
    assert total_reward([None, 0.2], [1.0, 0.5]) == 0.1
    assert total_reward([math.nan, 0.2], [1.0, 0.5]) == 0.1
    assert total_reward([None, math.nan], [1.0, 0.5]) is None


def test_a_renamed_class_is_stored_under_the_same_name() -> None:
    event = StepFinished(step=3, metrics={}, tokens=10, elapsed=1.5)
    StepFinished.__name__ = "StepDone"
    try:
        assert kind_of(event) == to_json(event)["event"] == "StepFinished"
        assert from_json(to_json(event)) == event
    finally:
        StepFinished.__name__ = "StepFinished"


def test_nan_is_written_as_text_and_read_as_nan() -> None:
    event = StepFinished(step=1, metrics={"loss": math.nan}, tokens=0, elapsed=0.0)
    line = json.dumps(to_json(event), allow_nan=False)
    back = from_json(json.loads(line))
    assert isinstance(back, StepFinished)
    assert math.isnan(back.metrics["loss"])


def test_token_numbers_that_a_run_does_not_have_are_not_written() -> None:
    numbers = events.TokenNumbers(index=0, old=(-0.5,))
    event = events.TokensScored(step=1, group=0, origin="train", numbers=(numbers,))
    (written,) = to_json(event)["numbers"]
    assert {"old", "reference", "clip_fraction"} <= set(written)
    assert not {"mask", "updates", "entropies", "values", "old_values", "returns"} & set(written)


def test_a_group_with_nested_values_comes_back_equal() -> None:
    reward = events.RewardValue(name="accuracy", value=None, weight=1.0)
    completion = events.Rollout(
        index=0,
        ids=(1, 2),
        text="\ud800 \x00",
        finish="stop",
        rewards=(reward,),
        reward=0.5,
        advantage=None,
        sampler_logprobs=(-0.1, -math.inf),
    )
    nested = events.Group(
        index=0,
        origin="train",
        example_key="a",
        prompt_text="2+2",
        prompt_ids=(5,),
        prompt_hash="h",
        target="4",
        rollouts=(completion,),
        reward_mean=0.5,
        reward_std=0.0,
    )
    numbers = events.TokenNumbers(
        index=0,
        old=(-0.5, -1.0),
        passes=((-0.5, -1.0),),
        mask=(1, 0),
        updates=(events.UpdateTotals(rows=2, tokens=3, entropy_floor=0.5),),
    )
    for event in (
        events.GroupScored(step=1, group=nested),
        events.TokensScored(step=1, group=0, origin="train", numbers=(numbers,)),
    ):
        assert from_json(json.loads(json.dumps(to_json(event)))) == event
