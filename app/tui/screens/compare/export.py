"""What Compare shows as rows of a file, and its curves as a figure."""

from collections.abc import Iterator
from math import nan
from pathlib import Path
from statistics import fmean

from grpo_engine.metrics import natural_range
from grpo_tui.app.charts.lines import Curve, curve_of
from grpo_tui.app.charts.stored import ChartData, CurveLoader
from grpo_tui.app.text.comparison import setting_name
from grpo_tui.app.text.numbers import value_text
from grpo_tui.app.tui.screens.compare.state import CompareView
from grpo_tui.experiments.compare.statistics import mean_interval
from grpo_tui.experiments.export.rows import Row, rollout_row
from grpo_tui.experiments.reader import StoreReader

FINE = 4000  # positions on an axis of tokens or time at which seeds are averaged


def table_rows(view: CompareView) -> Iterator[Row]:
    """The rows of the page that is shown, in full precision."""
    pages = {
        "settings": _settings,
        "ranking": _ranking,
        "metrics": _metrics,
        "answers": _answers,
    }
    return pages[view.page](view)


def _settings(view: CompareView) -> Iterator[Row]:
    for path, by_column in view.settings().items():
        row: Row = {"setting": path}
        for runs, values in zip(view.columns, by_column, strict=True):
            texts = dict.fromkeys(map(value_text, values))
            row[view.column_name(runs)] = values[0] if len(texts) == 1 else ", ".join(texts)
        yield row


def _metrics(view: CompareView) -> Iterator[Row]:
    """Values where the crosshair is; over seeds their mean and its 95% interval."""
    for metric in view.rows:
        row: Row = {"metric": metric.key, "better": metric.direction, "at": view.comparison.at}
        for runs in view.columns:
            name = view.column_name(runs)
            values, steps = view.values(metric.key, runs)
            row[name] = fmean(values) if values else None
            row[f"{name} step"] = max(steps, default=None)
            if len(runs) > 1:
                limits = natural_range(metric.key)
                row[f"{name} low"], row[f"{name} high"] = mean_interval(values, limits)
        yield row


def _ranking(view: CompareView) -> Iterator[Row]:
    """The settings from best to worst, then what each value of a setting changes."""
    for ranking in view.comparison.rankings:
        for item in ranking.settings:
            test, reached = item.test, item.reached
            yield {
                "answers": ranking.mode,
                "problems": ranking.problems,
                "setting": setting_name(view.comparison, item.own.runs),
                "seeds": len(item.own.runs),
                "right": item.own.share,
                "difference": test and test.difference,
                "low": test and test.low,
                "high": test and test.high,
                "p": test and test.p_value,
                "may be best": item.may_be_best,
                "reached": reached.runs,
                "step": reached.step,
                "tokens": reached.tokens,
                "seconds": reached.seconds,
            }
        for effect in ranking.effects:
            yield {
                "answers": ranking.mode,
                "problems": ranking.problems,
                "setting": f"{effect.path} {value_text(effect.base)} → {value_text(effect.value)}",
                "right": effect.share,
                "difference": effect.difference,
                "low": effect.low,
                "high": effect.high,
                "p": effect.p_value,
            }


def _answers(view: CompareView) -> Iterator[Row]:
    groups = view.completions.groups if view.completions is not None else {}
    for run in view.runs:
        if (group := groups.get(run.id)) is not None:
            yield from (rollout_row(run.id, group, rollout) for rollout in group.rollouts)


# -- curves -------------------------------------------------------------------------------------


def read_curves(store: Path, view: CompareView, key: str) -> dict[str, dict[str, Curve]]:
    """The whole curves of a metric, on the axis and with the smoothing and bands of the screen."""
    with StoreReader(store) as reader:
        if view.axis == "step":
            by_id = {run.id: run for run in view.runs}
            members = {runs: [by_id[run] for run in runs] for runs in view.columns}
            read = {
                runs: curve_of(reader, runs_of, key, view.smoothing)
                for runs, runs_of in members.items()
            }
        else:
            charts = CurveLoader().charts(reader, view.request([key], FINE))
            chart = charts.charts[key]
            read = {
                runs: _curve(chart, runs, charts.span, smooth=view.smoothing > 0)
                for runs in view.columns
            }
    return {key: {view.column_name(runs): curve for runs, curve in read.items() if curve}}


def _curve(chart: ChartData, runs: tuple[str, ...], span: float, *, smooth: bool) -> Curve | None:
    """A run's curve by its positions on the axis; that of several seeds by columns of pixels."""
    if runs not in chart.traces:
        return None
    if len(runs) == 1:
        series, at = chart.series[runs[0]], chart.positions[runs[0]]
        return Curve(
            steps=at,
            values=series.line,
            recorded=series.values,
            low=series.values,
            high=series.values,
        )
    trace = chart.traces[runs]
    columns, is_smoothed = trace.columns, smooth and not trace.sparse
    recorded = [nan if is_smoothed else item.end for item in columns]
    return Curve.of_band(columns, recorded, span / (FINE - 1))
