"""The probe: the share of prompts that would have a signal, at each group size."""

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.api.probe import PromptsProbed, probe, recommended, signals
from grpo_engine.control import Control
from grpo_engine.evaluation.statistics import signal_at_k
from grpo_engine.events import GroupScored, rewards_differ
from tests.engine.runs import events_of, of, settings, write_world


@given(rewards=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=7), data=st.data())
def test_the_chance_of_a_signal_is_that_over_all_choices_of_answers(
    rewards: list[float], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(rewards)))
    groups = list(combinations(rewards, k))
    share = sum(map(rewards_differ, groups)) / len(groups)
    assert signal_at_k(rewards, k) == pytest.approx(share)


def test_scores_that_differ_by_rounding_give_no_signal() -> None:
    assert signal_at_k([0.2 + 0.1, 0.3], 2) == 0
    # two of four right: of the 6 pairs, 2 are alike
    assert signal_at_k([1, 0, 1, 0], 2) == pytest.approx(4 / 6)


def probed(*rewards: list[float | None]) -> PromptsProbed:
    return PromptsProbed(
        temperature=1.0,
        keys=list(map(str, range(len(rewards)))),
        rewards=list(rewards),
        right=[None] * len(rewards),
        seconds=8.0,
    )


def test_the_smallest_group_with_enough_signal_is_recommended() -> None:
    found = signals(probed([1, 0, 0, 0], [1, 1, 0, 0]), [2, 3, 4, 8], prompts=16)
    # pairs of one right in four: 3/6; of two in four: 4/6. Threes: 3/4 and 1. Fours: 1 and 1
    assert [one["group_size"] for one in found] == [2, 3, 4]  # not more than there are answers
    assert [one["share"] for one in found] == pytest.approx([7 / 12, 7 / 8, 1])
    # 8 s for 8 answers, so a step of 16 prompts takes 16 s times the group size
    assert [one["seconds"] for one in found] == [32, 48, 64]
    assert recommended(found) == 3
    assert recommended(signals(probed([1, 1, 1, 1]), [2, 4], prompts=1)) is None


def test_answers_without_a_score_are_left_out() -> None:
    (one,) = signals(probed([1, None, 0, None], [None, None, None, 1]), [2], prompts=1)
    assert one["share"] == 1


def test_the_training_prompts_are_tried_in_the_order_of_the_run(tmp_path: Path) -> None:
    config = settings(write_world(tmp_path), steps=1)
    events = probe(
        config, Control(), folder=tmp_path / "probe", prompts=3, samples=4, temperatures=[0.5, 1.0]
    )
    found = of(PromptsProbed, events)
    assert [one.temperature for one in found] == [0.5, 1.0]
    trained = [
        e.group.example_key
        for e in of(GroupScored, events_of(config, tmp_path / "run"))
        if e.group.origin == "train"
    ]
    assert list(found[0].keys[:2]) == trained
    assert [len(row) for row in found[0].rewards] == [4, 4, 4]
    assert found[0].right is not None
    accuracy = [sum(map(bool, found[0].right))]
    assert accuracy[0] <= 3
