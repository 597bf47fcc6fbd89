"""The charts of Watch as lines: which there are, their titles, guide lines and axis."""

import math
from dataclasses import replace

import pytest

from grpo_engine.metrics import METRICS
from grpo_tui.app.charts.series import Series
from grpo_tui.app.feed.snapshot import Head, Snapshot
from grpo_tui.app.tui.looks.colours import PALETTES
from grpo_tui.app.tui.screens.watch.render import chart_lines
from grpo_tui.app.tui.screens.watch.state import (
    FIXED,
    Chart,
    charts_of,
    guides_of,
    last_step,
)
from grpo_tui.app.tui.widgets.charts.plot import LABELS, axis_line, ticks_of
from grpo_tui.app.tui.widgets.panel import Line


def view(*values: float, key: str = "reward", smoothing: float = 0.0) -> Series:
    return Series.of(key, range(1, len(values) + 1), values, smoothing)


def snapshot(step: int = 3, total: int = 3, config: object = None, **series: Series) -> Snapshot:
    named = {key.replace("__", "/"): value for key, value in series.items()}
    head = Head(total_steps=total, config=config or {})  # type: ignore[arg-type]
    return Snapshot(step=step, head=head, series=named)


def written(line: Line) -> str:
    return "".join(text for text, _ in line)


def test_every_chart_is_of_known_metrics_and_colours() -> None:
    for chart in FIXED:
        assert set(chart.keys) <= set(METRICS)
        assert all(name in PALETTES["dark"].marks["series"] for name in chart.family)
        assert len(chart.family) == len(chart.keys)
    assert {chart.title for chart in FIXED if guides_of(chart, snapshot())} == {
        "KL to reference",
        "clipped",
        "answers cut",
    }


def test_a_run_has_the_charts_of_its_metrics_with_reward_and_its_functions_first() -> None:
    found = charts_of(
        snapshot(
            loss=view(1.0),
            reward=view(1.0),
            rewards__exact__mean=view(1.0),
            rewards__exact__std=view(1.0),
            rewards__form__mean=view(1.0),
            other__form__mean=view(1.0),
        )
    )
    assert [chart.title for chart in found] == ["reward", "loss"]
    assert found[0].keys == ("reward", "rewards/exact/mean", "rewards/form/mean")
    assert found[0].names == ("", "exact", "form")
    assert found[0].family == ("reward",)
    assert charts_of(snapshot()) == ()


def limits(chart: Chart, shown: Snapshot) -> list[float]:
    return [value for value, _ in guides_of(chart, shown)]


def test_guide_lines_are_the_runs_thresholds_of_alerts() -> None:
    chart = {one.title: one for one in FIXED}
    plain = snapshot()
    assert limits(chart["KL to reference"], plain) == [0.1]
    assert limits(chart["clipped"], plain) == [0.3]
    assert limits(chart["answers cut"], plain) == [0.5]
    assert limits(chart["entropy"], plain) == []
    own = snapshot(config={"alerts": {"kl": 0.25}})
    assert limits(chart["KL to reference"], own) == [0.25]
    assert limits(chart["clipped"], own) == [0.3]


def test_a_metric_that_never_changes_comes_last_once_it_has_ten_values() -> None:
    def titles(count: int, *last: float) -> list[str]:
        found = charts_of(
            snapshot(
                reward=view(*[1.0] * 20),
                kl=view(*[0.5] * count, *last),
                loss=view(1.0, 2.0),
                learning_rate=view(*[1e-3] * count),
            )
        )
        return [chart.title for chart in found]

    assert titles(9) == ["reward", "KL to reference", "loss", "learning rate"]
    assert titles(10) == ["reward", "loss", "KL to reference", "learning rate"]
    assert titles(10, 0.6) == ["reward", "KL to reference", "loss", "learning rate"]
    assert titles(10, math.nan, 0.5) == ["reward", "KL to reference", "loss", "learning rate"]


def test_an_evaluation_that_is_older_than_the_step_says_of_which_step_it_is() -> None:
    accuracy = view(0.25, 0.5, key="eval/accuracy")
    for step, width, expected in (
        (2, 50, "50% ▲25.0 since step 1"),
        (2, 40, "50% ▲25.0 since 1"),
        (2, 34, "50%"),
        (3, 60, "50% ▲25.0 since step 1, at step 2"),
        (3, 50, "50% ▲25.0 since 1, at step 2"),
        (3, 40, "50% at step 2"),
        (3, 31, "50% @2"),
    ):
        shown = snapshot(step=step, eval__accuracy=accuracy)
        (chart,) = charts_of(shown)
        title = written(chart_lines(chart, shown, width, 4, chosen=False)[0])
        assert title.split("accuracy")[1].strip() == expected


def test_a_guide_line_within_the_range_is_drawn_through_the_empty_cells_of_its_row() -> None:
    shown = snapshot(kl=view(0.0, 0.05, 0.2))
    (chart,) = charts_of(shown)
    # 5 rows of 20 dots; .1 of 0 to .2 is at dot 9.5, drawn as 9 or 10, in row 2
    title, *lines = map(written, chart_lines(chart, shown, 40, 6, chosen=False))
    assert [row for row, line in enumerate(lines) if "┈" in line] == [2]
    assert "limit" not in title  # once is enough
    assert " limit .1 " in lines[2]
    plot = lines[2][LABELS:]
    assert " " not in plot.replace(" limit .1 ", "")
    above = snapshot(kl=view(0.5, 0.6, 0.7))  # from .1: the lowest value needs no line
    assert "┈" not in "".join(map(written, chart_lines(chart, above, 40, 6, chosen=False)))
    below = snapshot(kl=view(0.0, 0.01, 0.02))
    assert "┈" not in "".join(map(written, chart_lines(chart, below, 40, 6, chosen=False)))


