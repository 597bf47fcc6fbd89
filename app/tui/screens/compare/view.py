"""What the Compare screen shows: runs, charts, crosshair and selection."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from grpo_engine.metrics import spec
from grpo_tui.app.charts.series import SMOOTHINGS
from grpo_tui.app.charts.stored import Charts, StoredCurve
from grpo_tui.app.text.comparison import GREEDY, MAIN_METRICS, ranking_of, run_name, setting_name
from grpo_tui.app.tui.looks.colours import Palette
from grpo_tui.app.tui.screens.compare.load import (
    Answers,
    Prompt,
    common_end,
    end_of,
)
from grpo_tui.experiments.compare.values import Comparison, GridView, MetricCell, MetricComparison
from grpo_tui.experiments.values import RunSummary

Axis = Literal["step", "tokens", "wall"]
Stat = Literal["best", "last", "at"]
Page = Literal["ranking", "metrics", "settings", "seeds", "grid", "answers"]

AXES: tuple[Axis, ...] = ("step", "tokens", "wall")
STATS: tuple[Stat, ...] = ("last", "best", "at")
PAGES: tuple[Page, ...] = ("ranking", "metrics", "settings", "seeds", "grid", "answers")
MARKS = "●■✚○□✱◇△✦◉"  # neither ◆, the baseline, nor ▲ and ▼, better and worse
MOST_CURVES = 4  # more runs are drawn as bands from the start, where seeds can be pooled
LEAST_STEPS, MOST_ZOOM = 8.0, 1024.0
NOT_IN_A_GRID = ("name",)


def measure_of(found: Comparison | None, metric: str = "") -> str:
    """The metric that the verdict is by: held-out accuracy, greedy if `metric` is; or none."""
    ranking = ranking_of(found, metric) if found else None
    if ranking is None:
        return ""
    return f"{GREEDY}accuracy" if ranking.mode == "greedy" else "eval/accuracy"


def first_metrics(known: Sequence[str]) -> tuple[str, ...]:
    """The metrics that are drawn until others are chosen."""
    return tuple(key for key in MAIN_METRICS if key in known) or tuple(known[:4])


@dataclass(frozen=True, slots=True)
class Look:
    """The mark and colour that identify a run; the mark alone is enough."""

    mark: str
    colour: int


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The screen's state; every change returns a new one."""

    refs: tuple[str, ...] = ()
    slots: Mapping[str, int] = field(default_factory=dict)
    comparison: Comparison | None = None
    charts: Charts | None = None
    loaded: bool = False
    reading: bool = False  # whether the runs that were asked for are not those shown yet
    problem: str = ""
    newest: tuple[RunSummary, ...] = ()
    swept: bool = False  # whether any run is part of a sweep
    baseline: str = ""
    hidden: frozenset[str] = frozenset()
    run: int = 0
    metrics: tuple[str, ...] = ()
    chart: int = 0
    solo: bool = False
    axis: Axis = "step"
    log: bool = False
    smooth: int = 3
    bands: bool = False
    at: float | None = None
    reach: str = ""
    window: tuple[float, float] | None = None
    guides: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    stat: Stat = "last"
    page: Page = "metrics"
    row: int = 0
    everything: bool = False
    filter: str = ""
    prompts: tuple[Prompt, ...] | None = None
    prompt: int = 0
    answers: Answers | None = None
    scroll: int = 0
    grid: GridView | None = None
    grid_paths: tuple[str, str] | None = None

    # -- runs -------------------------------------------------------------------------------

    @property
    def runs(self) -> tuple[RunSummary, ...]:
        """The compared runs, in their order."""
        return self.comparison.runs if self.comparison else ()

    @property
    def drawn(self) -> tuple[RunSummary, ...]:
        """The runs whose curves are not hidden."""
        return tuple(run for run in self.runs if run.id not in self.hidden)

    @property
    def chosen(self) -> RunSummary | None:
        """The run under the cursor."""
        runs = self.runs
        return runs[min(self.run, len(runs) - 1)] if runs else None

    @property
    def base(self) -> RunSummary | None:
        """The baseline run."""
        wanted = self.comparison.baseline if self.comparison else None
        return next((run for run in self.runs if run.id == wanted), None)

    def name(self, run: RunSummary) -> str:
        """A run's name, followed by its id if two runs share the name."""
        return run_name(run, self.runs)

    def name_of(self, runs: Sequence[str]) -> str:
        """The name of the runs with these ids: one run's, or what several seeds share."""
        return setting_name(self.comparison, runs) if self.comparison else ""

    def look(self, run: str, palette: Palette) -> Look:
        """Mark and colour of a run, unchanged when other runs are added or removed."""
        slot = self.slots.get(run, 0)
        turn = slot + slot // len(MARKS)
        return Look(MARKS[turn % len(MARKS)], palette.cycle[slot % len(palette.cycle)])

    def with_refs(self, refs: Sequence[str], baseline: str = "") -> "View":
        """Compare these runs; those already present keep their mark and colour."""
        kept = {ref: slot for ref, slot in self.slots.items() if ref in refs}
        for ref in refs:
            if ref not in kept:
                taken = set(kept.values())
                kept[ref] = next(slot for slot in range(len(taken) + 1) if slot not in taken)
        base = baseline if baseline in refs else self.baseline
        return replace(
            self, refs=tuple(refs), slots=kept, hidden=self.hidden & set(refs), at=None,
            window=None,
            baseline=base if base in refs else (refs[0] if refs else ""), prompts=None,
            answers=None, grid=None, grid_paths=None, problem="", scroll=0, row=0,
            reading=bool(refs),
            comparison=self.comparison if refs else None, charts=self.charts if refs else None,
            run=min(self.run, max(0, len(refs) - 1)),
        )  # fmt: skip

    # -- metrics ----------------------------------------------------------------------------

    @property
    def metric(self) -> str:
        """The metric of the chart under the cursor."""
        return self.metrics[min(self.chart, len(self.metrics) - 1)] if self.metrics else ""

    def known_metrics(self) -> tuple[str, ...]:
        """Every metric that at least one of the runs has."""
        return tuple(item.key for item in self.comparison.metrics) if self.comparison else ()

    def with_comparison(self, found: Comparison | None) -> "View":
        """Show a loaded comparison, keeping charts and cursors where possible."""
        if found is None:
            return replace(self, comparison=None, charts=None, loaded=True, reading=False)
        known = [item.key for item in found.metrics]
        metrics = tuple(key for key in self.metrics if key in known)
        if not metrics or self.metrics == first_metrics(self.known_metrics()):
            metrics = first_metrics(known)
        chart = metrics.index(self.metric) if self.metric in metrics else self.chart
        page, bands = self.page, self.bands
        if len(self.runs) < 2:
            measure = measure_of(found)
            if measure in metrics:  # the chart of what the verdict is by comes first
                metrics = tuple(dict.fromkeys((measure, *metrics)))
                chart = 0
            bands = len(found.runs) > MOST_CURVES and bool(found.seeds)
            if bands or any(len(one.settings) > 2 for one in found.rankings):
                page = "ranking"
        return replace(
            self, comparison=found, page=page, bands=bands, metrics=metrics, loaded=True,
            reading=False, problem="", chart=min(chart, max(0, len(metrics) - 1)),
        )  # fmt: skip

    @property
    def stat_word(self) -> Stat:
        """Which value of each run counts: its best one only if the metric has one that does."""
        best = bool(self.metric) and spec(self.metric).best
        return "best" if self.stat == "best" and best else "last"

    @property
    def rows(self) -> tuple[MetricComparison, ...]:
        """The metrics of the table that match the search, what the verdict is by first."""
        found = self.comparison.metrics if self.comparison else ()
        measure = measure_of(self.comparison)
        wanted = self.filter.casefold()
        rows = [item for item in found if wanted in f"{item.key} {spec(item.key).label}".casefold()]
        return tuple(sorted(rows, key=lambda item: item.key != measure))

    def cell(self, key: str, run: str) -> MetricCell | None:
        """One run's numbers of a metric."""
        for item in self.comparison.metrics if self.comparison else ():
            if item.key == key:
                places = [one.id for one in self.runs]
                return item.cells[places.index(run)] if run in places else None
        return None

    # -- axis and crosshair -----------------------------------------------------------------

    @property
    def smoothing(self) -> float:
        """The weight of the previous average in the next one."""
        return SMOOTHINGS[self.smooth]

    def end(self, run: RunSummary) -> float:
        """Where a run ends on the axis."""
        return end_of(run, self.axis)

    @property
    def x(self) -> float:
        """The crosshair's position, by default where the shortest run ends."""
        return self.at if self.at is not None else common_end(self.runs, self.axis)

    def moved(self, cells: int, width: int) -> "View":
        """Move the crosshair by this many chart cells, but at least one step."""
        if not self.runs:
            return self
        longest = max(self.end(run) for run in self.runs)
        span = self.charts.span if self.charts else longest
        each = span / max(1, width)
        if self.axis == "step":
            each = float(max(1, round(each)))
        return self.put(self.x + cells * each).followed()

    def put(self, x: float) -> "View":
        """Move the crosshair to a position on the axis, within the longest run."""
        longest = max((self.end(run) for run in self.runs), default=0.0)
        x = float(round(x)) if self.axis == "step" and math.isfinite(x) else x
        return replace(self, at=max(0.0, min(longest, x)))

    @property
    def longest(self) -> float:
        """Where the longest run ends."""
        return max((self.end(run) for run in self.runs), default=0.0)

    def zoomed(self, by: int, around: float | None = None) -> "View":
        """Show half of the shown part of the axis, or twice as much, around the crosshair."""
        end = self.charts.span if self.charts and self.window is None else self.longest
        first, last = self.window or (0.0, end)
        around = min(max(self.x if around is None else around, first), last)
        factor = 0.5 if by > 0 else 2.0
        least = LEAST_STEPS if self.axis == "step" else end / MOST_ZOOM
        span = max(least, (last - first) * factor)
        if span >= self.longest:
            return replace(self, window=None)
        share = (around - first) / ((last - first) or 1.0)
        return self.windowed(around - share * span, span)

    def panned(self, by: int) -> "View":
        """Show an earlier or later part of the axis, a quarter of the shown part away."""
        if self.window is None:
            return self
        first, last = self.window
        return self.windowed(first + by * (last - first) / 4, last - first)

    def windowed(self, first: float, span: float) -> "View":
        """Show this part of the axis, moved to where the runs are."""
        first = max(0.0, min(self.longest - span, first))
        return replace(self, window=(first, first + span))

    def followed(self) -> "View":
        """Move the shown part of the axis to the crosshair, if it is outside."""
        if self.window is None or self.window[0] <= self.x <= self.window[1]:
            return self
        first, last = self.window
        return self.windowed(self.x - (0.0 if self.x < first else last - first), last - first)

    def curve(self, key: str, run: str) -> StoredCurve | None:
        """One run's curve of a metric, if loaded."""
        for chart in self.charts.charts if self.charts else ():
            if chart.key == key:
                return next((curve for curve in chart.curves if curve.run == run), None)
        return None

    def value_at_x(self, key: str, run: str) -> tuple[float | None, int | None]:
        """The last number of a metric up to the crosshair, and its step."""
        curve = self.curve(key, run)
        return curve.series.at(curve.positions, self.x) if curve else (None, None)

    # -- pages ------------------------------------------------------------------------------

    def settings(self) -> tuple[tuple[str, tuple[object, ...], bool], ...]:
        """Path, values by run, and whether they differ; equal ones only on request."""
        found = self.comparison
        if found is None:
            return ()
        rows = [(item.path, item.values, True) for item in found.differing]
        if self.everything or len(found.runs) == 1:
            rows += [(item.path, item.values, True) for item in found.by_recipe]
            count = len(found.runs)
            rows += [(path, (value,) * count, False) for path, value in found.same.items()]
        return tuple(row for row in rows if self.filter.casefold() in row[0].casefold())

    def grid_choices(self) -> tuple[str, ...]:
        """Settings that can span a grid; the seed only if too few others differ."""
        differing = self.comparison.differing if self.comparison else ()
        paths = [item.path for item in differing if item.path not in NOT_IN_A_GRID]
        free = [path for path in paths if path != "seed"]
        return tuple(free if len(free) >= 2 else [*free, *(["seed"] if "seed" in paths else [])])
