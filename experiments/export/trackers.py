"""Export to other trackers: TensorBoard, and trackio or W&B if installed."""

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from experiments.db.texts import seconds
from experiments.errors import ExportError, StoreError
from experiments.export.rows import metric_rows
from experiments.export.tensorboard import EventFile
from experiments.reader import StoreReader
from experiments.values import RunSummary

NOT_METRICS = ("run", "name", "step", "at", "elapsed")


def export_to(format: str, reader: StoreReader, runs: Sequence[RunSummary], out: Path) -> int:
    """Write the metrics of runs under `out` and return the number of values."""
    if format not in TRACKERS:
        raise ExportError(f"there is no tracker {format!r}; choose from {', '.join(TRACKERS)}")
    # keep what the packages print out of stdout
    with redirect_stdout(sys.stderr):
        try:
            return sum(TRACKERS[format](reader, run, out) for run in runs)
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise ExportError(f"cannot write to {out}: {error.strerror or error}") from error


def _steps(
    reader: StoreReader, run: RunSummary
) -> Iterator[tuple[int, float | None, dict[str, float]]]:
    """Yield step, time and finite values of each step."""
    for row in metric_rows(reader, [run]):
        values = {
            name: float(value)
            for name, value in row.items()
            if name not in NOT_METRICS and value is not None and math.isfinite(value)
        }
        yield row["step"], seconds(row["at"]) if row["at"] else None, values


def to_tensorboard(reader: StoreReader, run: RunSummary, out: Path) -> int:
    """Write one event file into a folder with the run's name."""
    start = seconds(run.started_at or run.created_at)
    file = EventFile(out / f"{_safe(run.name)}-{run.id}", start)
    count = 0
    for step, at, values in _steps(reader, run):
        for name, value in values.items():
            file.add(name, value, step, at or start)
            count += 1
    file.close()
    return count


def to_wandb(reader: StoreReader, run: RunSummary, out: Path) -> int:
    """Write an offline run for `wandb sync`."""
    wandb = _package("wandb")
    out.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(mode="offline", silent=True, console="off")
    logged = wandb.init(
        project="grpo-tui", name=run.name, id=run.id, dir=str(out), settings=settings,
        config=dict(reader.settings(run.key)), tags=list(run.tags), notes=run.note,
    )  # fmt: skip
    count = 0
    for step, _, values in _steps(reader, run):
        logged.log(values, step=step)
        count += len(values)
    logged.finish()
    return count


def to_trackio(reader: StoreReader, run: RunSummary, out: Path) -> int:
    """Write a local trackio project, with the folder as trackio's cache."""
    out.mkdir(parents=True, exist_ok=True)
    os.environ["TRACKIO_DIR"] = str(out)
    trackio = _package("trackio")
    trackio.init(project="grpo-tui", name=f"{run.name}-{run.id}",
                 config=dict(reader.settings(run.key)), embed=False)  # fmt: skip
    count = 0
    for step, _, values in _steps(reader, run):
        trackio.log(values, step=step)
        count += len(values)
    trackio.finish()
    return count


def _package(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise ExportError(
            f"this export needs the package {name}, which is not installed: pip install {name}"
        ) from error


def _safe(name: str) -> str:
    """Make a run's name usable as a folder name."""
    kept = "".join(sign if sign.isalnum() or sign in "-_. " else "_" for sign in name)
    return kept.strip(". ") or "run"


TRACKERS: dict[str, Callable[[StoreReader, RunSummary, Path], int]] = {
    "tensorboard": to_tensorboard,
    "wandb": to_wandb,
    "trackio": to_trackio,
}
