"""Axes: the range contains the data and stays possible; each label is true and unlike others."""

import math
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from grpo_engine.metrics import METRICS, natural_range, spec
from grpo_tui.app.charts.axis import LABEL_CELLS, Axis, axis, equal, log_axis, rounded, text
from grpo_tui.app.charts.series import column
from tests.app.pictures import value_of

ANY = (-math.inf, math.inf)
VALUES = st.floats(-1e12, 1e12) | st.floats(-1, 1) | st.sampled_from([0.0, 1.0, -0.0028, -0.0032])
RANGES = st.lists(VALUES, min_size=1, max_size=6)
KEYS = st.sampled_from([*METRICS, "rewards/f/mean", "eval/greedy/accuracy"])


@st.composite
def possible(draw: st.DrawFn) -> tuple[str, list[float]]:
    """A metric and values that it can have."""
    key = draw(KEYS)
    least, most = natural_range(key)
    return key, draw(
        st.lists(st.floats(max(least, -1e12), min(most, 1e12)), min_size=1, max_size=6)
    )


def differ(values: list[float]) -> bool:
    tame = [0.0 if abs(value) < 1e-45 else value for value in values]
    return max(tame) - min(tame) > 1e-9 * max(map(abs, tame))


@given(possible(), st.integers(2, 5))
@example(("completions/clipped_ratio", [0.0]), 2)
@example(("eval/accuracy", [0.0, 0.9]), 2)
@example(("value/explained_variance", [-17.0, 0.98]), 2)
@example(("value/explained_variance", [-2e-22, 7e-24]), 2)  # no step of its size has short labels
@example(("completions/clipped_ratio", [1e-30, 3e-30]), 2)
def test_an_axis_contains_the_data_and_stays_within_what_the_metric_can_be(
    metric: tuple[str, list[float]], labels: int
) -> None:
    key, values = metric
    least, most = natural_range(key)
    found = axis(
        values, unit=spec(key).unit, natural=(least, most), guides=spec(key).guides, labels=labels
    )
    slack = 1e-8 * (found.high - found.low)
    assert least <= found.low < found.high <= most
    assert found.low - slack <= min(values) <= max(values) <= found.high + slack


@given(RANGES, st.sampled_from(["", "share", "s"]), st.integers(2, 5))
@example([-0.0032, -0.0028], "", 2)
@example([1000.1, 1000.2], "", 3)
@example([0.0, 0.02], "share", 3)
def test_labels_are_exact_in_order_and_all_different(
    values: list[float], unit: str, labels: int
) -> None:
    found = axis(values, unit=unit, labels=labels)
    assume(differ(values))
    at = [place for place, _ in found.labels]
    texts = [label for _, label in found.labels]
    assert at == sorted(set(at))
    assert len(set(texts)) == len(texts) >= 2
    assert (at[0], at[-1]) == (found.low, found.high)
    for place, label in found.labels:
        assert 0 < len(label) <= LABEL_CELLS
        assert value_of(label) == pytest.approx(place, rel=1e-9, abs=1e-300)


@given(possible())
def test_an_axis_of_a_tall_chart_has_labels_at_equal_distances(
    metric: tuple[str, list[float]],
) -> None:
    key, values = metric
    assume(differ(values))
    found = axis(values, unit=spec(key).unit, natural=natural_range(key), labels=5)
    at = [place for place, _ in found.labels]
    if at[-1] == natural_range(key)[1]:
        at.pop()  # cut where the metric ends
    gaps = [later - earlier for earlier, later in pairwise(at)]
    assert len(found.labels) <= 6
    assert gaps == pytest.approx([gaps[0]] * len(gaps) if gaps else [])


@given(st.lists(st.floats(1e-30, 1e12), min_size=1, max_size=6), st.integers(2, 5))
@example([0.1], 2)
def test_a_logarithmic_axis_contains_the_data_between_labels_that_are_true(
    values: list[float], labels: int
) -> None:
    logarithms = [math.log10(value) for value in values]
    found = log_axis(logarithms, labels=labels)
    assert found.low - 1e-6 <= min(logarithms) <= max(logarithms) <= found.high + 1e-6
    assert (found.labels[0][0], found.labels[-1][0]) == (found.low, found.high)
    for place, label in found.labels:
        assert math.log10(value_of(label)) == pytest.approx(place)


def test_a_logarithmic_axis_has_powers_of_ten_or_what_is_between_few_of_them() -> None:
    def labels(*values: float) -> list[str]:
        return [label for _, label in log_axis(map(math.log10, values), labels=5).labels]

    assert labels(0.0001, 0.15) == [".0001", ".001", ".01", ".1", ".2"]
    assert labels(3, 7) == ["2", "5", "10"]


