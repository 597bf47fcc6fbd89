"""`grpo-tui compare`: runs side by side, settings and metrics."""

from collections.abc import Sequence
from itertools import compress
from statistics import fmean
from typing import Annotated, Any

import typer

from grpo_engine.config.conditions import number_of
from grpo_engine.errors import quoted
from grpo_engine.events import BENCHMARK
from grpo_engine.metrics import spec, stderr_of
from grpo_tui.app.cli.output import print_json, print_table, print_text
from grpo_tui.app.cli.params import Json, Metrics, Runs, complete_runs
from grpo_tui.app.cli.store_access import check_metric, reading, resolve_all
from grpo_tui.app.text.comparison import (
    ARROWS,
    MAIN_METRICS,
    columns_of,
    comparison_json,
    effect_rows,
    effects_title,
    metric_name,
    phase_times,
    ranking_rows,
    ranking_title,
    rankings_of,
    setting_name,
    verdict,
)
from grpo_tui.app.text.numbers import with_stderr
from grpo_tui.app.text.stderr import print_stderr
from grpo_tui.app.text.table import Row
from grpo_tui.experiments.compare.values import Comparison, MetricCell
from grpo_tui.experiments.errors import QueryError

At = Annotated[
    str, typer.Option(help="Compare at equal step, tokens or wall, or e.g. tokens=50000.")
]
Reach = Annotated[
    str,
    typer.Option(
        help="What counts as reached: a held-out accuracy, or METRIC=VALUE. By default the "
        "baseline's last accuracy."
    ),
]


