"""`grpo-tui sweep`: a grid over settings and seeds, one run after another."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpo_engine.errors import quoted
from grpo_tui.app import exit_codes
from grpo_tui.app.cli.output import print_json, print_table
from grpo_tui.app.cli.params import ConfigFile, Db, Json, Preset, Sets, Steps
from grpo_tui.app.cli.run_config import assemble
from grpo_tui.app.cli.store_access import writing
from grpo_tui.app.jobs.launch import checked_sweep
from grpo_tui.app.jobs.sweep import values_in
from grpo_tui.app.text.stderr import print_stderr

if TYPE_CHECKING:
    from grpo_tui.experiments.queue import RunQueue

RESULTS = ("eval/accuracy", "eval/greedy/accuracy")  # of the table at the end


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
    as_json: Json = False,
    db: Db = None,
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
        raise typer.BadParameter("--queue runs what is queued: leave CONFIG, --preset, --set and "
                                 "--steps out")  # fmt: skip
    with writing(db) as store:
        waiting = RunQueue(store)
        if queue:
            _requeue(waiting, None, retry=retry, again=again)
            failed = 0 if add_only else work(waiting)
            raise typer.Exit(exit_codes.FAILED if failed else exit_codes.OK)
        key = _plan(waiting, file, preset, sets or [], seeds, steps, name, later=add_only)
        _requeue(waiting, key, retry=retry, again=again)
        failed = 0 if add_only else work(waiting, key)
        rows = _report(store.path, key, as_json=as_json)
    if not add_only and (failed or any(row["state"] == "failed" for row in rows)):
        raise typer.Exit(exit_codes.FAILED)


def _requeue(queue: "RunQueue", sweep: int | None, *, retry: bool, again: bool) -> None:
    for state, chosen in (("failed", retry), ("skipped", again)):
        if chosen:
            print_stderr(f"{queue.requeue(state, sweep)} {state} runs were requeued")


def _plan(
    queue: "RunQueue", file: Path | None, preset: str | None, sets: list[str], seeds: int,
    steps: int | None, name: str, *, later: bool,
) -> int:  # fmt: skip
    """Queue the grid, or find it; try the settings of every point before training any."""
    from grpo_tui.experiments.queue import points

    configs = [
        (point, assemble(file, preset, [f"{p}={text}" for p, text in point.items()], steps=steps))
        for point in points(dict(map(_axis, sets)))
    ]
    sweep, downloads = checked_sweep(configs, seeds, queue.store.path, later=later)
    for download in downloads:
        print_stderr(download)
    key, new = queue.sweep(name, sweep.axes, sweep.runs)
    print_stderr(f"{'queued' if new else 'continuing with'} {len(sweep.runs)} runs")
    return key


def _axis(pair: str) -> tuple[str, list[str]]:
    """Parse `a.b=1,2` as a path and its values."""
    path, sign, text = pair.partition("=")
    if not sign:
        raise typer.BadParameter(f"--set {quoted(pair)} has no `=`; write --set section.name=1,2,3")
    return path.strip(), values_in(text)


def _report(path: Path, key: int, *, as_json: bool) -> list[dict[str, Any]]:
    from grpo_tui.experiments.reader import StoreReader

    with closing(StoreReader(path)) as reader:
        view = reader.sweep(key)
        runs = {item.run: reader.resolve(item.run) for item in view.items if item.run}
    measured = {name for run in runs.values() for name in run.metrics}
    shown = next((name for name in RESULTS if name in measured), "reward")
    rows = []
    for item in view.items:
        run = runs[item.run] if item.run else None
        line = run.metrics.get(shown) if run else None
        rows.append({
            **item.settings, "state": item.state, "run": item.run, "step": run and run.step,
            f"best {shown}": line and line.best, f"last {shown}": line and line.last,
            "note": item.note,
        })  # fmt: skip
    if as_json:
        print_json({"sweep": view.name, "metric": shown, "items": rows})
    else:
        print_table(rows)
        if len(runs) > 1:
            print_stderr(f"which setting is better: grpo-tui compare {' '.join(runs)}")
    return rows
