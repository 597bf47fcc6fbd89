"""Every metric has a description of two sentences."""

import re

import pytest

from grpo_engine.metrics import METRICS, spec


@pytest.mark.parametrize("name", [*METRICS, "rewards/accuracy/mean", "rewards/f/std", "eval/x"])
def test_a_metric_is_explained_in_two_sentences(name: str) -> None:
    sentences = re.findall(r"[^.]+(?:\.\d[^.]*)*\.(?= |$)", spec(name).help)
    assert len(sentences) == 2, spec(name).help


def test_reward_functions_are_described_by_their_name() -> None:
    assert spec("rewards/accuracy/mean").label == "accuracy"
    assert spec("rewards/accuracy/mean").direction == "up"
    assert spec("rewards/accuracy/std").direction == "none"
