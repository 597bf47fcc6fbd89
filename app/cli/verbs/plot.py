"""`grpo-tui plot`: plot the curves of one or several runs in the terminal."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpo_tui.app.cli.output import print_json
from grpo_tui.app.cli.params import Db, Json, Metrics, Runs
from grpo_tui.app.cli.store_access import reading, resolve_all
from grpo_tui.app.text.stderr import print_stderr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grpo_tui.experiments.reader import StoreReader
    from grpo_tui.experiments.values import MetricSeries, RunSummary

    Read = dict[str, list[MetricSeries]]  # by metric, in the order of the runs


def plot(
    runs: Runs,
    metric: Metrics = None,
    smooth: Annotated[
        float,
        typer.Option(min=0.0, max=0.999, help="Moving average, as on Watch with 0.9; 0 is none."),
    ] = 0.0,
    as_json: Json = False,
    db: Db = None,
) -> None:
    """Draw metrics over the steps, a chart for each metric and a curve for each run.

    A chart is as wide as the terminal; in a pipe it has no colours. JSON has the stored values.

    Example: grpo-tui plot calm-otter brave-fox --metric reward --metric kl --smooth 0.9
    """
    with reading(db) as reader:
        series_list = resolve_all(reader, runs)
        keys = list(dict.fromkeys(metric or ["reward"]))
        read = {key: _series(reader, series_list, key) for key in keys}
    if as_json:
        print_json(_json(series_list, read))
    else:
        _draw(series_list, read, smooth)


def _series(reader: "StoreReader", runs: "Sequence[RunSummary]", key: str) -> "list[MetricSeries]":
    """Return the metric of each run; raise if none has it, warn for each run that lacks it."""
    from grpo_engine.errors import nearest, quoted
    from grpo_tui.experiments.errors import QueryError

    series_list = [reader.metric_series(run.key, key) for run in runs]
    if not any(series.steps for series in series_list):
        keys = {name for run in runs for name in reader.metric_keys(run.key)}
        raise QueryError(f"there is no metric {quoted(key)} here{nearest(key, sorted(keys))}")
    for run, series in zip(runs, series_list, strict=True):
        if not series.steps:
            print_stderr(f"{run.name} has no {key}")
    return series_list


def _json(runs: "Sequence[RunSummary]", read: "Read") -> list[dict[str, Any]]:
    return [
        {"metric": key, "run": run.id, "name": run.name, "steps": series.steps,
         "values": series.values}
        for key, series_list in read.items() for run, series in zip(runs, series_list, strict=True)
    ]  # fmt: skip


def _draw(runs: "Sequence[RunSummary]", read: "Read", smooth: float) -> None:
    from grpo_tui.app.cli.curves import metric_chart, terminal

    names = [run.name for run in runs]
    for key, series_list in read.items():
        pairs = zip(names, series_list, strict=True)
        print("\n".join(metric_chart(key, pairs, terminal(), smooth=smooth)))
