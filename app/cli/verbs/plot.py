"""`grpo-tui plot`: plot the curves of one or several runs in the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from grpo_tui.app.cli.output import print_json
from grpo_tui.app.cli.params import Json, Metrics, Runs
from grpo_tui.app.cli.store_access import check_metric, reading, resolve_all
from grpo_tui.app.text.stderr import print_stderr
from grpo_tui.experiments.values import MetricSeries, RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader


def plot(
    runs: Runs,
    metric: Metrics = None,
    smooth: Annotated[
        float,
        typer.Option(min=0.0, max=0.999, help="Moving average, as on Watch with 0.9; 0 is none."),
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Draw metrics over the steps, a chart for each metric and a curve for each run.

    A chart is as wide as the terminal; in a pipe it has no colours. JSON has the stored values.

    Example: grpo-tui plot calm-otter brave-fox --metric reward --metric kl --smooth 0.9
    """
    from grpo_tui.app.cli.curves import metric_chart, terminal

    with reading() as reader:
        selected = resolve_all(reader, runs)
        read = {key: _series(reader, selected, key) for key in metric or ["reward"]}
    if as_json:
        print_json(
            [
                {
                    "metric": key,
                    "run": run.id,
                    "name": run.name,
                    "steps": series.steps,
                    "values": series.values,
                }
                for key, series_list in read.items()
                for run, series in zip(selected, series_list, strict=True)
            ]
        )
        return
    for key, series_list in read.items():
        pairs = zip((run.name for run in selected), series_list, strict=True)
        print("\n".join(metric_chart(key, pairs, terminal(), smooth=smooth)))


def _series(reader: "StoreReader", runs: Sequence[RunSummary], key: str) -> list[MetricSeries]:
    """Return the metric of each run; raise if none has it, warn for each run that lacks it."""
    check_metric(reader, runs, key)
    series_list = [reader.metric_series(run.key, key) for run in runs]
    for run, series in zip(runs, series_list, strict=True):
        if not series.steps:
            print_stderr(f"{run.name} has no {key}")
    return series_list
