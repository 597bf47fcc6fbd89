"""One way of writing a share and a difference, and the same number wherever a run is shown."""

import math

import pytest

from grpo_tui.app.charts.series import Series
from grpo_tui.app.feed.narrator import narrate
from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.tui.screens.compare.render import delta_text


@pytest.mark.parametrize(
    ("key", "delta", "text"),
    [
        ("eval/accuracy", 0.031, "+3.1 pt"),
        ("eval/accuracy", -0.12, "−12 pt"),
        ("eval/accuracy", 5.6e-17, "="),  # .3 - .1 - .2
        ("reward", -1.1e-16, "="),
        ("reward", 0.13, "+.13"),
        ("reward", math.inf, "+∞"),
        ("kl", 0.02, "+.02"),
    ],
)
def test_a_difference_that_rounding_explains_is_none(key: str, delta: float, text: str) -> None:
    assert delta_text(key, delta) == text


def test_the_end_of_a_run_is_told_by_the_numbers_that_its_charts_show() -> None:
    series = {
        "reward": Series.of("reward", (1, 2, 3), (0.0, math.nan, 1.0)),
        "eval/accuracy": Series.of("eval/accuracy", (0, 1, 3), (math.nan, 0.355, 0.88)),
    }
    # debiased average: .1*1 / (1 - .9^2) = .526
    assert narrate(Snapshot(status="completed", step=3, series=series)) == (
        "Held-out accuracy, sampled: 36% to 88%.",
        "The run is complete after 3 steps.",
        "Reward, smoothed: 0 to .53, highest in one step 1.",
    )
    whole = Snapshot(
        status="completed",
        step=3,
        series=series
        | {
            "rewards/right/mean": Series.of("rewards/right/mean", (1, 2), (0.25, 0.75)),
            "rewards/form/mean": Series.of("rewards/form/mean", (1, 2), (0.5, 0.0)),
        },
    )
    # now (.9*.1*.25 + .1*.75) / (1 - .81) = .513 and .237; changes +.263 and -.263 by weight 1
    assert {name: round(move, 3) for name, move in whole.moves.items()} == {
        "right": 0.263,
        "form": -0.263,
    }
    change = "Reward, smoothed: 0 to .53, highest in one step 1, moved most by right (+.26 of it)."
    assert change in narrate(whole)
