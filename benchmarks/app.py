"""What the workbench costs: python -m benchmarks.app [PART...] [--out docs/app.md].

Parts: start (command to first paint with 500 runs stored), keys (byte in to changed cell out, in a
pty, without a run and while the starter trains at full speed), watch (step time with Watch in
front over headless, ABBA), memory (a simulated run of 100,000 steps), runs (paging through 5,000
runs). The table says against which target; run it on a machine that does nothing else.
"""

import argparse
import itertools
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil

from app.run_state import RunState
from benchmarks import store_data as data
from experiments.reader import StoreReader
from grpo_engine import events as ev
from tests.e2e.terminal import Terminal

KEYS, START_RUNS, MANY_RUNS, STEPS = 1000, 500, 5000, 8
PATIENCE = 2.0  # seconds after which a key counts as lost


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table; a target of 0 is none."""

    what: str
    value: float
    unit: str
    target: float = 0.0

    def line(self) -> str:
        """The result as a row of a Markdown table."""
        target = f"< {self.target:g}" if self.target else ""
        missed = " **missed**" if self.target and self.value >= self.target else ""
        return f"| {self.what} | {self.value:.3g} {self.unit}{missed} | {target} |"


def opened(store: Path, folder: Path, *more: str) -> Terminal:
    """The workbench in a pty."""
    os.environ["XDG_CONFIG_HOME"] = str(folder / "config")
    return Terminal(["-P", "-m", "app", "--db", str(store), *more], 140, 45)


def leave(terminal: Terminal) -> None:
    """Close the workbench the hard way; what it trained is thrown away."""
    for child in psutil.Process(terminal.child.pid).children(recursive=True):
        child.kill()
    terminal.child.close(force=True)


# -- parts ----------------------------------------------------------------------------------------


def start(folder: Path) -> Iterator[Result]:
    """Command to first paint, and to the runs in the table; the first time warms the files."""
    store = folder / "start.db"
    data.many_runs(store, START_RUNS)
    paints, tables = [], []
    for _ in range(6):
        begun = time.perf_counter()
        terminal = opened(store, folder)
        terminal.until("1 Runs")
        paints.append(time.perf_counter() - begun)
        terminal.until(f"{START_RUNS} runs")
        tables.append(time.perf_counter() - begun)
        leave(terminal)
    yield Result("command to first paint, 500 runs, warm", statistics.median(paints[1:]), "s", 0.5)
    yield Result("command to the table of 500 runs, warm", statistics.median(tables[1:]), "s")


def shows(terminal: Terminal, *parts: str) -> Callable[[], bool]:
    """Whether all of this is on the screen."""
    return lambda: all(part in terminal.text() for part in parts)


def latency(terminal: Terminal, key: str, holds: Callable[[], bool]) -> float:
    """Milliseconds from the byte to the chunk of output after which it holds."""
    while terminal.read(0.005) and terminal.waiting():
        pass
    if holds():
        return 0.0
    begun = time.perf_counter()
    terminal.press(key)
    while time.perf_counter() - begun < PATIENCE:
        if terminal.waiting(0.2):
            arrived = time.perf_counter()
            terminal.read(0.0)
            if holds():
                return (arrived - begun) * 1e3
    return PATIENCE * 1e3


def round_trip(terminal: Terminal) -> list[tuple[str, Callable[[], bool]]]:
    """Keys over the screens, each with what it must bring onto the screen."""
    tab = [("3", "▌3 Watch▐"), ("4", "▌4 Rollouts▐"), ("5", "▌5 Compare▐"), ("1", "▌1 Runs▐")]
    keys = [(key, shows(terminal, text)) for key, text in tab]
    keys[1:1] = [("n", shows(terminal, "answers to prompt 2")),
                 ("p", shows(terminal, "answers to prompt 1"))]  # fmt: skip
    keys[-2:-2] = [("m", shows(terminal, f"heat {n}/5")) for n in (2, 3, 4, 5, 1)]
    return keys


def measured_keys(terminal: Terminal, name: str, count: int) -> Iterator[Result]:
    """Percentiles over so many keys."""
    spent: list[float] = []
    for key, holds in itertools.cycle(round_trip(terminal)):
        value = latency(terminal, key, holds)
        spent += [value] if value else []
        if len(spent) >= count:
            break
    cuts = statistics.quantiles(spent, n=100)
    for percent, target in ((50, 15.0), (95, 50.0), (99, 100.0)):
        yield Result(f"key, {name}, p{percent} of {count}", cuts[percent - 1], "ms", target)


def keys(folder: Path) -> Iterator[Result]:
    """The same keys without a run and while the starter trains."""
    terminal = opened(folder / "keys.db", folder)
    terminal.until("two-minute starter run")
    terminal.press("\r")
    terminal.until_step(3)
    during = list(measured_keys(terminal, "while the starter trains", KEYS // 2))
    terminal.press("1s")
    terminal.until("stop the run")
    terminal.press("x")
    terminal.until(lambda: "stopped" in terminal.text())
    yield from measured_keys(terminal, "without a run", KEYS)
    leave(terminal)
    yield from during


def headless(store: Path) -> float:
    """Median step time of a run without a screen."""
    run = [sys.executable, "-P", "-m", "app", "train", "--preset", "starter", "--steps", str(STEPS)]
    terminal = Terminal(
        [*run[1:], "--db", str(store), "--set", "evaluation.before_and_after=false"]
    )
    assert terminal.ended(600) == 0
    return median_step(store)


def watched(store: Path, folder: Path) -> float:
    """Median step time of the same run with Watch in front."""
    terminal = opened(store, folder)
    terminal.until("two-minute starter run")
    terminal.press("\r")
    terminal.until_step(STEPS + 1)
    leave(terminal)
    return median_step(store)


def median_step(store: Path) -> float:
    with closing(StoreReader(store)) as reader:
        values = reader.metric_series(reader.resolve("@last").key, "step_time").values
    return statistics.median(values[1:STEPS])


def watch(folder: Path) -> Iterator[Result]:
    """A headless run, two with Watch in front, a headless run."""
    alone = [headless(folder / "a1.db")]
    seen = [watched(folder / f"b{n}.db", folder) for n in (1, 2)]
    alone.append(headless(folder / "a2.db"))
    cost = statistics.mean(seen) / statistics.mean(alone) - 1
    yield Result("step, headless", statistics.mean(alone), "s")
    yield Result("Watch in front adds to a step", 100 * cost, "%", 3.0)


def memory(_folder: Path) -> Iterator[Result]:
    """Resident memory that a shown run gains from step 1,000 to 100,000."""
    state, me, before = RunState(), psutil.Process(), 0
    names = [f"metric/{number}" for number in range(30)]
    for step in range(1, 100_001):
        metrics = dict.fromkeys(names, step * 0.5)
        state.apply(ev.StepFinished(step=step, metrics=metrics, tokens=step, elapsed=step))
        if step % 10 == 0:
            state.apply(ev.NoteWritten(step=step, text=f"note {step}"))
            state.snapshot()
        if step == 1000:
            before = me.memory_info().rss
    yield Result("memory from step 1,000 to 100,000", (me.memory_info().rss - before) / 1e6,
                 "MB", 60.0)  # fmt: skip


def runs(folder: Path) -> Iterator[Result]:
    """Paging down a table of 5,000 runs: other names must come onto the screen."""
    store = folder / "runs.db"
    data.many_runs(store, MANY_RUNS)
    terminal = opened(store, folder)
    terminal.until(f"{MANY_RUNS} runs", 120)
    spent = []
    for _ in range(100):
        before = listed(terminal)
        spent.append(latency(terminal, "\x1b[6~", lambda old=before: listed(terminal) != old))  # type: ignore[misc]
    leave(terminal)
    found = [value for value in spent if value]
    yield Result("page down in 5,000 runs, p95", statistics.quantiles(found, n=20)[-1], "ms", 100)


def listed(terminal: Terminal) -> set[str]:
    """The names of runs on the screen."""
    return set(re.findall(r"run-\d+", terminal.text()))


PARTS = {"start": start, "keys": keys, "watch": watch, "memory": memory, "runs": runs}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and write it where that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="all, if none is named")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args(arguments)
    lines = ["| what | measured | target |", "|---|---|---|"]
    for part in chosen.parts or PARTS:
        with tempfile.TemporaryDirectory(prefix="grpo-tui-bench-") as folder:
            for result in PARTS[part](Path(folder)):
                lines.append(result.line())
                print(lines[-1], flush=True)
    if chosen.out is not None:
        chosen.out.write_text("# What the workbench costs\n\n" + "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
