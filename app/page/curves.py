"""Curves of a page: what Watch draws, cut to as many points as a screen has columns."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from grpo_engine.metrics import natural_range, spec
from grpo_tui.app.charts.series import EVALUATIONS, Series, band, cut
from grpo_tui.app.text.comparison import MAIN_METRICS
from grpo_tui.app.text.safe_text import safe
from grpo_tui.experiments.values import RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

Line = Sequence[RunSummary]  # a run, or the seeds of a setting
POINTS = 1000  # of a curve; those of a longer one have the range of the values that they stand for
MORE_METRICS = ("loss", "grad_norm", "tokens_per_second")


def charts(
    reader: "StoreReader", lines: Sequence[Line], *, everything: bool = False
) -> list[dict[str, Any]]:
    """The charts of the main metrics and rewards, or of all metrics that are no interval."""
    runs = [run for line in lines for run in line]
    keys = list(dict.fromkeys(key for run in runs for key in reader.metric_keys(run.key)))
    rewards = [key for key in keys if key.startswith("rewards/") and key.endswith("/mean")]
    listed = [key for key in (*MAIN_METRICS, *rewards, *MORE_METRICS) if key in keys]
    if everything:
        listed += [key for key in keys if key not in listed and not key.endswith(("_low", "_high"))]
    return [_chart(reader, lines, key) for key in listed]


def _chart(reader: "StoreReader", lines: Sequence[Line], key: str) -> dict[str, Any]:
    read = [[_series(reader, run, key) for run in line] for line in lines]
    present = [series for line in read for series in line if series.count]
    first = min((series.steps[0] for series in present), default=0)
    span = max((series.last_step for series in present), default=0) - first
    drawn = []
    for index, (line, all_series) in enumerate(zip(lines, read, strict=True)):
        if not any(series.count for series in all_series):
            continue
        traces = [cut(series, series.steps, span, POINTS, first) for series in all_series]
        trace = traces[0] if len(traces) == 1 else band(traces, natural_range(key))
        columns = trace.columns
        points: dict[str, Iterable[float]] = {
            "x": [first + item.x * span / (POINTS - 1) for item in columns],
            "y": [item.end for item in columns],
            "low": [item.low for item in columns],
            "high": [item.high for item in columns],
        }
        if len(line) == 1 and len(all_series[0].steps) <= POINTS:  # the steps themselves
            series = all_series[0]
            points |= {"x": series.steps, "y": series.line, "low": series.values}
            points |= {"high": series.values, **_interval(reader, line[0], key, series)}
        drawn.append({"line": index} | {name: _numbers(values) for name, values in points.items()})
    metric = spec(key)
    return {"key": safe(key), "label": safe(metric.label), "unit": metric.unit, "lines": drawn}


def _series(reader: "StoreReader", run: RunSummary, key: str) -> Series:
    stored = reader.metric_series(run.key, key)
    return Series.of(key, stored.steps, stored.values)


def _interval(
    reader: "StoreReader", run: RunSummary, key: str, series: Series
) -> dict[str, Sequence[float]]:
    """The 95 % interval of a held-out metric in place of its values, where there is one."""
    ends: dict[str, Sequence[float]] = {}
    for end in ("low", "high") if key.startswith(EVALUATIONS) else ():
        stored = reader.metric_series(run.key, f"{key}_{end}")
        values = dict(zip(stored.steps, stored.values, strict=True))
        if values:
            ends[end] = [values.get(step, math.nan) for step in series.steps]
    return ends


def _numbers(values: Iterable[float]) -> list[float | None]:
    """Numbers with six digits, which no screen tells from all of them; None for gaps."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]
