"""`grpo-tui sweep`: a grid over settings and seeds, one run after another."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo_engine.errors import quoted
from grpo_tui.app import exit_codes
from grpo_tui.app.cli.output import print_json, print_table
from grpo_tui.app.cli.params import ConfigFile, Json, Preset, Sets, Steps, Trust
from grpo_tui.app.cli.run_config import assemble, start_preset
from grpo_tui.app.cli.store_access import reading, writing
from grpo_tui.app.jobs.launch import checked_sweep
from grpo_tui.app.jobs.sweep import Point, values_in
from grpo_tui.app.text.stderr import print_stderr
from grpo_tui.app.text.words import count_of

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader
    from grpo_tui.experiments.values import QueueItemView

RESULTS = ("eval/accuracy", "eval/greedy/accuracy")  # in order of preference


def sweep(
    file: ConfigFile = None,
    preset: Preset = None,
    sets: Sets = None,
    seeds: Annotated[int, typer.Option(help="Seeds per point of the grid.", min=1)] = 1,
    steps: Steps = None,
    name: Annotated[str, typer.Option(help="Name of the sweep; its runs are numbered.")] = "sweep",
    add_only: Annotated[
        bool, typer.Option("--add-only", help="Queue the runs without starting them.")
    ] = False,
    queue: Annotated[
        bool, typer.Option("--queue", help="No new sweep: run what is queued.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Run failed runs again.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Train what was skipped because the same run exists.")
    ] = False,
    _trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Train a grid of settings and seeds, one run after another; --set takes several values.

    The same command again continues where it stopped: finished runs are not repeated, and a run
    that the store has already is taken as it is. Without --queue and with the same settings it
    is the same sweep.

    Example: grpo-tui sweep config.yaml --set algorithm.beta=0,0.04 --seeds 3
    """
    from grpo_tui.app.jobs.queue_worker import work
    from grpo_tui.experiments.queue import RunQueue

    if queue and (file or preset or sets or steps is not None):
        raise typer.BadParameter(
            "--queue runs what is queued: leave CONFIG, --preset, --set and --steps out"
        )
    with writing() as store, reading() as reader:
        waiting = RunQueue(store)
        key = sweep_name = None
        if not queue:
            points = _points(file, preset, sets or [], steps)
            grid, downloads = checked_sweep(points, seeds, store.path, later=add_only)
            for download in downloads:
                print_stderr(download)
            key, new = waiting.sweep(name, grid.axes, grid.runs)
            sweep_name = reader.sweep(key)[0].sweep
            verb = "queued" if new else "continuing with"
            print_stderr(f"{verb} {count_of(len(grid.runs), 'run')} of sweep {sweep_name}")
        for state, chosen in (("failed", retry), ("skipped", again)):
            if chosen:
                print_stderr(f"{waiting.requeue(state, key)} {state} runs were requeued")
        selected = reader.queue() if key is None else reader.sweep(key)
        failed = 0 if add_only else work(waiting, key)
        by_key = {item.key: item for item in reader.queue(ended=sys.maxsize)}
        items = [by_key[item.key] for item in selected]
        _report(reader, items, sweep_name, as_json=as_json)
    if not add_only and (failed or any(item.state == "failed" for item in items)):
        raise typer.Exit(exit_codes.FAILED)


def _points(
    file: Path | None, preset: str | None, sets: list[str], steps: int | None
) -> list[Point]:
    """The settings of every point of the grid."""
    from grpo_tui.experiments.queue import points

    axes = dict(map(_axis, sets))
    preset = start_preset(file, preset, sets)
    return [
        (point, assemble(file, preset, [f"{p}={text}" for p, text in point.items()], steps=steps))
        for point in points(axes)
    ]


def _axis(pair: str) -> tuple[str, list[str]]:
    """Parse `a.b=1,2` as a path and its values."""
    path, sign, text = pair.partition("=")
    if not sign:
        raise typer.BadParameter(f"--set {quoted(pair)} has no `=`; write --set section.name=1,2,3")
    values = values_in(text)
    if "" in values and values != [""]:
        raise typer.BadParameter(
            f"--set {quoted(pair)} has an empty value; remove the comma that "
            "is too many, or write null"
        )
    return path.strip(), values


def _report(
    reader: "StoreReader", items: "Sequence[QueueItemView]", sweep: str | None, *, as_json: bool
) -> None:
    """Print these runs, of a sweep or of the queue."""
    runs = {item.run: reader.resolve(item.run) for item in items if item.run}
    measured = {name for run in runs.values() for name in run.metrics}
    metric = next((name for name in RESULTS if name in measured), "reward")
    rows = []
    for item in items:
        run = runs[item.run] if item.run else None
        line = run.metrics.get(metric) if run else None
        rows.append(
            {
                "name": item.name,
                **item.settings,
                "state": item.state,
                "run": item.run,
                "step": run and run.step,
                f"best {metric}": line and line.best,
                f"last {metric}": line and line.last,
                "note": item.note,
            }
        )
    if as_json:
        print_json({"sweep": sweep, "metric": metric, "items": rows})
    elif not rows:
        print_stderr("nothing is queued")
    else:
        print_table(rows)
        if len(runs) > 1:
            print_stderr(f"which setting is better: grpo-tui compare {' '.join(runs)}")
