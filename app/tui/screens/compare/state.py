"""What the Compare screen shows: frozen values, how keys change them, and how they are read."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import fmean

from grpo_engine.frozen import frozen
from grpo_engine.metrics import is_stderr, spec
from grpo_tui.app.charts.series import SMOOTHINGS
from grpo_tui.app.charts.stored import Charts, CurveRequest
from grpo_tui.app.text.comparison import (
    GREEDY,
    MAIN_METRICS,
    columns_of,
    ranking_of,
    run_name,
    setting_name,
)
from grpo_tui.app.text.numbers import value_text
from grpo_tui.app.text.run_text import run_summary
from grpo_tui.app.tui.screens.priorities import Part, shared_lines
from grpo_tui.experiments.compare.runs import AMOUNTS, compare, only_recorded
from grpo_tui.experiments.compare.values import Comparison, MetricCell, MetricComparison
from grpo_tui.experiments.errors import RunNotFoundError
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.values import GroupView, RunSummary

PAGES = ("settings", "ranking", "metrics", "answers")
NOTHING = Comparison(
    runs=(), baseline=None, at="", differing=(), same={}, metrics=(), seeds=(), notes=()
)
NO_CHARTS = Charts()
MARKS = "●■✚○□✱◇△✦◉"  # neither ▲ nor ▼, better and worse
ORIGINS = ("pinned", "eval", "train")
LATE_STEPS = 20  # training prompts of this many last steps are offered for comparing answers
MAX_PROMPTS = 200
MAX_LISTED = 2000  # runs to choose from
MAX_DESCRIBED = 30  # a screen of them has the settings that differ: 1.4 ms each
MAX_CHANGES = 3


def measure_of(comparison: Comparison) -> str:
    """The metric that the verdict is by: held-out accuracy, sampled if it can be; or none.

    Runs that are not ranked, such as those of one setting, have it all the same.
    """
    ranking = ranking_of(comparison)
    if ranking is None:
        keys = {item.key for item in comparison.metrics}
        return next((key for key in ("eval/accuracy", f"{GREEDY}accuracy") if key in keys), "")
    return f"{GREEDY}accuracy" if ranking.mode == "greedy" else "eval/accuracy"


def first_metrics(keys: Sequence[str]) -> tuple[str, ...]:
    """The metrics that are drawn until others are chosen."""
    return tuple(key for key in MAIN_METRICS if key in keys) or tuple(keys[:4])


def end_of(run: RunSummary, axis: str) -> float:
    """Where a run ends on the axis."""
    return float(getattr(run, AMOUNTS[axis]))


def common_end(runs: Sequence[RunSummary], axis: str) -> float:
    """Where the shortest run ends, ignoring runs without a finished step."""
    return min((end for run in runs if (end := end_of(run, axis)) > 0), default=0.0)


ONE_COLUMN, TWO_PAGES = 110, 160  # cells up to which there is one column; from which two pages


def rows_of(
    height: int, *, sentences: int, page: int, legend: int, focused: str = ""
) -> dict[str, int]:
    """The lines of the screen's parts by the questions that they answer; what is cut last is first.

    The sentences, the page and the legend can use so many lines.
    """
    parts = (
        Part("verdict", sentences, sentences, title=0),  # which is better, and how sure
        Part("page", 7, max(7, min(page, 2 * height // 5))),  # what each setting changes
        Part("curves", 6),  # when it does
        Part("runs", min(legend, 5), min(legend, 3 + height // 5)),  # which run is which
    )
    return shared_lines(parts, height, focused)


@dataclass(frozen=True, slots=True)
class Marker:
    """The mark and colour that identify a run; the mark alone is enough."""

    mark: str
    colour: str

    @property
    def span(self) -> tuple[str, str]:
        """The mark in its colour."""
        return self.mark, f"bold {self.colour}"


@dataclass(frozen=True, slots=True)
class Prompt:
    """An example that at least one of the runs has answered."""

    example_key: str
    text: str
    target: str
    origin: str


@frozen
class PromptCompletions:
    """Each run's answers to one prompt, up to a position on the axis."""

    prompt: Prompt
    groups: dict[str, GroupView | None]


