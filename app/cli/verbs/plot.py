"""`grpo-tui plot`: plot the curves of one or several runs in the terminal, or as a figure."""

from collections.abc import Sequence
from pathlib import Path
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
    out: Annotated[
        Path | None, typer.Option(help="A figure for papers: .svg, .png or .pdf.")
    ] = None,
    with_data: Annotated[
        bool, typer.Option("--data", help="Write the numbers of the figure beside it, as CSV.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Draw metrics over the steps, a chart for each metric and a curve for each run.

    A chart is as wide as the terminal; in a pipe it has no colours. JSON has the stored values.
    In a figure runs that differ only in their seed are one line, their mean with its 95% interval.

    Example: grpo-tui plot calm-otter brave-fox --metric reward --metric kl --out curves.pdf
    """
    from grpo_tui.app.cli.curves import metric_chart, terminal

    if as_json and out is not None:
        raise typer.BadParameter(f"--json prints: leave --out {out} away, or write > {out}")
    if with_data and out is None:
        raise typer.BadParameter("--data writes the numbers of a figure: add --out curves.pdf")
    keys = metric or ["reward"]
    with reading() as reader:
        selected = resolve_all(reader, runs)
        read = {key: _series(reader, selected, key) for key in keys}
        if out is not None:
            _write_figure(reader, selected, keys, smooth, out, with_data=with_data)
            return
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


def _write_figure(
    reader: "StoreReader",
    runs: Sequence[RunSummary],
    keys: Sequence[str],
    smooth: float,
    out: Path,
    *,
    with_data: bool,
) -> None:
    from grpo_tui.app.charts.figure import FORMATS, header, rows, save
    from grpo_tui.app.charts.lines import curve_of
    from grpo_tui.app.text.comparison import names_of_settings
    from grpo_tui.experiments.export.files import replacing, write_rows

    ending = out.suffix.lower()
    if ending not in FORMATS:
        raise typer.BadParameter(f"--out {out}: a figure is {', '.join(FORMATS)}")
    named = names_of_settings(reader, runs)
    curves = {
        key: {
            name: curve
            for name, members in named.items()
            if (curve := curve_of(reader, members, key, smooth)) is not None
        }
        for key in keys
    }
    with replacing(out) as part:
        save(curves, part, ending[1:])
    print_stderr(f"wrote {out}")
    if with_data:
        write_rows(rows(curves), "csv", out.with_suffix(".csv"), header=header())
        print_stderr(f"wrote {out.with_suffix('.csv')}")


def _series(reader: "StoreReader", runs: Sequence[RunSummary], key: str) -> list[MetricSeries]:
    """Return the metric of each run; raise if none has it, warn for each run that lacks it."""
    check_metric(reader, runs, key)
    series_list = [reader.metric_series(run.key, key) for run in runs]
    for run, series in zip(runs, series_list, strict=True):
        if not series.steps:
            print_stderr(f"{run.name} has no {key}")
    return series_list
