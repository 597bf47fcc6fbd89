"""The charts of Watch as lines: which there are, their titles, guide lines and axis."""

import math

from grpo_engine.metrics import METRICS
from grpo_tui.app.charts.series import Series
from grpo_tui.app.feed.snapshot import Head, Snapshot
from grpo_tui.app.tui.looks.colours import PALETTES
from grpo_tui.app.tui.screens.watch.render import chart_lines
from grpo_tui.app.tui.screens.watch.state import (
    FIXED,
    GUIDES,
    Chart,
    charts_of,
    guides_of,
    last_step,
)
from grpo_tui.app.tui.widgets.charts.plot import LABELS, axis_line
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
    assert {chart.title for chart in FIXED if chart.keys[0] in GUIDES} == {
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
        (2, 50, "50% ▲25.0"),
        (3, 50, "50% ▲25.0 at step 2"),
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


def test_the_axis_of_steps_ends_at_the_total_or_at_a_step_not_reached_yet() -> None:
    assert last_step(snapshot(step=3, total=3)) == 3
    assert last_step(snapshot(step=3, total=500)) == 20
    assert last_step(snapshot(step=21, total=500)) == 30
    line = written(axis_line("step 60", 40))
    assert line == " " * LABELS + "0" + " " * (40 - LABELS - 8) + "step 60"
    assert written(axis_line("step 123456", 10)) == " " * LABELS + "0 step 123456"


def test_no_value_is_no_dot_and_no_label() -> None:
    shown = snapshot(reward=view(math.nan, math.nan))
    (chart,) = charts_of(shown)
    lines = chart_lines(chart, shown, 40, 5, chosen=False)[1:]
    assert {written(line).strip() for line in lines} == {""}