@frozen
class CompareView:
    """The screen's state; every change returns a new one."""

    refs: tuple[str, ...] = ()
    slots: Mapping[str, int] = field(default_factory=dict)  # of marks and colours, by run
    requested: tuple[RunSummary, ...] = ()  # of which a comparison is being read
    comparison: Comparison = NOTHING
    charts: Charts = NO_CHARTS
    baseline: str = ""
    run: int = 0
    metrics: tuple[str, ...] = ()
    chart: int = 0
    axis: str = "step"
    smooth: int = 3
    bands: bool = False  # whether seeds are pooled: in charts as bands, in tables as means
    at: float | None = None
    page: str = "metrics"
    row: int = 0
    everything: bool = False
    filter: str = ""
    prompts: tuple[Prompt, ...] | None = None
    prompt: int = 0
    completions: PromptCompletions | None = None

    # -- runs -------------------------------------------------------------------------------

    @property
    def runs(self) -> tuple[RunSummary, ...]:
        """The compared runs, in their order."""
        return self.comparison.runs

    @property
    def chosen(self) -> RunSummary | None:
        """The run under the cursor."""
        runs = self.runs
        return runs[min(self.run, len(runs) - 1)] if runs else None

    @property
    def base(self) -> RunSummary | None:
        """The baseline run."""
        return next((run for run in self.runs if run.id == self.comparison.baseline), None)

    @property
    def columns(self) -> tuple[tuple[str, ...], ...]:
        """The runs of each column of a table: those of a setting where seeds are pooled."""
        return columns_of(self.comparison, pooled=self.bands)

    @property
    def reading(self) -> bool:
        """Whether the requested runs are not those shown yet."""
        return bool(self.refs) and {run.id for run in self.runs} != set(self.refs)

    @property
    def displayed(self) -> "CompareView":
        """What the panels show: while runs are read, nothing of those that were compared before."""
        if not self.reading:
            return self
        return replace(self, comparison=NOTHING, charts=NO_CHARTS, metrics=())

    @property
    def column(self) -> tuple[str, ...]:
        """The runs of the chosen run's column."""
        return self._column_of(self.chosen)

    @property
    def base_column(self) -> tuple[str, ...]:
        """The runs of the baseline's column."""
        return self._column_of(self.base)

    def _column_of(self, run: RunSummary | None) -> tuple[str, ...]:
        return next((runs for runs in self.columns if run and run.id in runs), ())

    def name(self, run: RunSummary) -> str:
        """A run's name, followed by its id if two runs share the name."""
        return run_name(run, self.runs)

    def column_name(self, runs: Sequence[str]) -> str:
        """The name of a column's run or setting."""
        return setting_name(self.comparison, runs).removesuffix(f" ({len(runs)} seeds)")

    def marker(self, run: str) -> Marker:
        """Mark and colour of a run, unchanged when other runs are added or removed.

        Where seeds are pooled they have those of their setting.
        """
        if self.bands:
            run = next((runs[0] for runs in self.columns if run in runs), run)
        slot = self.slots.get(run, 0)
        turn = slot + slot // len(MARKS)
        return Marker(MARKS[turn % len(MARKS)], f"cycle.{slot}")

    def with_refs(self, refs: Sequence[str]) -> "CompareView":
        """Compare these runs; those already present keep their mark and colour."""
        slots = {ref: slot for ref, slot in self.slots.items() if ref in refs}
        for ref in refs:
            used = set(slots.values())
            slots.setdefault(ref, next(n for n in range(len(used) + 1) if n not in used))
        return replace(
            self,
            refs=tuple(refs),
            slots=slots,
            requested=(),
            at=None,
            baseline=self.baseline if self.baseline in refs else next(iter(refs), ""),
            prompts=None,
            completions=None,
            row=0,
            comparison=self.comparison if refs else NOTHING,
            charts=self.charts if refs else NO_CHARTS,
            run=min(self.run, max(0, len(refs) - 1)),
        )

    def request(self, metrics: Sequence[str], wide: int) -> CurveRequest:
        """The curves of these metrics in so many columns of pixels."""
        return CurveRequest(
            runs=self.runs,
            metrics=tuple(metrics),
            axis=self.axis,
            smoothing=self.smoothing,
            wide=wide,
            seeds=self.comparison.seeds if self.bands else (),
        )

    # -- metrics ----------------------------------------------------------------------------

    @property
    def metric(self) -> str:
        """The metric of the chart under the cursor."""
        return self.metrics[min(self.chart, len(self.metrics) - 1)] if self.metrics else ""

    def metric_keys(self) -> tuple[str, ...]:
        """Every metric that at least one of the runs has."""
        return tuple(item.key for item in self.comparison.metrics)

    def with_comparison(self, comparison: Comparison) -> "CompareView":
        """Show a loaded comparison, keeping charts and cursors where possible.

        The first one of several runs decides what comes first: the ranking with seeds as bands, or
        the chart of what the verdict is by.
        """
        keys = [item.key for item in comparison.metrics]
        metrics = tuple(key for key in self.metrics if key in keys)
        if not metrics or {*self.metrics} == {*first_metrics(self.metric_keys())}:
            metrics = tuple(dict.fromkeys((*metrics, *first_metrics(keys))))
        chart = metrics.index(self.metric) if self.metric in metrics else self.chart
        page, bands = self.page, self.bands
        if len(self.runs) < 2:
            measure = measure_of(comparison)
            if measure in metrics:
                metrics, chart = tuple(dict.fromkeys((measure, *metrics))), 0
            bands = any(len(group) < len(comparison.runs) for group in comparison.seeds)
            if bands or any(len(ranking.settings) > 2 for ranking in comparison.rankings):
                page = "ranking"
        return replace(
            self,
            comparison=comparison,
            page=page,
            bands=bands,
            metrics=metrics,
            chart=min(chart, max(0, len(metrics) - 1)),
        )

    @property
    def rows(self) -> tuple[MetricComparison, ...]:
        """The metrics of the table that match the search, what the verdict is by first."""
        items = [item for item in self.comparison.metrics if not is_stderr(item.key)]
        measure, text = measure_of(self.comparison), self.filter.casefold()
        rows = [item for item in items if text in f"{item.key} {spec(item.key).label}".casefold()]
        return tuple(sorted(rows, key=lambda item: item.key != measure))

    def cell(self, key: str, run: str) -> MetricCell | None:
        """One run's numbers of a metric."""
        ids = [item.id for item in self.runs]
        item = next((item for item in self.comparison.metrics if item.key == key), None)
        return item.cells[ids.index(run)] if item and run in ids else None

    def values(self, key: str, runs: Sequence[str]) -> tuple[list[float], set[int]]:
        """A metric of a column's runs where the crosshair is, and the steps that it is of."""
        cells = [cell for run in runs if (cell := self.cell(key, run)) and cell.at is not None]
        return [cell.at or 0.0 for cell in cells], {cell.at_step or 0 for cell in cells}

    def delta(self, key: str, runs: Sequence[str], base: Sequence[str]) -> float | None:
        """The mean of some runs less that of the baseline's; none for the baseline itself.

        A value from before training is compared with others from before training only, and no
        reward with one that was given otherwise.
        """
        if key in self.comparison.incomparable:
            return None
        values, steps = self.values(key, runs)
        other, base_steps = self.values(key, base)
        if runs == base or not values or not other or (0 in steps) != (0 in base_steps):
            return None
        return fmean(values) - fmean(other)

    # -- axis and crosshair -----------------------------------------------------------------

    @property
    def smoothing(self) -> float:
        """The weight of the previous average in the next one."""
        return SMOOTHINGS[self.smooth]

    @property
    def longest(self) -> float:
        """Where the longest run ends."""
        return max((end_of(run, self.axis) for run in self.runs), default=0.0)

    @property
    def x(self) -> float:
        """The crosshair's position, by default where the shortest run ends."""
        return self.at if self.at is not None else common_end(self.runs, self.axis)

    def moved(self, cells: int, width: int) -> "CompareView":
        """Move the crosshair by this many chart cells, but at least one step."""
        if not self.runs:
            return self
        size = (self.charts.span or self.longest) / max(1, width)
        if self.axis == "step":
            size = float(max(1, round(size)))
        return self.with_crosshair(self.x + cells * size)

    def with_crosshair(self, x: float) -> "CompareView":
        """Move the crosshair to a position on the axis, within the longest run."""
        x = float(round(x)) if self.axis == "step" and math.isfinite(x) else x
        return replace(self, at=max(0.0, min(self.longest, x)))

    def value_at_x(self, key: str, runs: Sequence[str]) -> tuple[float | None, int]:
        """A metric's last numbers up to the crosshair: their mean over runs, and the first step."""
        chart = self.charts.charts.get(key)
        read = [
            chart.series[run].at(chart.positions[run], self.x)
            for run in runs
            if chart and run in chart.series
        ]
        values = [value for value, _ in read if value is not None]
        return fmean(values) if values else None, min(
            (step for _, step in read if step is not None), default=0
        )

    # -- pages ------------------------------------------------------------------------------

    def settings(self) -> dict[str, list[list[object]]]:
        """The values of each setting in each column, by run; equal ones only on request."""
        comparison, count = self.comparison, len(self.runs)
        rows = {item.path: item.values for item in comparison.differing}
        if self.everything or count == 1:
            rows |= {item.path: item.values for item in comparison.by_recipe}
            rows |= {path: (value,) * count for path, value in comparison.same.items()}
        text, index = self.filter.casefold(), {run.id: i for i, run in enumerate(self.runs)}
        return {
            path: [[values[index[run]] for run in runs] for runs in self.columns]
            for path, values in rows.items()
            if text in path.casefold()
        }


