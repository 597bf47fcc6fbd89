"""Several processes on one store: python -m benchmarks.soak [--minutes 5] [--pace 0.25].

Two processes record steps of the starter's size into one file, at the pace of training, while a
third lists runs and a fourth exports them, by the commands a user would type. Shown: how long
the recorders waited for the file, how long they held it, how much of either they were only waiting
for a processor, how long the commands took, and whether anything failed.
"""

import argparse
import json
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from benchmarks import store_data as data
from grpo_engine import events as ev
from grpo_tui.experiments.db import connection
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record import recorder, store_file, writer
from grpo_tui.experiments.record.recorder import start_run, writable
from grpo_tui.experiments.values import RecordedEvent

LIMIT_MS = 20.0
ROWS = {
    "waits for the file": "lock",
    "of that for a processor": "lock_starved",
    "holds the file": "hold",
    "of that waits for a processor": "hold_starved",
    "`put` of an event": "put",
}


class Transactions:
    """Milliseconds for which each transaction waited for the file and held it."""

    def __init__(self) -> None:
        self.waited: list[float] = []
        self.waited_starved: list[float] = []
        self.occupied: list[float] = []
        self.occupied_starved: list[float] = []
        self._began, self._starved = 0.0, 0.0

    def begin(self, conn: sqlite3.Connection, limit: float = 5.0) -> None:
        """Take the lock as the writer does."""
        start, before = time.perf_counter(), starved()
        connection.begin(conn, limit)
        self._began, self._starved = time.perf_counter(), starved()
        self.waited.append(1e3 * (self._began - start))
        self.waited_starved.append(self._starved - before)

    def end(self) -> None:
        """Note the end of the transaction."""
        self.occupied.append(1e3 * (time.perf_counter() - self._began))
        self.occupied_starved.append(starved() - self._starved)


def starved() -> float:
    """Return the milliseconds that this thread was runnable without a processor; 0 if unknown."""
    try:
        text = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text()
    except OSError:
        return 0.0
    return int(text.split()[1]) / 1e6


class Watched(writer.RunWriter):
    """A writer that times its transactions."""

    transactions = Transactions()

    def write(self, items: Sequence[RecordedEvent], limit: float) -> None:
        """Write, and note when the transaction ended."""
        super().write(items, limit)
        self.transactions.end()


def write(path: Path, seconds: float, pace: float, seed: int) -> None:
    """Record steps until the time is up, and print the outcome as JSON."""
    store_file.begin = Watched.transactions.begin  # type: ignore[attr-defined]  # timed in its place
    recorder.RunWriter = Watched  # type: ignore[attr-defined]  # likewise
    handle = start_run(path, data.config(seed=seed), name=f"soak-{seed}")
    handle.put(data.started())
    chance = random.Random(seed)
    end = time.monotonic() + seconds
    step, troubles, durations = 0, set(), []
    while time.monotonic() < end:
        begun = time.monotonic()
        step += 1
        for event in data.starter_step(step, chance):
            start = time.perf_counter()
            handle.put(event)
            durations.append(1e3 * (time.perf_counter() - start))
        if handle.board.view.store_warning:
            troubles.add(handle.board.view.store_warning)
        time.sleep(max(0.0, pace - (time.monotonic() - begun)))
    handle.put(ev.RunFinished(step=step, reason="completed", summary={}))
    stored = handle.close()
    transactions = Watched.transactions
    result = {
        "run": handle.id,
        "steps": step,
        "stored": stored,
        "put": durations,
        "troubles": sorted(troubles),
        "lock": transactions.waited,
        "lock_starved": transactions.waited_starved,
        "hold": transactions.occupied,
        "hold_starved": transactions.occupied_starved,
    }
    print(json.dumps(result))


class Caller(threading.Thread):
    """Calls a command repeatedly and keeps its times and failures."""

    def __init__(self, arguments: Sequence[str], end: float, pause: float) -> None:
        super().__init__()
        self.arguments, self.end, self.pause = arguments, end, pause
        self.times: list[float] = []
        self.failures: list[str] = []

    def run(self) -> None:
        while time.monotonic() < self.end:
            start = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-m", "grpo_tui", *self.arguments],
                capture_output=True,
                text=True,
                check=False,
            )
            self.times.append(1e3 * (time.perf_counter() - start))
            if done.returncode:
                self.failures.append(done.stderr.strip())
            time.sleep(self.pause)


