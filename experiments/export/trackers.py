"""Other trackers, live and as an export: TensorBoard, and trackio or W&B if installed."""

import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Protocol

from grpo_engine.errors import quoted
from grpo_tui.experiments.db.paths import inside_store
from grpo_tui.experiments.db.texts import seconds
from grpo_tui.experiments.errors import ExportError, StoreError
from grpo_tui.experiments.export.files import require_folder
from grpo_tui.experiments.export.rows import metric_rows
from grpo_tui.experiments.export.tensorboard import EventFile
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.values import RunSummary

NOT_METRICS = ("run", "name", "step", "at", "elapsed")


def export_to(format: str, reader: StoreReader, runs: Sequence[RunSummary], out: Path) -> int:
    """Write the metrics of runs under `out` and return the number of values."""
    if format not in TRACKERS:
        raise ExportError(
            f"there is no tracker {quoted(format)}; choose from {', '.join(TRACKERS)}"
        )
    require_folder(out)
    # keep what the packages print out of stdout
    with redirect_stdout(sys.stderr):
        try:
            return sum(_export(TRACKERS[format], reader, run, out) for run in runs)
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise ExportError(f"cannot write to {out}: {error.strerror or error}") from error


def _export(make: "Maker", reader: StoreReader, run: RunSummary, out: Path) -> int:
    count, log = 0, make(reader, run, out, live=False)
    for step, at, values in logged_steps(reader, run):
        log.add(step, at, values)
        count += len(values)
    log.close()
    return count


def logged_steps(
    reader: StoreReader, run: RunSummary, after: int = -1
) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Yield step, time and finite values of each step beyond `after`."""
    start = seconds(run.started_at or run.created_at)
    for row in metric_rows(reader, [run], after=after):
        values = {
            name: float(value)
            for name, value in row.items()
            if name not in NOT_METRICS and value is not None and math.isfinite(value)
        }
        yield row["step"], seconds(row["at"]) if row["at"] else start, values


class Log(Protocol):
    def add(self, step: int, at: float, values: Mapping[str, float]) -> None:
        """Log a step's values."""

    def close(self) -> None:
        """Write what waits."""


class Maker(Protocol):
    """Begins the log of a run under `out`; a live one is where the tracker's own programs look."""

    def __call__(self, reader: StoreReader, run: RunSummary, out: Path, *, live: bool) -> Log: ...


class TensorBoard:
    """An event file in a folder with the run's name; an attempt that resumes a run adds a file."""

    def __init__(self, reader: StoreReader, run: RunSummary, out: Path, *, live: bool) -> None:  # noqa: ARG002  # as the others
        start = time.time() if live else seconds(run.started_at or run.created_at)
        self._file = EventFile(inside_store(out, f"{_safe(run.name)}-{run.id}"), start)

    def add(self, step: int, at: float, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._file.add(name, value, step, at)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class WandB:
    """A run of Weights & Biases, with the run's id; an export is offline, for `wandb sync`."""

    def __init__(self, reader: StoreReader, run: RunSummary, out: Path, *, live: bool) -> None:
        wandb = package("wandb")
        out.mkdir(parents=True, exist_ok=True)
        # a live run is online unless the user's WANDB_MODE says otherwise
        mode: Mapping[str, Any] = {} if live else {"mode": "offline"}
        self._run = wandb.init(
            project="grpo-tui", name=run.name, id=run.id, dir=str(out), resume="allow",
            settings=wandb.Settings(silent=True, console="off", **mode),
            config=dict(reader.settings(run.key)), tags=list(run.tags), notes=run.note,
        )  # fmt: skip

    def add(self, step: int, at: float, values: Mapping[str, float]) -> None:  # noqa: ARG002  # W&B has its own clock
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class Trackio:
    """A run of a local trackio project; an export has a folder of its own, live runs the user's."""

    def __init__(self, reader: StoreReader, run: RunSummary, out: Path, *, live: bool) -> None:
        if not live:
            out.mkdir(parents=True, exist_ok=True)
            os.environ["TRACKIO_DIR"] = str(out)
        self._trackio = package("trackio")
        self._trackio.init(project="grpo-tui", name=f"{run.name}-{run.id}", resume="allow",
                           config=dict(reader.settings(run.key)), embed=False,
                           auto_log_gpu=False, auto_log_cpu=False)  # fmt: skip

    def add(self, step: int, at: float, values: Mapping[str, float]) -> None:  # noqa: ARG002  # trackio has its own clock
        self._trackio.log(dict(values), step=step)

    def close(self) -> None:
        self._trackio.finish()


def package(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise ExportError(
            f"this export needs the package {name}, which is not installed: pip install {name}"
        ) from error


def _safe(name: str) -> str:
    """Make a run's name usable as a folder name."""
    safe = "".join(sign if sign.isalnum() or sign in "-_. " else "_" for sign in name)
    return safe.strip(". ") or "run"


TRACKERS: dict[str, Maker] = {"tensorboard": TensorBoard, "wandb": WandB, "trackio": Trackio}