# -- what the store answers ---------------------------------------------------------------------


def load_runs(reader: StoreReader, refs: Sequence[str]) -> tuple[RunSummary, ...]:
    """The runs that are still stored."""
    runs: dict[int, RunSummary] = {}
    for ref in refs:
        with suppress(RunNotFoundError):
            run = reader.resolve(ref)
            runs.setdefault(run.key, run)
    return tuple(runs.values())


def load_comparison(
    reader: StoreReader, refs: Sequence[str], baseline: str, axis: str, at: float | None
) -> Comparison:
    """Compare the runs that are still stored where the shortest one ends.

    Their metrics are also read at a position on the axis.
    """
    ordered = load_runs(reader, refs)
    if not ordered:
        return NOTHING
    base = next((run for run in ordered if run.id == baseline), ordered[0])
    return compare(
        reader, ordered, baseline=base, axis=axis, at=common_end(ordered, axis), values_at=at
    )


def list_runs(
    reader: StoreReader, text: str, base: RunSummary | None
) -> list[tuple[RunSummary, str]]:
    """The runs that match a filter, each described in a line; the newest with their changes."""
    runs = reader.runs(text, limit=MAX_LISTED)
    settings = reader.settings(base.key, in_force=True) if base else {}
    return [
        (run, run_summary(run, _changes(reader, run, settings) if index < MAX_DESCRIBED else []))
        for index, run in enumerate(runs)
    ]