def soak(folder: Path, seconds: float, pace: float) -> int:
    """Run all four processes, print the table, and return the exit status."""
    path = folder / "soak.db"
    writable(path)
    start = time.monotonic()
    writers = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "benchmarks.soak",
                "--write",
                str(path),
                "--pace",
                str(pace),
                "--minutes",
                str(seconds / 60),
                "--seed",
                str(seed),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in (1, 2)
    ]
    _wait_for_runs(path, 2)
    out = folder / "rollouts.csv"
    callers = [
        Caller(["runs", "--json", "--db", str(path)], start + seconds, 0.5),
        Caller(
            [
                "export",
                "soak-1",
                "soak-2",
                "--what",
                "rollouts",
                "--out",
                str(out),
                "--db",
                str(path),
            ],
            start + seconds,
            1.0,
        ),
    ]
    for caller in callers:
        caller.start()
    outputs = [writer.communicate()[0] for writer in writers]
    for caller in callers:
        caller.join()
    return report(path, [json.loads(text) for text in outputs], callers)


def _wait_for_runs(path: Path, count: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with closing(StoreReader(path)) as reader:
            if len(reader.runs()) >= count:
                return
        time.sleep(0.1)
    raise SystemExit("the recorders did not begin within a minute")


def report(path: Path, written: Sequence[dict[str, object]], callers: Sequence[Caller]) -> int:
    """Print the table; the status is 1 if anything was lost, failed, or waited too long."""
    failures: list[str] = []
    print("| what | count | median ms | p99 ms | slowest ms |\n| --- | --- | --- | --- | --- |")
    for number, result in enumerate(written, start=1):
        steps = result["steps"]
        for name, key in ROWS.items():
            p99 = _line(f"recorder {number}, {steps} steps: {name}", result[key])  # type: ignore[arg-type]
            if p99 >= LIMIT_MS and key in ("lock", "put"):
                failures.append(f"recorder {number}: {name}: p99 {p99:.1f} ms >= {LIMIT_MS} ms")
        failures += [str(text) for text in result["troubles"]]  # type: ignore[attr-defined]
        with closing(StoreReader(path)) as reader:
            stored = [view.step for view in reader.steps(reader.resolve(str(result["run"])).key)]
        if not result["stored"] or len(stored) != steps:
            failures.append(f"recorder {number}: {len(stored)} of {steps} steps are stored")
    for name, caller in zip(("`runs --json`", "`export --what rollouts`"), callers, strict=True):
        _line(f"{name}, the whole command", caller.times)
        failures += caller.failures
    with closing(StoreReader(path)) as reader:
        checked = reader.file.execute("PRAGMA integrity_check").fetchone()[0]
    log = path.with_name(path.name + "-wal")
    sizes = [file.stat().st_size / 1e6 if file.exists() else 0.0 for file in (path, log)]
    print(f"\nintegrity check: {checked}; file {sizes[0]:.0f} MB, log {sizes[1]:.1f} MB")
    if checked != "ok":
        failures.append(checked)
    for text in failures:
        print(f"FAILED: {text}")
    return int(bool(failures))


def _line(name: str, values: Sequence[float]) -> float:
    ordered = sorted(values) or [0.0]
    p99 = ordered[int(0.99 * (len(ordered) - 1))]
    print(
        f"| {name} | {len(values)} | {statistics.median(ordered):.2f} | {p99:.2f} | "
        f"{ordered[-1]:.2f} |"
    )
    return p99


def main(args: Sequence[str] | None = None) -> int:
    """Run the soak test, or one of its two recorders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--pace", type=float, default=0.25, help="seconds from step to step")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    chosen = parser.parse_args(args)
    if chosen.write is not None:
        write(chosen.write, 60 * chosen.minutes, chosen.pace, chosen.seed)
        return 0
    with tempfile.TemporaryDirectory(dir=chosen.folder, prefix="soak-") as folder:
        return soak(Path(folder), 60 * chosen.minutes, chosen.pace)


if __name__ == "__main__":
    sys.exit(main())
