"""Curves of a page: what Watch draws, cut to as many points as a screen has columns."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from grpo_engine.metrics import spec
from grpo_tui.app.charts.series import EVALUATIONS, Series, cut
from grpo_tui.app.text.comparison import MAIN_METRICS
from grpo_tui.experiments.values import RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

POINTS = 1000  # of a curve; those of a longer one have the range of the values that they stand for
MORE_METRICS = ("loss", "grad_norm", "tokens_per_second")


def charts(
    reader: "StoreReader", runs: Sequence[RunSummary], *, everything: bool = False
) -> list[dict[str, Any]]:
    """The charts of the main metrics and rewards, or of all metrics that are no interval."""
    keys = list(dict.fromkeys(key for run in runs for key in reader.metric_keys(run.key)))
    rewards = [key for key in keys if key.startswith("rewards/") and key.endswith("/mean")]
    listed = [key for key in (*MAIN_METRICS, *rewards, *MORE_METRICS) if key in keys]
    if everything:
        listed += [key for key in keys if key not in listed and not key.endswith(("_low", "_high"))]
    return [_chart(reader, runs, key) for key in listed]


def _chart(reader: "StoreReader", runs: Sequence[RunSummary], key: str) -> dict[str, Any]:
    lines = []
    for index, run in enumerate(runs):
        stored = reader.metric_series(run.key, key)
        series = Series.of(key, stored.steps, stored.values)
        if series.count:
            lines.append({"run": index, **_points(series), **_interval(reader, run, key, series)})
    metric = spec(key)
    return {"key": key, "label": metric.label, "unit": metric.unit, "lines": lines}


def _points(series: Series) -> dict[str, list[float | None]]:
    """Steps, the curve, and the recorded values around it."""
    steps, line = list(map(float, series.steps)), list(series.line)
    low = high = list(series.values)
    if len(steps) > POINTS:
        first, span = steps[0], steps[-1] - steps[0]
        columns = cut(series, series.steps, span, POINTS, first).columns
        steps = [first + item.x * span / (POINTS - 1) for item in columns]
        line = [item.end for item in columns]
        low, high = [item.low for item in columns], [item.high for item in columns]
    return {
        name: _numbers(v)
        for name, v in zip(("x", "y", "low", "high"), (steps, line, low, high), strict=True)
    }


def _interval(
    reader: "StoreReader", run: RunSummary, key: str, series: Series
) -> dict[str, list[float | None]]:
    """The 95 % interval of a held-out metric in place of the range, where there is one."""
    if not key.startswith(EVALUATIONS) or len(series.steps) > POINTS:
        return {}
    ends = {}
    for end in ("low", "high"):
        stored = reader.metric_series(run.key, f"{key}_{end}")
        values = dict(zip(stored.steps, stored.values, strict=True))
        ends[end] = _numbers(values.get(step, math.nan) for step in series.steps)
    return ends if any(value is not None for value in ends["low"]) else {}


def _numbers(values: Iterable[float]) -> list[float | None]:
    """Numbers with six digits, which no screen tells from all of them; None for gaps."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]
