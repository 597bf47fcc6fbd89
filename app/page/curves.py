"""Curves of a page, cut to as many points as a screen has columns."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from grpo_engine.metrics import spec
from grpo_tui.app.charts.lines import Curve, Runs, curve_of
from grpo_tui.app.text.comparison import MAIN_METRICS
from grpo_tui.app.text.safe_text import safe

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

POINTS = 1000  # of a curve; those of a longer one have the range of the values that they stand for
MORE_METRICS = ("loss", "grad_norm", "tokens_per_second")


def charts(
    reader: "StoreReader", lines: Sequence[Runs], *, everything: bool = False
) -> list[dict[str, Any]]:
    """The charts of the main metrics and rewards, or of all metrics that are no interval."""
    runs = [run for line in lines for run in line]
    keys = list(dict.fromkeys(key for run in runs for key in reader.metric_keys(run.key)))
    rewards = [key for key in keys if key.startswith("rewards/") and key.endswith("/mean")]
    listed = [key for key in (*MAIN_METRICS, *rewards, *MORE_METRICS) if key in keys]
    if everything:
        listed += [key for key in keys if key not in listed and not key.endswith(("_low", "_high"))]
    return [_chart(reader, lines, key) for key in listed]


def _chart(reader: "StoreReader", lines: Sequence[Runs], key: str) -> dict[str, Any]:
    metric = spec(key)
    curves = ((index, curve_of(reader, line, key)) for index, line in enumerate(lines))
    curve_lines = [{"line": index, **_points(curve)} for index, curve in curves if curve]
    return {
        "key": safe(key),
        "label": safe(metric.label),
        "unit": metric.unit,
        "lines": curve_lines,
    }


def _points(curve: Curve) -> dict[str, list[float | None]]:
    """The curve's points; of a long curve one for as many steps as a column stands for."""
    size = -(-len(curve.steps) // POINTS)
    starts = range(0, len(curve.steps), size)
    low = (_finite(min, curve.low[start : start + size]) for start in starts)
    high = (_finite(max, curve.high[start : start + size]) for start in starts)
    ends = [min(start + size, len(curve.steps)) - 1 for start in starts]
    return {
        "x": _numbers(curve.steps[end] for end in ends),
        "y": _numbers(curve.values[end] for end in ends),
        "low": _numbers(low),
        "high": _numbers(high),
    }


def _finite(choose: Any, values: Iterable[float]) -> float:
    return float(choose(filter(math.isfinite, values), default=math.nan))


def _numbers(values: Iterable[float]) -> list[float | None]:
    """Numbers with six digits, which no screen tells from all of them; None for gaps."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]
