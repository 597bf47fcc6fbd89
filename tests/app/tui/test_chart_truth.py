"""Every point of every curve is within half a dot of where its stored value belongs.

Read from the picture back to the numbers: labels give the range, dots the values.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_tui.app.charts.series import SMOOTHING, Series
from grpo_tui.app.charts.stored import CurveLoader, CurveRequest
from grpo_tui.app.cli.curves import ChartOptions, metric_chart
from grpo_tui.app.feed.snapshot import Head, Snapshot
from grpo_tui.app.text.numbers import BARS, sparkline
from grpo_tui.app.tui.screens.compare.state import CompareView
from grpo_tui.app.tui.screens.watch.render import chart_lines, curve_colour
from grpo_tui.app.tui.screens.watch.state import charts_of
from grpo_tui.app.tui.widgets.charts.plot import LABELS
from grpo_tui.experiments.compare.values import Comparison
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.values import MetricSeries, RunSummary
from tests.app.pictures import Picture, on_lines, read
from tests.app.stored import record, run_events

EXAMPLES = settings().max_examples // 2
Points = list[tuple[int, float]]
SHARES = st.sampled_from([0.0, 1.0, 0.25, 0.5, 0.36, 0.86]) | st.floats(0, 1, width=32)
NUMBERS = st.sampled_from([0.0, 1.0, -0.0032, -0.003, 7.0, 1200.0]) | st.floats(-1e4, 1e4, width=32)
SMALL = st.floats(-(2.0**-7), 2.0**-7, width=32) | st.floats(2.0**-23, 2.0**-13, width=32)
KINDS = {
    "eval/accuracy": SHARES,
    "completions/clipped_ratio": SHARES,
    "reward": NUMBERS,
    "loss": SMALL,
}


@st.composite
def stored(draw: st.DrawFn, values: st.SearchStrategy[float], most: int = 60) -> Points:
    """Steps with values: at each step or at some, with gaps, constants and a resumed part."""
    every = draw(st.sampled_from([1, 1, 1, 2, 4, 10]))
    first = draw(st.sampled_from([0, 1]))
    count = draw(st.integers(1, max(1, most // every)))
    one = st.just(draw(values)) if draw(st.integers(0, 4)) == 0 else values
    one = one | st.just(math.nan) if draw(st.booleans()) else one
    steps = [first + every * place for place in range(count)]
    if draw(st.booleans()):
        steps.append(steps[-1] + draw(st.integers(1, every)))  # the last evaluation, off the grid
    return [(step, draw(one)) for step in steps]


def finite(points: Points) -> Points:
    return [(step, value) for step, value in points if math.isfinite(value)]


def is_sparse(key: str, points: Points) -> bool:
    """Whether at least half of the steps have no value."""
    return key.startswith("eval/") or 2 * len(points) <= points[-1][0] - points[0][0] + 2


def averages(points: Points, smoothing: float) -> Points:
    """The debiased average by its definition: weights b^k for the value k numbers ago."""
    found: Points = []
    for step, value in points:
        known = [v for s, v in points if s <= step and math.isfinite(v)]
        weights = [smoothing**k for k in range(len(known))][::-1]
        total = math.fsum(w * v for w, v in zip(weights, known, strict=True))
        mean = total / math.fsum(weights) if known and math.isfinite(value) else math.nan
        found.append((step, mean))
    return found


def pieces(points: Points) -> list[Points]:
    """The points between gaps."""
    found: list[Points] = [[]]
    for step, value in points:
        if math.isfinite(value):
            found[-1].append((step, value))
        else:
            found.append([])
    return [piece for piece in found if piece]


def line_is_true(picture: Picture, colour: str, line: Points, last: float) -> None:
    """Each point has its dot, and each dot is on the line."""
    inset = picture.inset[0]

    def dot(step: float, value: float) -> tuple[float, float]:
        width = picture.wide - 1 - 2 * inset
        return inset + step * width / (last or 1), picture.place(value)

    for step, value in finite(line):
        assert picture.near(colour, *dot(step, value)), (step, value, dot(step, value))
    paths = [[dot(*point) for point in piece] for piece in pieces(line)]
    for at in picture.dots[colour]:
        assert on_lines(at, paths), at


# -- Watch --------------------------------------------------------------------------------------


def watched(key: str, points: Points, total: int, resumed: Points = []) -> Snapshot:  # noqa: B006
    series = Series.of(key).extended(*zip(*points, strict=True))
    if resumed:
        series = series.until(resumed[0][0] - 1).extended(*zip(*resumed, strict=True))
    step = (resumed or points)[-1][0]
    return Snapshot(step=step, head=Head(total_steps=total), series={key: series})


@st.composite
def runs_of(draw: st.DrawFn) -> tuple[str, Points, Points]:
    key = draw(st.sampled_from(sorted(KINDS)))
    points = draw(stored(KINDS[key]))
    resumed: Points = []
    if draw(st.integers(0, 2)) == 0:
        back = draw(st.integers(points[0][0], points[-1][0]))
        resumed = [(step + back + 1, value) for step, value in draw(stored(KINDS[key], 20))]
    return key, points, resumed


@settings(deadline=None, max_examples=EXAMPLES)
@given(runs_of(), st.integers(12, 60), st.integers(3, 12), st.integers(0, 90))
@example(("eval/accuracy", [(0, 0.36), (4, 0.5), (8, 0.86), (12, 0.86)], []), 40, 6, 12)
@example(("completions/clipped_ratio", [(1, 0.0), (2, 0.0)], []), 40, 6, 2)
@example(("loss", [(1, -0.0032), (2, -0.0028), (3, -0.003)], []), 40, 4, 3)
def test_on_watch_each_dot_is_where_its_value_belongs(
    run: tuple[str, Points, Points], width: int, height: int, total: int
) -> None:
    key, points, resumed = run
    snapshot = watched(key, points, total, resumed)
    if resumed:
        points = [(s, v) for s, v in points if s < resumed[0][0]] + resumed
    (chart,) = charts_of(snapshot)
    lines = chart_lines(chart, snapshot, LABELS + width, height, False)[1:]
    if not finite(points):
        return
    last = max(1, snapshot.step)
    picture = read(lines, LABELS)
    colour = curve_colour(chart, 0)
    sparse = is_sparse(key, points)
    line = points if sparse else averages(points, SMOOTHING)
    line_is_true(picture, colour, line, last)
    if not sparse:
        for step, value in finite(points):  # the faint range below the line
            x, y = step * (picture.wide - 1) / (last or 1), picture.place(value)
            assert picture.near("raw", x, y), (step, value)


# -- Compare ------------------------------------------------------------------------------------


class Stored:
    """What a `StoreReader` says of some runs, from numbers in memory."""

    def __init__(self, runs: Sequence[Points], tokens: int = 100) -> None:
        self.runs, self.tokens = runs, tokens

    def metric_series(self, run: int, key: str, after: int = -1) -> MetricSeries:
        kept = [(step, value) for step, value in self.runs[run] if step > after]
        steps, values = zip(*kept, strict=True) if kept else ((), ())
        return MetricSeries(run=run, key=key, steps=steps, values=values)

    def steps(self, run: int) -> tuple[SimpleNamespace, ...]:
        return tuple(
            SimpleNamespace(
                step=step, elapsed=0.7 * step + 0.1 * run, tokens=self.tokens * (run + 1) * step
            )
            for step in range(1, self.runs[run][-1][0] + 1)
        )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    """A stored run."""
    path = tmp_path_factory.mktemp("one") / "s.db"
    record(path, run_events(steps=2))
    with StoreReader(path) as reader:
        return reader.runs()[0]


def compared(
    summary: RunSummary, key: str, lines: Sequence[Points], **looks: Any
) -> tuple[CompareView, CurveRequest]:
    """The Compare screen's view of some runs of one metric."""
    runs = tuple(
        replace(
            summary,
            key=place,
            id=f"r{place}",
            name=f"run-{place}",
            step=points[-1][0],
            tokens=100 * (place + 1) * points[-1][0],
            status="completed",
            attempts=1,
            elapsed=0.7 * points[-1][0] + 0.1 * place,
            total_steps=points[-1][0],
        )
        for place, points in enumerate(lines)
    )
    group = tuple(run.id for run in runs)
    seeds = (group,) if len(runs) > 1 else ()
    view = CompareView(
        refs=group,
        slots={run.id: i for i, run in enumerate(runs)},
        comparison=Comparison(
            runs=runs,
            baseline="r0",
            at="",
            differing=(),
            same={},
            metrics=(),
            seeds=seeds,
            notes=(),
        ),
        metrics=(key,),
        **looks,
    )
    return view, CurveRequest(
        runs=runs,
        metrics=(key,),
        axis=view.axis,
        smoothing=view.smoothing,
        wide=80,
        seeds=(view.refs,) if view.bands else (),
    )


