"""Metrics for other trackers: TensorBoard and W&B, live and as an export, and trackio live."""

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal

from grpo_tui.experiments.db.paths import inside_store
from grpo_tui.experiments.db.texts import seconds
from grpo_tui.experiments.errors import ExportError
from grpo_tui.experiments.export.files import require_folder, writing
from grpo_tui.experiments.export.rows import finite_metrics, metric_rows
from grpo_tui.experiments.export.tensorboard import scalar, version
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.values import RunSummary

POLL_S = 1.0

Add = Callable[[int, float, Mapping[str, float]], None]  # logs the values of a step and time
# Logs a run in a folder; a live run (the last argument) in the tracker's usual place.
Tracker = Callable[[StoreReader, RunSummary, Path, bool], AbstractContextManager[Add]]


def export_to(
    format: Literal["tensorboard", "wandb"],
    reader: StoreReader,
    runs: Sequence[RunSummary],
    out: Path,
) -> int:
    """Write the metrics of runs under `out` and return the number of values."""
    require_folder(out)
    # The packages print, but stdout is for data.
    with redirect_stdout(sys.stderr), writing(out):
        return sum(log_run(format, reader, run, out) for run in runs)


def log_run(
    tracker: str,
    reader: StoreReader,
    run: RunSummary,
    out: Path,
    after: int = -1,
    *,
    live: bool = False,
) -> int:
    """Log the steps of a run beyond `after` and return the number of values.

    A live run is followed until it has ended or its process is gone. A step is logged once the next
    one has values or the run has ended, since evaluations add values to it.
    """
    count = 0
    with TRACKERS[tracker](reader, run, out, live) as add:
        while True:
            run = reader.resolve(run.uid)
            is_active = live and run.active
            rows = metric_rows(reader, run, after=after)
            for row, _ in pairwise(chain(rows, () if is_active else [{}])):
                values = finite_metrics(row)
                after = row["step"]
                add(after, seconds(row["at"] or run.started_at or run.created_at), values)
                count += len(values)
            if not is_active:
                return count
            time.sleep(POLL_S)


@contextmanager
def tensorboard(_reader: StoreReader, run: RunSummary, out: Path, live: bool) -> Iterator[Add]:
    """An event file in a folder with the run's name; an attempt that resumes a run adds a file."""
    start = time.time() if live else seconds(run.started_at or run.created_at)
    name = re.sub(r"[^\w. -]", "_", run.name).strip(". ") or "run"  # a valid folder name
    folder = inside_store(out, f"{name}-{run.id}")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"events.out.tfevents.{int(start)}.grpo-tui").open("wb") as file:
        file.write(version(start))

        def add(step: int, at: float, values: Mapping[str, float]) -> None:
            for key, value in values.items():
                file.write(scalar(key, value, step, at))
            file.flush()

        yield add


@contextmanager
def wandb(reader: StoreReader, run: RunSummary, out: Path, live: bool) -> Iterator[Add]:
    """A run of Weights & Biases, with the run's id; an export is offline, for `wandb sync`."""
    package = installed("wandb")
    out.mkdir(parents=True, exist_ok=True)
    # A live run is online unless WANDB_MODE says otherwise.
    yield from _logged(
        package,
        reader,
        run,
        name=run.name,
        id=run.id,
        dir=str(out),
        tags=list(run.tags),
        notes=run.note,
        settings=package.Settings(
            silent=True, console="off", **({} if live else {"mode": "offline"})
        ),
    )


@contextmanager
def trackio(reader: StoreReader, run: RunSummary, _out: Path, _live: bool) -> Iterator[Add]:
    """A run of the user's trackio project; an export writes the project's file instead."""
    package = installed("trackio")
    yield from _logged(
        package,
        reader,
        run,
        name=f"{run.name}-{run.id}",
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )


def _logged(package: Any, reader: StoreReader, run: RunSummary, **options: Any) -> Iterator[Add]:
    settings = reader.settings(run.key)
    package.init(project="grpo-tui", resume="allow", config=settings, **options)
    yield lambda step, _, values: package.log(dict(values), step=step)  # the package takes the time
    package.finish()


def installed(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise ExportError(
            f"this export needs the package {name}, which is not installed: pip install {name}"
        ) from error


TRACKERS: dict[str, Tracker] = {"tensorboard": tensorboard, "wandb": wandb, "trackio": trackio}
