"""The table of results says what was not measured, and never shows it as 0."""

from dataclasses import replace
from math import nan

import pytest

from grpo_tui.app.jobs.report_table import before_and_after
from tests.experiments.made import evaluated

REWARD = {"eval/reward": 0.5}


NONE = {"eval/reward": nan, "eval/reward_low": nan, "eval/reward_high": nan}
BOTH = REWARD | {"eval/rewards/a": 1.0, "eval/rewards/b": 0.25}
SCORED = REWARD | {"eval/rewards/a": 1.0}
COUNTS = {"eval/scored/reward": 4.0, "eval/scored/rewards/a": 12.0}
TASKS = {
    "eval/task/sums/accuracy": 0.5,
    "eval/task/sums/accuracy_low": 0.4,
    "eval/task/sums/accuracy_high": 0.6,
    "eval/task/sums/truncated": 0.0,
}
UNCHANGED = "reward 0.500 0.500 +0.000"


@pytest.mark.parametrize(
    ("before", "after", "rows"),
    [
        (REWARD, REWARD, ["accuracy not-measured not-measured", UNCHANGED]),
        (None, REWARD, ["accuracy not-measured", "reward 0.500"]),
        (
            REWARD,  # as of a run that was resumed with other settings
            REWARD | {"eval/accuracy": 0.25},
            ["accuracy not-measured 0.250", UNCHANGED],
        ),
        (REWARD, NONE, ["accuracy not-measured not-measured", "reward 0.500 not-measured"]),
        (None, NONE, ["accuracy not-measured", "reward not-measured"]),
        (
            BOTH,
            REWARD | {"eval/rewards/b": 0.5},
            [
                "accuracy not-measured not-measured",
                "reward 0.500 0.500",  # of two functions, then of one
                "rewards/b 0.250 0.500 +0.250",
                "rewards/a 1.000 not-measured",
            ],
        ),
        (
            None,
            REWARD | TASKS,
            [
                "accuracy not-measured",
                "reward 0.500",
                "task/sums/accuracy 0.500 [0.400, 0.600]",
            ],
        ),
        (
            SCORED,
            SCORED | COUNTS,
            [
                "accuracy not-measured not-measured",
                "reward 0.500 0.500 n=4 +0.000",
                "rewards/a 1.000 1.000 n=12 +0.000",
            ],
        ),
    ],
)
def test_what_was_not_measured_is_named_and_has_no_change(
    before: dict[str, float] | None, after: dict[str, float], rows: list[str]
) -> None:
    steps = [(0, before), (1, after)] if before else [(1, after)]
    events = [replace(evaluated(step, (0, 0)), metrics=metrics) for step, metrics in steps]
    lines = before_and_after(events).splitlines()[2:]
    found = [" ".join(line.replace("not measured", "not-measured").split()) for line in lines]
    assert found == rows
