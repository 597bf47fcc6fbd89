"""One chart of several runs: marks, guide lines, crosshair, title and axes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.app.charts.stored import ChartData, CurveLoader
from grpo_tui.app.text.safe_text import cell_len
from grpo_tui.app.tui.screens.compare.render import (
    chart_lines,
    curves_of,
    plot_of,
    readout,
)
from grpo_tui.app.tui.screens.compare.state import CompareView
from grpo_tui.app.tui.widgets.charts.plot import (
    LABELS,
    Cell,
    Readout,
    axis_of,
    cross_column,
    cross_position,
    named,
)
from grpo_tui.app.tui.widgets.panel import Line
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.values import RunSummary
from tests.app.tui.test_chart_truth import Points, Stored, compared
from tests.app.tui.test_chart_truth import made as made


def view_of(
    made: RunSummary, key: str, runs: list[Points], width: int = 40, **looks: object
) -> CompareView:
    view, request = compared(made, key, runs, **looks)
    reader = cast("StoreReader", Stored(runs))
    return replace(view, charts=CurveLoader().charts(reader, replace(request, wide=2 * width)))


def chart_of(view: CompareView) -> ChartData:
    assert view.charts.charts
    (chart,) = view.charts.charts.values()
    return chart


def drawn(view: CompareView, width: int = 40, height: int = 6) -> Sequence[Sequence[Cell]]:
    return plot_of(view.metric, chart_of(view), view, width, height)[0]


def lines_of(view: CompareView, width: int, height: int) -> list[Line]:
    plotted = plot_of(view.metric, chart_of(view), view, width, height)
    return chart_lines(view.metric, view, plotted, width + LABELS)[1:]


def text_of(one: Readout, name_cells: int = 24) -> str:
    return written(named([one], name_cells)[0])


def readouts(view: CompareView) -> list[Readout]:
    return [readout(view.metric, view, runs) for runs in view.columns]


def written(line: Line) -> str:
    return "".join(text for text, _ in line)


def marks(cells: Sequence[Sequence[Cell]], mark: str) -> list[tuple[int, int]]:
    return [(x, y) for y, row in enumerate(cells) for x, cell in enumerate(row) if cell[0] == mark]


def rising(steps: int, top: float = 1.0) -> Points:
    return [(step, top * step / steps) for step in range(steps + 1)]


# -- marks --------------------------------------------------------------------------------------


def test_each_value_of_a_sparse_curve_has_a_mark(made: RunSummary) -> None:
    view = view_of(made, "eval/accuracy", [[(0, 0.0), (20, 0.5), (40, 1.0)]])
    # 80 dots: step 20 is at dot 39.5, drawn as 40, in cell 20; .5 of 24 dots is row 11 or 12
    assert marks(drawn(view), "●") == [(39, 0), (20, 2), (0, 5)]
    cell = drawn(view)[0][39]
    assert cell == view.marker("r0").span


# -- what is drawn ------------------------------------------------------------------------------


def test_the_chosen_run_is_in_front_with_its_range(
    made: RunSummary,
) -> None:
    view = view_of(made, "reward", [rising(20), rising(20), rising(20)], smooth=3, run=1)
    found = curves_of(chart_of(view), view)
    assert [one.mark for one in found] == ["●", "✚", "■"]  # from back to front
    assert [one.ranged for one in found] == [False, False, True]
    raw = view_of(made, "reward", [rising(20)], smooth=0)
    (one,) = curves_of(chart_of(raw), raw)
    assert not one.ranged
    sparse = view_of(made, "loss", [[(0, 0.0), (9, 1.0)]], smooth=3)
    (one,) = curves_of(chart_of(sparse), sparse)
    assert not one.ranged


@pytest.mark.parametrize(("run", "front"), [(0, "●"), (1, "●"), (2, "✚"), (3, "✚")])
def test_the_band_of_the_chosen_run_is_in_front(made: RunSummary, run: int, front: str) -> None:
    view = view_of(made, "reward", [rising(20)] * 4, bands=True, run=run)
    shape = chart_of(view).traces["r0", "r1", "r2", "r3"]
    groups = ("r0", "r1"), ("r2", "r3")
    chart = replace(chart_of(view), traces=dict.fromkeys(groups, shape))
    assert view.comparison is not None
    found = curves_of(chart, replace(view, comparison=replace(view.comparison, seeds=groups)))
    assert {one.mark for one in found} == {"●", "✚"}
    assert found[-1].mark == front


def test_the_range_of_the_axis_is_of_what_is_drawn(made: RunSummary) -> None:
    spiky = [(step, 10.0 if step == 5 else 1.0) for step in range(20)]
    calm = [(step, 1.0 + step / 20) for step in range(20)]
    front = view_of(made, "reward", [spiky, calm], smooth=3)
    assert axis_of("reward", curves_of(chart_of(front), front), 5).high == 10.0
    behind = replace(front, run=1)
    assert axis_of("reward", curves_of(chart_of(behind), behind), 5).high < 4
    raw = view_of(made, "reward", [spiky, calm], smooth=0, run=1)
    curves = curves_of(chart_of(raw), raw)
    assert axis_of("reward", curves, 5).high == 10.0


# -- crosshair ----------------------------------------------------------------------------------


def test_the_crosshair_is_in_the_column_of_its_step(made: RunSummary) -> None:
    view = view_of(made, "reward", [rising(40)], smooth=0, at=20.0)
    lines = lines_of(view, 40, 6)
    # 80 dots: step 20 is at dot 39.5, drawn as 40, in cell 20
    columns = {written(line)[LABELS:].index("│") for line in lines if "│" in written(line)}
    assert columns == {20}
    assert sum("│" in written(line) for line in lines) == 5  # all but the row of the curve
    for line in lines:
        assert cell_len(written(line)) == 40 + LABELS
    assert [text for text, _ in lines[0]][1:3] == [" " * 20, "│"]  # as few pieces as there can be
    assert [cross_column(x, 40.0, 40) for x in (0.0, 20.0, 40.0, 99.0)] == [0, 20, 39, 39]
    (look,) = {look for line in lines for text, look in line if text == "│"}
    assert look is not None


@given(st.integers(1, 200), st.floats(1e-3, 1e9), st.data())
def test_a_click_puts_the_crosshair_where_it_was_clicked(
    width: int, span: float, data: st.DataObject
) -> None:
    cell = data.draw(st.integers(0, width - 1))
    x = cross_position(cell, span, width)
    assert 0 < x < span
    assert cross_column(x, span, width) == cell
    # between the two dots of cell c, 2 c and 2 c + 1, of dots 0 to 2 width - 1
    assert x * (2 * width - 1) / span == pytest.approx(2 * cell + 0.5)


# -- title and axis -----------------------------------------------------------------------------


def test_the_value_of_a_run_that_ended_before_the_crosshair_is_grey(made: RunSummary) -> None:
    view = view_of(
        made, "eval/accuracy", [[(0, 0.36), (20, 0.86)], [(0, 0.34), (10, 0.5)]], at=20.0
    )
    # the second run ended at step 10: its value is grey
    before = replace(view, at=10.0)
    after = readouts(view)[1].value_style
    there = readouts(before)[1].value_style
    assert after == "label"
    assert there == view.marker("r1").colour
    mark = readouts(view)[1].mark
    assert mark == ("■ ", f"bold {view.marker('r1').colour}")


def test_a_band_reads_as_the_mean_of_its_seeds(made: RunSummary) -> None:
    view = view_of(made, "reward", [rising(20), rising(20, 3.0)], bands=True, at=20.0, smooth=0)
    assert [text_of(one) for one in readouts(view)] == ["● 2 seeds 2"]
    apart = replace(view, bands=False)
    named = [text_of(one) for one in readouts(apart)]
    assert named == ["● run-0 1", "■ run-1 3"]
    nothing = replace(view, bands=False, at=-1.0)
    unknown = [text_of(one, 0) for one in readouts(nothing)]
    assert unknown == ["● –", "■ –"]
