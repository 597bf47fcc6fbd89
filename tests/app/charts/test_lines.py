"""Whole curves, as figures and files have them."""

import math

from grpo_tui.app.charts.lines import with_ends
from grpo_tui.app.charts.series import Series


def test_a_curve_without_ends_has_no_interval_where_a_value_is_not_a_number() -> None:
    steps, values = (1, 2, 3), (0.5, math.nan, 0.25)
    bare = with_ends("loss", Series.of("loss", steps, values), lambda _: Series())
    assert not bare.has_interval
    ends = {"eval/accuracy_low": (0.25, math.nan, 0.0), "eval/accuracy_high": values}
    measured = with_ends(
        "eval/accuracy",
        Series.of("eval/accuracy", steps, values),
        lambda key: Series.of(key, steps, ends[key]),
    )
    assert measured.has_interval