def compare(
    runs: Runs,
    baseline: Annotated[
        str, typer.Option(help="Show differences from this run.", autocompletion=complete_runs)
    ] = "",
    metric: Metrics = None,
    at: At = "",
    reach: Reach = "",
    all_settings: Annotated[
        bool, typer.Option("--all", help="Include every metric and equal settings.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say which setting is better and how sure that is; then times, settings, metrics.

    Runs that differ only in the seed are pooled. Each setting is compared with the baseline's on
    the same held-out problems, greedy and sampled answers apart. The 95% intervals cover other
    seeds and other problems, and hold for all settings at once (Bonferroni); with one seed per
    setting they cover problems only. "best?" is "no" where the leading setting is better for sure.
    "more seeds" or problems is how many would show the difference in 4 of 5 cases, if it is
    as large as measured.

    Example: grpo-tui compare calm-otter brave-fox --baseline calm-otter --reach .8
    """
    from grpo_tui.experiments.compare.runs import compare as compare_runs

    axis, value = _equal_work(at)
    with reading() as reader:
        selected = resolve_all(reader, [baseline, *runs] if baseline else runs)
        if len(selected) < 2:
            raise QueryError("a comparison needs two different runs")
        for key in filter(None, (*(metric or ()), reach.rpartition("=")[0])):
            check_metric(reader, selected, key)
        result = compare_runs(
            reader,
            selected,
            baseline=selected[0] if baseline else None,
            keys=metric or (),
            axis=axis,
            at=value,
            reach=reach,
        )
    if as_json:
        print_json(comparison_json(result, all_settings))
    else:
        print_page(result, all_settings, metric or MAIN_METRICS, axis)


def _equal_work(at: str) -> tuple[str, float | None]:
    axis, sign, text = at.partition("=")
    try:
        value = number_of(text) if sign else None
    except ValueError as error:
        raise typer.BadParameter(f"--at {axis}: {error}") from None
    if sign and (value is None or value < 0):
        raise typer.BadParameter(f"--at {axis}: {quoted(text)} is not a number from 0 on")
    return axis, value


def print_page(result: Comparison, all_settings: bool, keys: Sequence[str], axis: str) -> None:
    """Print the comparison for people: verdict, phase times, settings, metrics."""
    sentences = verdict(result, axis=axis)
    print_text(sentences)
    for note in result.notes:
        if note not in sentences:
            print_stderr(note)
    for ranking in rankings_of(result):
        print_text(f"\n{ranking_title(ranking)}")
        print_table(ranking_rows(ranking, result))
        if ranking.effects:
            print_text(f"\n{effects_title(ranking)}")
            print_table(effect_rows(ranking))
    pooled = columns_of(result, pooled=True)
    if len(pooled) == 1:  # one setting: its runs
        pooled = columns_of(result, pooled=False)
    columns = {
        setting_name(result, runs): [run.id in runs for run in result.runs] for runs in pooled
    }
    _print_block(
        [
            {"seconds a step": name, **times}
            for name, mask in columns.items()
            if (times := phase_times(list(compress(result.runs, mask))))
        ]
    )
    _print_settings(result, columns, all_settings)
    _print_benchmarks(result, columns)
    _print_metrics(result, columns, () if all_settings else keys)


Columns = dict[str, list[bool]]  # by title: whether the column pools a run


def _print_settings(result: Comparison, columns: Columns, all_settings: bool) -> None:
    _print_block(
        [
            {
                "setting": item.path,
                **{
                    name: ", ".join(dict.fromkeys(map(_value, compress(item.values, mask))))
                    for name, mask in columns.items()
                },
            }
            for item in result.differing
        ]
    )
    for line in result.sources:
        print_text(line)
    if not result.differing:
        print("\nall settings are the same")
    if all_settings:
        _print_block(
            [{"same setting": path, "value": _value(value)} for path, value in result.same.items()]
        )


def _print_benchmarks(result: Comparison, columns: Columns) -> None:
    """Print what standard benchmarks measured last, with the standard error over its problems."""
    cells = {item.key: item.cells for item in result.metrics}
    rows = []
    for key in filter(stderr_of, cells):
        row = {"lm-eval ± standard error": f"{spec(key).label} {ARROWS[spec(key).direction]}"}
        errors = cells.get(stderr_of(key), ())
        for name, mask in columns.items():
            if (value := _mean([cell.last for cell in compress(cells[key], mask)])) is not None:
                known = [c.last for c in compress(errors, mask) if c.last is not None]
                row[name] = with_stderr(value, known)
        rows.append(row)
    _print_block([{name: row.get(name) for name in rows[0] | dict(row)} for row in rows])


def _print_metrics(result: Comparison, columns: Columns, keys: Sequence[str]) -> None:
    """Print best and last values of these metrics, or of all; means where seeds are pooled."""
    if result.at:
        print_stderr(f"`at` is {result.at}")
    rows = []
    title = "metric" if all(sum(mask) == 1 for mask in columns.values()) else "mean over seeds"
    measured = [item for item in result.metrics if not item.key.startswith(BENCHMARK)]
    listed = [item for item in measured if not keys or item.key in keys]
    for item in listed:
        row: dict[str, Any] = {title: f"{metric_name(item.key)} {ARROWS[item.direction]}".strip()}
        for name, mask in columns.items():
            cells = list(compress(item.cells, mask))
            if spec(item.key).best:
                row[name] = _best(cells)
            row[f"{name} last"] = _mean([cell.last for cell in cells])
            if counts := [cell.last_n for cell in cells if cell.last_n is not None]:
                row[f"{name} n"] = sum(counts)
            if result.at:
                row[f"{name} at"] = _mean([cell.at for cell in cells])
        rows.append(row)
    _print_block(rows)
    if len(listed) < len(measured):
        print_stderr(f"{len(measured) - len(listed)} more metrics with --all")


def _print_block(rows: Sequence[Row]) -> None:
    """Print a table with a blank line above it; nothing without rows."""
    if rows:
        print()
        print_table(rows)


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return fmean(present) if present else None


def _best(cells: Sequence[MetricCell]) -> str | float | None:
    """The mean of the best values; of one run its step, and the change from the baseline."""
    first = cells[0]
    if len(cells) > 1 or first.best is None:
        return _mean([cell.best for cell in cells])
    change = "" if first.delta_best is None else f" {first.delta_best:+.3g}"
    count = "" if first.best_n is None else f" n={first.best_n:.0f}"
    return f"{first.best:.4g} @{first.best_step}{count}{change}"


def _value(value: Any) -> str:
    from grpo_tui.experiments.export.json import json_text

    return value if isinstance(value, str) else "–" if value is None else json_text(value)
