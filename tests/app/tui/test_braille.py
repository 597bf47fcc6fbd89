"""A curve of many buckets is drawn as if each of its values were drawn."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grpo_tui.app.feed.series import Series, SeriesView
from grpo_tui.app.text.axes import Axis, column
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.looks.colours import LIGHT
from grpo_tui.app.tui.widgets.charts.braille import (
    Canvas,
    Curve,
    Frame,
    columns,
    draw,
    drawn_values,
    span_of,
    stroke,
)
from grpo_tui.app.tui.widgets.charts.chart import Chart, chart_lines
from grpo_tui.app.tui.widgets.charts.curves import Curves
from tests.app.script import ScriptFeed
from tests.app.stored import run_events

LINE, RAW = 1, 2
VALUES = st.lists(
    st.one_of(st.floats(-1.0, 1.0), st.sampled_from([math.nan, 0.0, 1.0])), min_size=1, max_size=400
)


def series_of(values: list[float], smoothing: float = 0.9) -> SeriesView:
    series = Series(smoothing)
    for step, value in enumerate(values):
        series.push(step, value)
    return series.view()


def dots(canvas: Canvas, colour: int) -> set[tuple[int, int]]:
    """The dots in cells of one colour."""
    sides = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
    return {
        (2 * column + side, 4 * row + place)
        for row in range(canvas.height) for column in range(canvas.width)
        if canvas.colours[row][column] == colour
        for side in range(2) for place in range(4)
        if canvas.bits[row][column] & sides[side][place]
    }  # fmt: skip


def test_a_bar_is_cut_at_the_edges() -> None:
    canvas = Canvas(2, 2)
    for x in (-1, 4):
        canvas.bar(x, 0, 7, LINE)
    assert dots(canvas, LINE) == set()
    canvas.bar(0, -3, 1, LINE)
    canvas.bar(3, 6, 99, LINE)
    canvas.bar(1, 5, 3, LINE)
    assert dots(canvas, LINE) == {(0, 0), (0, 1), (3, 6), (3, 7)}
    canvas.bar(2, 0, 7, LINE)
    assert {(2, y) for y in range(8)} <= dots(canvas, LINE)


def test_the_last_colour_takes_a_cell_and_what_is_below_fills_only_free_ones() -> None:
    canvas = Canvas(2, 1)
    canvas.bar(0, 0, 1, LINE)
    canvas.bar(1, 2, 3, RAW, over=False)
    assert (dots(canvas, LINE), dots(canvas, RAW)) == ({(0, 0), (0, 1)}, set())
    canvas.bar(1, 2, 3, LINE, over=False)
    assert dots(canvas, LINE) == {(0, 0), (0, 1), (1, 2), (1, 3)}
    canvas.bar(1, 0, 0, RAW)
    assert (dots(canvas, LINE), dots(canvas, RAW)) == (set(), {(1, 0)})
    canvas.bar(2, 3, 3, LINE, over=False)
    assert canvas.rows() == [[("\u2808", RAW), ("\u2840", LINE)]]
    assert Canvas(3, 2).rows() == [[("   ", None)]] * 2


def test_a_stroke_has_one_dot_in_each_column_or_row_of_its_way() -> None:
    canvas = Canvas(4, 2)
    stroke(canvas, (0, 0), (6, 3), LINE)
    # y = 3 i / 6: .5, 1, 1.5, 2, 2.5, 3; halves go to the even number
    assert dots(canvas, LINE) == {(1, 0), (2, 1), (3, 2), (4, 2), (5, 2), (6, 3)}
    canvas = Canvas(4, 2)
    stroke(canvas, (1, 7), (3, 3), LINE)
    # x = 1 + 2 i / 4 downwards, y one up each time
    assert dots(canvas, LINE) == {(1, 6), (2, 5), (2, 4), (3, 3)}
    canvas = Canvas(1, 2)
    stroke(canvas, (1, 6), (1, 2), LINE)
    assert dots(canvas, LINE) == {(1, y) for y in range(2, 7)}


def test_the_span_of_steps_grows_in_few_jumps_up_to_the_total() -> None:
    spans = [span_of(n, 500) for n in (1, 21, 22, 31, 32, 41, 42, 62, 82)]
    assert spans == [21, 21, 31, 31, 41, 41, 61, 81, 121]  # to step 20, 30, 40, 60, 80, 120
    assert [span_of(n, 500) for n in (321, 481, 482, 500, 501)] == [321, 481, 500, 500, 641]
    assert [span_of(n, 10) for n in (1, 10, 11)] == [10, 10, 21]
    assert span_of(3, 21) == 21


def test_a_sparse_line_joins_steps_without_a_value_and_breaks_where_one_is_no_number() -> None:
    def columns_of(*points: tuple[int, float]) -> set[int]:
        series = Series(0.0, few=True)
        for step, value in points:
            series.push(step, value)
        canvas = Canvas(5, 1)
        draw(canvas, Curve(series.view(), LINE), Frame(Axis(0.0, 1.0), 0, 9))
        return {x for x, _ in dots(canvas, LINE)}

    assert columns_of((0, 0.0), (3, 0.0), (9, 0.0)) == set(range(10))
    assert columns_of((0, 0.0), (3, 0.0), (5, math.nan), (7, 0.0), (9, 0.0)) == {
        0,
        1,
        2,
        3,
        7,
        8,
        9,
    }


def value_by_value(view: SeriesView, frame: Frame, wide: int, tall: int) -> set[tuple[int, int]]:
    """The dots of straight lines between all consecutive values, computed dot by dot."""
    found, previous = set(), None
    for place, step in enumerate(view.steps()):
        x = column(step - frame.first, frame.last - frame.first, wide)
        value = view.high[place] if view.sparse else view.smooth[place]
        if not frame.first <= step <= frame.last:
            continue
        if not math.isfinite(value):
            # of a sparse series, a step without a value is no gap
            previous = previous if view.sparse and value != value else None
            continue
        y = frame.axis.dot(value, tall)
        x0, y0 = previous or (x, y)
        length = max(abs(x - x0), abs(y - y0), 1)
        found |= {
            (x0 + (x - x0) * i // length, round(y0 + (y - y0) * i / length))
            for i in range(length + 1)
        }
        previous = (x, y)
    return found


@given(VALUES, st.integers(1, 30), st.integers(1, 6), st.integers(1, 600), st.integers(0, 50))
@example([1.0, math.nan, -1.0, math.nan] * 4, 1, 6, 16, 0)
def test_a_line_has_the_dots_of_all_its_values(
    values: list[float], width: int, height: int, span: int, first: int
) -> None:
    view, frame = series_of(values), Frame(Axis(-1.0, 1.0), first, first + span - 1)
    canvas = Canvas(width, height)
    draw(canvas, Curve(view, LINE), frame)
    assert dots(canvas, LINE) == value_by_value(view, frame, 2 * width, 4 * height)


@pytest.mark.parametrize("values", [[0.0, 7.0, 1.0, 6.0, 2.0, 3.0], [7.0, 1.0, 6.0, 0.0, 2.0, 5.0]])
def test_a_line_leaves_many_values_of_a_column_at_the_last_and_comes_to_the_first(
    values: list[float],
) -> None:
    series = Series()
    for start in (0, 90):
        for step, value in enumerate(values, start):
            series.push(step, value)
    view, frame, canvas = series.view(), Frame(Axis(0.0, 7.0), 0, 95), Canvas(4, 2)
    assert view.sparse
    draw(canvas, Curve(view, LINE), frame)
    assert dots(canvas, LINE) == value_by_value(view, frame, 8, 8)


@given(VALUES, st.integers(2, 60), st.integers(1, 600), st.integers(0, 50))
def test_each_bucket_is_in_the_column_nearest_to_its_first_step(
    values: list[float], wide: int, span: int, first: int
) -> None:
    view, frame = series_of(values), Frame(Axis(0.0, 1.0), first, first + span - 1)
    found = {
        place: x for x, part in columns(view, frame, wide) for place in range(part.start, part.stop)
    }
    places = ((step, column(step - first, span - 1, wide)) for step in view.steps())
    inside = enumerate(places)
    assert found == {place: x for place, (step, x) in inside if first <= step < first + span}


def test_a_column_shows_the_range_of_its_raw_values() -> None:
    # 8 steps in 2 columns of dots; with 8 dots from 7 down to 0, a value is its own row
    view = series_of([7, 5, 6, 7, 0, 3, 1, 2], smoothing=0.0)
    canvas = Canvas(1, 2)
    draw(canvas, Curve(view, LINE, RAW), Frame(Axis(0.0, 7.0), 0, 7))
    left, right = {(0, y) for y in range(3)}, {(1, y) for y in range(4, 8)}
    assert dots(canvas, LINE) >= left | right
    canvas = Canvas(1, 2)
    canvas.bar(0, 1, 5, RAW)
    canvas.bar(0, 0, 0, LINE, over=False)  # the cell belongs to another curve
    assert dots(canvas, RAW) == {(0, y) for y in range(1, 6)}
    assert dots(canvas, LINE) == set()


def test_the_range_of_a_curve_does_not_cover_another_one() -> None:
    other, frame, canvas = 3, Frame(Axis(0.0, 7.0), 0, 7), Canvas(2, 4)
    draw(canvas, Curve(series_of([0.0] * 8), other), frame)
    # 7, 3.3, 4.7, 3.1 … on average: the line stays above the lowest row, the range does not
    draw(canvas, Curve(series_of([7.0, 0.0] * 4), LINE, RAW), frame)
    assert canvas.colours[3] == [other, other]
    assert any(RAW in row for row in canvas.colours)


def test_many_values_of_one_column_reach_from_the_lowest_to_the_highest() -> None:
    # 12 steps in 2 columns of dots; with 8 dots from 7 down to 0, a value is its own row
    for first in ([3, 0, 7, 3, 3, 3], [3, 7, 0, 3, 3, 3], [3, 3, 0, 3, 3, 2], [3, 3, 7, 3, 3, 4]):
        canvas = Canvas(1, 2)
        view = series_of([*map(float, first), *[3.0] * 6], smoothing=0.0)
        draw(canvas, Curve(view, LINE), Frame(Axis(0.0, 7.0), 0, 11))
        rows = {y for x, y in dots(canvas, LINE) if x == 0}
        assert rows == set(range(7 - max(first), 7 - min(first) + 1))
    canvas, view = Canvas(1, 2), series_of([*[3.0] * 6, 7.0, 0.0, *[3.0] * 4], smoothing=0.0)
    draw(canvas, Curve(view, LINE), Frame(Axis(0.0, 7.0), 0, 11))
    # the way from 3 in row 4 to 7 in row 0 of the next column
    assert {y for x, y in dots(canvas, LINE) if x == 0} == {1, 2, 3, 4}


@given(VALUES.filter(lambda values: any(map(math.isfinite, values))))
def test_the_drawn_extremes_are_those_of_the_values_and_of_the_line(values: list[float]) -> None:
    view = series_of(values)
    known = [value for value in values if math.isfinite(value)]
    ranged = list(drawn_values(Curve(view, LINE, RAW)))
    assert (min(ranged), max(ranged)) == (min(known), max(known))
    line = view.high if view.sparse else view.smooth
    smooth = [value for value in line if math.isfinite(value)]
    plain = list(drawn_values(Curve(view, LINE)))
    assert (min(plain), max(plain)) == (min(smooth), max(smooth))


async def test_charts_are_drawn_again_only_where_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []

    def noted(chart: Chart, *args: Any) -> Any:
        drawn.append(chart.title)
        return chart_lines(chart, *args)

    monkeypatch.setattr("grpo_tui.app.tui.widgets.charts.curves.chart_lines", noted)
    app = Workbench(feed=ScriptFeed(run_events(steps=6)), mode="watch", store=tmp_path / "store.db")
    async with app.run_test(size=(120, 40)) as pilot:
        app.frame_now()
        await pilot.pause()
        curves = app.screen.query_one(Curves)
        assert len(set(drawn)) > 3
        drawn.clear()
        curves.snapshot = replace(curves.snapshot, tokens=1)
        assert drawn == []
        series = Series()
        series.push(1, 0.5)
        changed = {**curves.snapshot.series, "kl": series.view()}
        curves.snapshot = replace(curves.snapshot, series=changed)
        assert drawn == ["KL to reference"]
        app.change_theme(LIGHT)
        await pilot.pause()
        assert len(set(drawn)) > 3