def test_a_tall_chart_has_a_grid_behind_its_curve_and_a_low_one_has_none() -> None:
    shown = snapshot(step=60, total=60, loss=view(*[step / 60 for step in range(60)]))
    (chart,) = charts_of(shown)
    low, tall = (chart_lines(chart, shown, 67, height, chosen=False)[1:] for height in (6, 21))
    assert not any("─" in written(line) or "│" in written(line) for line in low)
    labels = [written(line)[:LABELS].strip() for line in tall]
    assert [label for label in labels if label] == ["1", ".8", ".6", ".4", ".2", "0"]
    for line, label in zip(tall, labels, strict=True):
        assert ("─" in written(line)) is bool(label)
    # 60 columns of cells: steps 20 and 40 are a third and two thirds of the way
    at = [x - LABELS for x, char in enumerate(written(tall[1])) if char == "│"]
    assert at == [20, 39]
    dots = [sum(char > "⠀" for char in written(line)[LABELS:]) for line in tall]
    assert sum(dots) >= 60  # the curve is whole
    shown = snapshot(step=60, total=60, kl=view(*[0.08 * step / 60 for step in range(60)]))
    (chart,) = charts_of(shown)
    kl = "".join(map(written, chart_lines(chart, shown, 67, 21, chosen=False)))
    assert " limit .1 over 5 steps " in kl  # the grid leaves its spaces alone
    axis = written(axis_line("step 60", 67, ticks_of(60, 60)))
    assert axis.split() == ["0", "20", "40", "step", "60"]


def test_two_measurements_are_two_points_and_no_slope() -> None:
    shown = snapshot(
        step=60, total=60, eval__accuracy=Series.of("eval/accuracy", (0, 60), (0.3, 0.9))
    )
    (chart,) = charts_of(shown)
    lines = [written(line)[LABELS:] for line in chart_lines(chart, shown, 67, 9, chosen=False)[1:]]
    assert "".join(lines).count("●") == 2
    # a full line would have a dot in each of the 60 columns of cells; a dash is as long as a gap
    dotted = {x for line in lines for x, char in enumerate(line) if char > "⠀" and char != "●"}
    assert 20 <= len(dotted) <= 40


def test_a_crosshair_has_the_values_of_all_curves_at_its_step() -> None:
    shown = snapshot(
        step=3,
        reward=view(0.5, 1.5, 2.0),
        rewards__exact__mean=view(0.25, 0.75, 1.0),
        rewards__form__mean=view(0.1, 0.2, 0.3),
    )
    (chart,) = charts_of(shown)
    title, exact, form, *plot = chart_lines(chart, shown, 60, 12, chosen=False, at=2)
    assert written(title).split()[-4:] == ["1.5", "at", "step", "2"]
    assert [written(line).split()[2] for line in (exact, form)] == [".75", ".2"]
    crossed = [written(line).index("│") for line in plot if "│" in written(line)]
    assert len(crossed) == len(plot) - 3  # each curve has one cell of its column
    assert len({*crossed}) == 1


def test_a_logarithmic_chart_leaves_out_what_is_not_above_0_and_says_so() -> None:
    shown = snapshot(step=4, total=4, kl=view(0.0, 0.001, 0.01, 0.1))
    (chart,) = charts_of(shown)
    title, *plot = chart_lines(chart, shown, 60, 10, chosen=False, log=True)
    assert "log axis, 1 value ≤ 0 not drawn" in written(title)
    labels = [written(line)[:LABELS].strip() for line in plot]
    assert [label for label in labels if label] == [".1", ".01", ".001"]
    shown = snapshot(loss=view(-1.0, 0.0))
    (chart,) = charts_of(shown)
    title, *plot = chart_lines(chart, shown, 60, 10, chosen=False, log=True)
    assert "no value is above 0" in written(title)
    assert plot == chart_lines(chart, shown, 60, 10, chosen=False)[1:]


def test_the_axis_of_steps_ends_at_the_last_step() -> None:
    assert last_step(snapshot(step=0, total=500)) == 1
    assert last_step(snapshot(step=3, total=3)) == 3
    assert last_step(snapshot(step=21, total=500)) == 21


@pytest.mark.parametrize(("step", "total", "end"), [(3, 60, 3), (21, 500, 25), (137, 500, 140)])
def test_the_axis_of_a_run_that_goes_on_ends_at_a_round_step(
    step: int, total: int, end: int
) -> None:
    assert last_step(replace(snapshot(step, total), status="running")) == end
    assert last_step(replace(snapshot(step, step), status="running")) == step


def test_the_axis_has_its_last_step_at_its_right_end() -> None:
    line = written(axis_line("step 60", 40))
    assert line == " " * LABELS + "0" + " " * (40 - LABELS - 8) + "step 60"
    assert written(axis_line("step 123456", 10)) == " " * LABELS + "0 step 123456"


def test_no_value_is_no_dot_and_no_label() -> None:
    shown = snapshot(reward=view(math.nan, math.nan))
    (chart,) = charts_of(shown)
    lines = chart_lines(chart, shown, 40, 5, chosen=False)[1:]
    assert {written(line).strip() for line in lines} == {""}
