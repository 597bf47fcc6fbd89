"""`grpo-tui compare`: runs side by side, settings and metrics."""

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.output import print_json, print_rows, print_table, tell
from app.cli.params import Csv, Db, Json, Raw, complete_metrics, complete_runs
from app.cli.store_access import reading, resolve_all
from app.text.comparison import (
    comparison_json,
    flat_rows,
    metric_name,
    run_name,
    sentence_of,
    setting_name,
)
from app.text.stderr import say

if TYPE_CHECKING:
    from experiments.compare.values import Comparison
    from experiments.reader import StoreReader
    from experiments.values import RunSummary


def compare(
    runs: Annotated[
        list[str], typer.Argument(help="Two runs or more.", autocompletion=complete_runs)
    ],
    baseline: Annotated[
        str, typer.Option(help="Show differences from this run.", autocompletion=complete_runs)
    ] = "",
    metric: Annotated[
        list[str] | None, typer.Option(help="Only these metrics.", autocompletion=complete_metrics)
    ] = None,
    at: Annotated[
        str, typer.Option(help="Compare at equal step, tokens or wall, or e.g. tokens=50000.")
    ] = "",
    example: Annotated[str, typer.Option(help="Answers of each run to this example key.")] = "",
    grid: Annotated[
        list[str] | None,
        typer.Option(help="Given twice: tabulate the metric over these two settings."),
    ] = None,
    all_settings: Annotated[bool, typer.Option("--all", help="Include equal settings.")] = False,
    as_json: Json = False,
    as_csv: Csv = False,
    as_md: Annotated[bool, typer.Option("--md", help="Print Markdown.")] = False,
    raw: Raw = False,
    db: Db = None,
) -> None:
    """Compare runs: settings that differ, best and last metrics, seeds, paired tests.

    Example: grpo-tui compare calm-otter brave-fox --baseline calm-otter --at tokens
    """
    from experiments.compare.runs import compare as put_side_by_side

    axis, value = _equal_work(at)
    with reading(db) as reader:
        found = resolve_all(reader, runs)
        base = reader.resolve(baseline) if baseline else None
        if base is not None and base.key not in {run.key for run in found}:
            found = [base, *found]
        if example:
            return _print_example(reader, found, example, as_json=as_json)
        if grid:
            return _print_grid(reader, found, grid, metric, as_json=as_json, as_csv=as_csv)
        result = put_side_by_side(
            reader, found, baseline=base, keys=metric or (), axis=axis, at=value
        )
        if not (as_json or as_csv or as_md):
            return print_page(result, all_settings, _curves(reader, found, metric or ["reward"]))
    if as_json:
        print_json(comparison_json(result, all_settings))
    else:
        rows = flat_rows(result, all_settings)
        if as_csv:
            print_rows(rows, as_json=False, as_csv=True, raw=raw)
        else:
            from experiments.export.files import write_rows

            write_rows(iter(rows), "md", sys.stdout)
    return None


def _equal_work(at: str) -> tuple[str, float | None]:
    axis, _, value = at.partition("=")
    try:
        return axis, float(value) if value else None
    except ValueError:
        raise typer.BadParameter(f"--at {at}: {value!r} is not a number") from None


def _curves(reader: "StoreReader", runs: "list[RunSummary]", keys: list[str]) -> list[str]:
    """Draw short charts of the first two metrics, on a terminal only."""
    if not sys.stdout.isatty():
        return []
    from app.cli.curves import metric_chart, terminal

    names, lines = _names(runs), [""]
    for key in keys[:2]:
        read = [reader.metric_series(run.key, key) for run in runs]
        lines += metric_chart(key, zip(names, read, strict=True), terminal(), height=10)
    return lines


def print_page(result: "Comparison", all_settings: bool, curves: list[str]) -> None:
    """Print the comparison for people."""
    names = _names(result.runs)
    for title, items in (
        ("setting", result.differing), ("by recipe", result.by_recipe if all_settings else ())
    ):  # fmt: skip
        print_table([{title: item.path, **dict(zip(names, map(_value, item.values), strict=True))}
                     for item in items])  # fmt: skip
    if not result.differing:
        print("all settings are the same")
    if all_settings:
        print()
        print_table([{"same setting": path, "value": _value(value)}
                     for path, value in result.same.items()])  # fmt: skip
    print()
    if result.at:
        say(f"`at` is {result.at}")
    rows = []
    for item in result.metrics:
        arrow = {"up": "↑", "down": "↓", "none": ""}[item.direction]
        row: dict[str, Any] = {"metric": f"{metric_name(item.key)} {arrow}".strip()}
        for name, cell in zip(names, item.cells, strict=True):
            row[name] = _best(cell.best, cell.best_step, cell.delta_best, cell.better)
            row[f"{name} last"] = cell.last
            if result.at:
                row[f"{name} at"] = cell.at
        rows.append(row)
    print_table(rows)
    print(*curves, sep="\n", end="\n" if curves else "")
    for group in result.seeds:
        seeds = ", ".join(map(str, group.seeds))
        tell(f"\n{setting_name(result, group.runs)} ({seeds}): mean of best, 95%")
        print_table([{"metric": metric_name(one.key), "mean": one.mean, "std": one.std,
                      "low": one.low, "high": one.high} for one in group.best])  # fmt: skip
    for test in result.tests:
        tell(f"\n{sentence_of(test, result)}")
    for note in result.notes:
        say(note)


def _best(value: float | None, step: int | None, delta: float | None, better: bool | None) -> str:
    if value is None:
        return ""
    text = f"{value:.4g} @{step}"
    if delta is not None:
        mark = {True: " ▲", False: " ▼", None: " "}[better]
        text += f"{mark}{delta:+.3g}"
    return text


def _value(value: Any) -> str:
    from experiments.export.json import json_text

    return value if isinstance(value, str) else json_text(value)


def _names(runs: "tuple[RunSummary, ...] | list[RunSummary]") -> list[str]:
    return [run_name(run, runs) for run in runs]


def _print_example(
    reader: "StoreReader", runs: "list[RunSummary]", example: str, *, as_json: bool
) -> None:
    from experiments.compare.runs import side_by_side

    view = side_by_side(reader, runs, example)
    if as_json:
        print_json(dataclasses.asdict(view) | {"runs": [run.id for run in runs]})
        return
    print_table([{"field": "prompt", "value": view.prompt_text},
                 {"field": "target", "value": view.target}])  # fmt: skip
    for run, group in zip(runs, view.groups, strict=True):
        tell(f"\n{run.name}" + (f", step {group.step}" if group else ": never sampled it"))
        rollouts = group.rollouts if group else ()
        print_table([{"reward": item.reward, "completion": item.text} for item in rollouts])


def _print_grid(
    reader: "StoreReader", runs: "list[RunSummary]", paths: list[str], metric: list[str] | None,
    *, as_json: bool, as_csv: bool,
) -> None:  # fmt: skip
    from experiments.compare.runs import grid

    if len(paths) != 2:
        raise typer.BadParameter("--grid is given twice: one setting down, one across")
    view = grid(reader, runs, paths[0], paths[1], (metric or ["reward"])[0])
    if as_json:
        print_json(dataclasses.asdict(view))
        return
    rows = [
        {paths[0]: _value(row), **dict(zip(map(_value, view.columns), cells, strict=True))}
        for row, cells in zip(view.rows, view.cells, strict=True)
    ]
    say(f"best {view.key}; {paths[1]} across")
    print_rows(rows, as_json=False, as_csv=as_csv)
