"""A curve of many values is drawn as if each of them were drawn."""

import math
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grpo_tui.app.charts.axis import Axis
from grpo_tui.app.charts.series import Series, column, cut
from grpo_tui.app.tui.widgets.charts.plot import Cell, Curve, plot

LINE = "accent"
SIDES = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
Dots = set[tuple[int, int]]
VALUES = st.lists(
    st.one_of(st.floats(-1.0, 1.0), st.sampled_from([math.nan, 0.0, 1.0])), min_size=1, max_size=400
)


def dots(cells: Sequence[Sequence[Cell]], colour: str) -> Dots:
    """The dots in cells of one colour."""
    return {
        (2 * x + side, 4 * y + down)
        for y, row in enumerate(cells)
        for x, (char, look) in enumerate(row)
        if look == colour and 0x2800 < ord(char) < 0x2900
        for side in range(2)
        for down in range(4)
        if (ord(char) - 0x2800) & SIDES[side][down]
    }


def series_of(values: Sequence[float], smoothing: float = 0.9, first: int = 0) -> Series:
    return Series.of("reward", range(first, first + len(values)), values, smoothing)


def drawn(
    curves: Iterable[tuple[Series, str]],
    scale: Axis,
    end: float,
    width: int,
    height: int,
    first: float = 0,
) -> list[list[Cell]]:
    """The cells of series, each with its colour."""
    traced = [
        Curve(cut(one, one.steps, end - first, 2 * width, first), colour) for one, colour in curves
    ]
    return plot(traced, scale, width, height)


def test_a_sparse_line_joins_steps_without_a_value_and_breaks_where_one_is_no_number() -> None:
    def columns_of(steps: Sequence[int], values: Sequence[float]) -> set[int]:
        one = Series.of("eval/accuracy", steps, values)
        return {x for x, _ in dots(drawn([(one, LINE)], Axis(0.0, 1.0), 9, 5, 1), LINE)}

    assert columns_of((0, 3, 9), (0.0, 0.0, 0.0)) == set(range(10))
    assert columns_of((0, 3, 5, 7, 9), (0.0, 0.0, math.nan, 0.0, 0.0)) == {0, 1, 2, 3, 7, 8, 9}


def value_by_value(one: Series, scale: Axis, first: int, last: int, wide: int, tall: int) -> Dots:
    """The dots of straight lines between all consecutive values, computed dot by dot."""
    found: Dots = set()
    previous = None
    for step, value in zip(one.steps, one.line, strict=True):
        if not first <= step <= last:
            continue
        if not math.isfinite(value):
            previous = None
            continue
        x, y = column(step - first, last - first, wide), scale.dot(value, tall)
        x0, y0 = previous or (x, y)
        length = max(abs(x - x0), abs(y - y0), 1)
        found |= {
            (x0 + (x - x0) * i // length, round(y0 + (y - y0) * i / length))
            for i in range(length + 1)
        }
        previous = (x, y)
    return found


@given(VALUES, st.integers(1, 30), st.integers(1, 6), st.integers(2, 600), st.integers(0, 50))
@example([1.0, -1.0, 0.5, -0.5] * 4, 1, 6, 16, 0)
def test_a_line_has_the_dots_of_all_its_values(
    values: list[float], width: int, height: int, span: int, first: int
) -> None:
    one, scale, last = series_of(values), Axis(-1.0, 1.0), first + span - 1
    found = dots(drawn([(one, LINE)], scale, last, width, height, first), LINE)
    expected = value_by_value(one, scale, first, last, 2 * width, 4 * height)
    inside = values[first : last + 1]
    if all(map(math.isfinite, inside)) or len(inside) <= width:
        assert found == expected
    else:
        assert found >= expected  # a gap within a column of many values is not seen


@given(VALUES.filter(lambda values: any(map(math.isfinite, values))))
def test_the_drawn_values_are_those_of_the_line_and_of_the_range(values: list[float]) -> None:
    one = series_of(values)
    for ranged, expected in ((True, one.values), (False, one.line)):
        curve = Curve(cut(one, one.steps, len(values), 40), LINE, ranged=ranged)
        known = [value for value in curve.values() if math.isfinite(value)]
        finite = [value for value in expected if math.isfinite(value)]
        assert (min(known), max(known)) == pytest.approx((min(finite), max(finite)))