def _changes(reader: StoreReader, run: RunSummary, other: dict[str, object]) -> list[str]:
    """Some settings in which a run differs from another, as `beta 0.4`."""
    return [
        f"{path.rpartition('.')[2]} {value_text(value)}"
        for path, value in reader.settings(run.key, in_force=True).items()
        if path in other
        and path not in ("name", "seed")
        and not only_recorded(path)
        and value_text(value) != value_text(other[path])
    ][:MAX_CHANGES]


def load_prompts(reader: StoreReader, runs: Sequence[RunSummary]) -> tuple[Prompt, ...]:
    """Prompts that the runs have answered: those that more runs share first, then by `ORIGINS`."""
    prompts: dict[str, Prompt] = {}
    sampled_by: dict[str, set[int]] = {}
    for origin in ORIGINS:
        for run in runs:
            since = max(0, run.step - LATE_STEPS) if origin == "train" else 0
            for key, (text, target) in reader.examples(run.key, origin, since=since).items():
                prompts.setdefault(key, Prompt(key, text, target, origin))
                sampled_by.setdefault(key, set()).add(run.key)
    order = sorted(prompts.values(), key=lambda prompt: -len(sampled_by[prompt.example_key]))
    return tuple(order[:MAX_PROMPTS])


def load_completions(
    reader: StoreReader, runs: Sequence[RunSummary], prompt: Prompt, axis: str, at: float
) -> PromptCompletions:
    """Return each run's latest answers to a prompt, up to a position on the axis."""
    groups: dict[str, GroupView | None] = {}
    for run in runs:
        step = max(0, reader.step_within(run.key, AMOUNTS[axis], at))
        groups[run.id] = reader.last_group(run.key, prompt.example_key, step)
    return PromptCompletions(prompt=prompt, groups=groups)