@given(VALUES | st.floats(1e-30, 1e-3), st.sampled_from(["", "share"]))
@example(0.0, "share")
@example(1.0, "share")
@example(0.64, "share")
@example(-0.003, "")
def test_a_constant_has_one_label_beside_its_line(value: float, unit: str) -> None:
    assume(unit != "share" or abs(value) <= 1e6)
    natural = (0.0, 1.0) if unit == "share" and 0 <= value <= 1 else ANY
    found = axis([value, value * (1 + 1e-15)], unit=unit, natural=natural)
    ((place, label),) = found.labels
    value = 0.0 if abs(value) < 1e-45 else value
    assert place == pytest.approx(value)
    assert value_of(label) == pytest.approx(value, rel=0.05)
    for height in (1, 2, 4, 7):
        dot = found.dot(place, 4 * height)
        rows = [row for row, shown in enumerate(found.margin(height)) if shown.strip()]
        assert rows == [dot // 4]


def test_a_constant_has_its_size_on_both_sides_as_far_as_the_metric_can_be() -> None:
    share = {"unit": "share", "natural": (0.0, 1.0)}
    assert axis([0.0], **share) == Axis(0.0, 1.0, ((0.0, "0%"),))  # type: ignore[arg-type]
    assert axis([0.0]) == Axis(-1.0, 1.0, ((0.0, "0"),))
    assert axis([5.0, 5.0]) == Axis(0.0, 10.0, ((5.0, "5"),))
    assert axis([2.0], natural=(0.0, 1.0)) == Axis(0.0, 4.0, ((2.0, "2"),))
    assert axis([-0.5], natural=(-0.75, math.inf)) == Axis(-0.75, 0.0, ((-0.5, "−.5"),))


def test_values_that_differ_by_less_than_a_billionth_are_equal() -> None:
    for value in (1.0, -1.0, 1e-12, 1e12):
        assert equal(value, value + 0.9e-9 * abs(value))
        assert not equal(value, value + 1.1e-9 * abs(value))
    assert not equal(-1.0, 0.0)


def test_what_is_outside_of_an_axis_is_at_its_edge() -> None:
    assert [Axis(0.0, 1.0).dot(value, 8) for value in (9.0, 1.0, 0.0, -9.0)] == [0, 0, 7, 7]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # a sixteenth of the span bounds the step: (.86 - .55) / 16 = .019, so steps of .02
        ([0.55, 0.86], (0.54, 0.86)),
        # .0004 / 16 = .000025: both ends are multiples of .00005 already
        ([-0.0032, -0.0028], (-0.0032, -0.0028)),
        # 0 is near, as .3 <= .6 * .85; then .85 / 16 = .053 gives steps of .1
        ([0.3, 0.85], (0.0, 0.9)),
        ([0.6, 1.0], (0.0, 1.0)),
        ([0.61, 1.0], (0.6, 1.0)),
        # steps of 10: 87 / 16 = 5.4
        ([3.0, 87.0], (0.0, 90.0)),
        ([-4.0, 4.0], (-4.0, 4.0)),
        # 16 / 16: steps of exactly 1
        ([-7.5, 8.5], (-8.0, 9.0)),
        # .43 / 16 = .027: steps of .05
        ([0.0, 0.43], (0.0, 0.45)),
        # steps of .01 need seven cells, those of .1 need six
        ([1000.11, 1000.19], (1000.1, 1000.2)),
    ],
)
def test_ranges_by_hand(values: list[float], expected: tuple[float, float]) -> None:
    found = axis(values)
    assert (found.low, found.high) == expected


def test_guide_lines_near_the_data_are_in_range_and_far_ones_are_not() -> None:
    assert axis([0.0, 0.05], guides=(0.15,)).high == 0.15
    assert axis([0.0, 0.05], guides=(0.1501,)).high == 0.05
    assert axis([0.9, 0.95], guides=(0.5,)).low == 0.5
    assert axis([-0.9, -0.95], guides=(-1.0,)).low == -0.95
    assert axis([0.01, 0.02], guides=(0.0,)).low == 0.0
    assert axis([0.9, 0.95], guides=(0.0,)).low == 0.0
    assert axis([-0.9, 0.95], guides=(0.5, -0.5)) == axis([-0.9, 0.95])


@pytest.mark.parametrize(
    ("digits", "unit", "expected"),
    [
        ((0, 5), "", "0"),
        ((35, -1), "", "3.5"),
        ((-32, -4), "", "−.0032"),
        ((55, -5), "", ".00055"),
        ((5, -5), "", "5e−5"),
        ((-12, -6), "", "−12e−6"),
        ((125, 2), "", "12.5k"),
        ((12345, 0), "", "12345"),
        ((25, 5), "", "2.5M"),
        ((1, 9), "", "1G"),
        ((3, 12), "", "3e12"),
        ((1234567, 0), "", ""),
        ((875, -3), "share", "87.5%"),
        ((5, -3), "share", ".5%"),
        ((-2, -1), "share", "−20%"),
        ((1, -7), "share", "1e−5%"),
        ((15, -6), "", "1.5e−5"),
    ],
)
def test_numbers_are_written_in_the_usual_short_way(
    digits: tuple[int, int], unit: str, expected: str
) -> None:
    value = Decimal(digits[0]).scaleb(digits[1])
    assert text(value, unit) == expected
    if expected:
        assert value_of(expected) == pytest.approx(float(value))


def test_a_constant_is_rounded_as_in_a_title_or_to_what_fits() -> None:
    values = (0.123456, -0.123456, 1.83456, 16.543, 153.26, 1234.56, 1e-5 / 3, 5.49e-4)
    assert [rounded(value, "") for value in values] == [
        ".12",
        "−.12",
        "1.83",
        "16.5",
        "153",
        "1235",
        "3.3e−6",
        ".00055",
    ]
    assert rounded(1 / 3, "share") == "33%"
    assert rounded(-1 / 3, "share") == "−33%"
    assert rounded(-1e-44, "share") == ""


@given(st.floats(0, 1), st.floats(1e-3, 1e9), st.integers(1, 400))
def test_a_column_is_the_nearest_dot(part: float, end: float, wide: int) -> None:
    x = column(part * end, end, wide)
    assert 0 <= x < wide
    assert abs(x - part * (wide - 1)) <= 0.5 + 1e-6
    assert column(part, 0.0, wide) == 0