@st.composite
def several(draw: st.DrawFn) -> tuple[str, list[Points]]:
    key = draw(st.sampled_from(sorted(KINDS)))
    return key, draw(st.lists(stored(KINDS[key]), min_size=1, max_size=3))


def test_seeds_of_different_speed_are_averaged_where_both_are(
    made: RunSummary,
) -> None:
    # run 1 makes twice as many tokens a step: its rise from 0 to 1 takes twice as far
    lines = [[(step, step / 8) for step in range(9)] for _ in range(2)]
    _, request = compared(made, "reward", lines, bands=True, axis="tokens", smooth=0)
    reader = cast("StoreReader", Stored(lines))
    charts = CurveLoader().charts(reader, replace(request, wide=65))
    mean = charts.charts[request.metrics[0]].traces[request.seeds[0]]
    # at half of the axis run 0 ends at 1 while run 1 is at .5; from there it is alone
    found = {item.x: item.end for item in mean.columns}
    assert found[32] == pytest.approx(0.75)
    assert found[16] == pytest.approx((0.5 + 0.25) / 2)
    assert found[64] == pytest.approx(1.0)


# -- Runs ---------------------------------------------------------------------------------------


@given(st.lists(NUMBERS | st.just(math.nan), min_size=1, max_size=50), st.integers(1, 30))
@example([0.1, 0.1, 0.1, 0.1], 2)
def test_each_bar_of_a_sparkline_is_within_half_a_level_of_its_mean(
    values: list[float], width: int
) -> None:
    bars = sparkline(values, width)
    count = len(values)
    edges = [i * count // width for i in range(width + 1)] if count > width else range(count + 1)
    parts = [[v for v in values[a:b] if math.isfinite(v)] for a, b in pairwise(edges)]
    means = [math.fsum(part) / len(part) if part else None for part in parts]
    known = [mean for mean in means if mean is not None]
    assert len(bars) == len(parts)
    for bar, mean in zip(bars, means, strict=True):
        if mean is None:
            assert bar == " "
        elif max(known) - min(known) <= 1e-9 * max(map(abs, known)):
            assert bar == bars.strip()[0]
        else:
            level = 7 * (mean - min(known)) / (max(known) - min(known))
            assert abs(BARS.index(bar) - level) <= 0.5 + 1e-6


# -- the command line ---------------------------------------------------------------------------


def printed(lines: Iterable[str]) -> Picture:
    """The picture in printed lines."""
    rows = [line for line in lines if "┤" in line or "│" in line]
    edge = min(line.index("┤") if "┤" in line else line.index("│") for line in rows)
    inside = [line[:edge].ljust(edge) + " " + line[edge + 1 :].rstrip("│") for line in rows]
    wide = max(map(len, inside))
    picture = read([[(line.ljust(wide), "")] for line in inside], edge + 1)
    picture.inset = 0.5, 1.5  # plotext's axes end at the middles of cells, where its ticks are
    return picture


@settings(deadline=None, max_examples=EXAMPLES)
@given(several(), st.integers(40, 90), st.sampled_from([0.0, 0.9]))
@example(("reward", [[(1, 0.1), (2, 0.1), (3, 0.1)]]), 60, 0.9)
@example(("completions/clipped_ratio", [[(0, 1.0), (1, 0.04987)]]), 40, 0.0)
def test_in_the_shell_each_dot_is_where_its_value_belongs(
    runs: tuple[str, list[Points]], width: int, smooth: float
) -> None:
    key, lines = runs
    points = lines[0]
    series = MetricSeries(
        run=1, key=key, steps=tuple(s for s, _ in points), values=tuple(v for _, v in points)
    )
    found = metric_chart(key, [("otter", series)], ChartOptions(width=width), smooth=smooth)
    known = finite(points)
    if not known:
        return
    picture = printed(found)
    sparse = is_sparse(key, points)
    line = points if sparse or not smooth else averages(points, smooth)
    first, last = known[0][0], known[-1][0]
    shifted = [(step - first, value) for step, value in line]
    if last > first:
        line_is_true(picture, "", shifted, last - first)
    steps = [int(text) for text in found[-1].split()]
    assert (steps[0], steps[-1]) == (first, last)
