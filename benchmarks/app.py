"""Measure what the workbench costs: python -m benchmarks.app [PART...] [--out TABLE.md].

Parts: start (command to first paint with 500 runs stored), keys, training and flood (byte in to
changed cell out in a pty, over all actions, without a run, while SmolLM2 trains at full speed, and
while 1,000 events a second arrive), watch (step time with Watch in front over headless, ABBA),
memory (a simulated run of 100,000 steps), runs (moving through 5,000 runs and through 1,000,000
rollouts). The table names the targets; run it on an otherwise idle machine.
"""

import argparse
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks import store_data as data
from benchmarks.app_keys import FLOOD, RUNS_STORED, Ear, Keys, press, stored, walked
from benchmarks.app_keys import opened as with_run
from benchmarks.app_tour import LIVE, Stop, unfired
from grpo_engine.config.parse import build, merge
from grpo_engine.config.settings import RunConfig
from grpo_engine.platform import threads
from grpo_tui.experiments.reader import StoreReader
from tests.app.script import Script
from tests.app.stored import record
from tests.e2e.terminal import Terminal
from tests.smollm2 import model_folder

START_RUNS, MANY_RUNS, STEPS = 500, 5000, 12
KEY_TARGETS = {50: 15.0, 95: 50.0, 99: 100.0}  # percentile: milliseconds
ASKED = argparse.Namespace(keys=1000)
FOUND: dict[str, Keys] = {}  # by case
LONG = 100_000  # steps
STEPS_OF_MANY = 7813  # of 128 rollouts each


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table; a target of 0 means none."""

    name: str
    value: float
    unit: str
    target: float = 0.0

    def line(self) -> str:
        """Format the result as a row of a Markdown table."""
        target = f"< {self.target:g}" if self.target else ""
        missed = " **missed**" if self.target and self.value >= self.target else ""
        return f"| {self.name} | {self.value:.3g} {self.unit}{missed} | {target} |"


def opened(store: Path, folder: Path, *more: str) -> Terminal:
    """Open the workbench in a pty."""
    os.environ["XDG_CONFIG_HOME"] = str(folder / "config")
    return Terminal(["-P", "-m", "grpo_tui", "--db", str(store), *more], 140, 45)


@contextmanager
def killed(terminal: Terminal) -> Iterator[Terminal]:
    """Kill the workbench on exit, because its run would survive the terminal."""
    try:
        yield terminal
    finally:
        for child in psutil.Process(terminal.child.pid).children(recursive=True):
            child.kill()
        terminal.child.close(force=True)


def smol(**changes: Any) -> RunConfig:
    """Configure a run of SmolLM2-135M on a task that needs no data."""
    base: dict[str, Any] = {
        "name": LIVE,
        "steps": 1000,
        "model": {"path": str(model_folder()), "lora_rank": 8},
        "task": {"name": "arithmetic"},
        "rollout": {"prompts": 4, "group_size": 4, "max_new_tokens": 48},
        "algorithm": {"beta": 0.04, "passes": 2},
        "evaluation": {"before_and_after": False, "every": 0, "pinned": 0},
    }
    return build(merge(base, changes))


# -- parts ----------------------------------------------------------------------------------------


def start(folder: Path) -> Iterator[Result]:
    """Measure command to first paint and to the filled runs table; the first run warms caches."""
    store = folder / "start.db"
    data.many_runs(store, START_RUNS)
    paints, tables = [], []
    for _ in range(6):
        begun = time.perf_counter()
        with killed(opened(store, folder)) as terminal:
            terminal.until("1 Runs")
            paints.append(time.perf_counter() - begun)
            terminal.until(f"{START_RUNS} runs")
            tables.append(time.perf_counter() - begun)
    yield Result("command to first paint, 500 runs, warm", statistics.median(paints[1:]), "s", 0.5)
    yield Result("command to the table of 500 runs, warm", statistics.median(tables[1:]), "s")


def keys(name: str, folder: Path) -> Iterator[Result]:
    """Time keys over all actions; keys that change no cell are counted separately."""
    store, live = stored(folder), name != "without a run"
    if not live:
        terminal = with_run(store, folder)
    elif "events" in name:
        terminal = with_run(store, folder, build({"name": LIVE, "steps": LONG}), "flood")
    else:
        terminal = with_run(store, folder, smol())
    with killed(terminal):
        if live:
            terminal.until_step(2)
        else:
            terminal.until(f"{RUNS_STORED} runs")
        measured = FOUND[name] = walked(terminal, ASKED.keys, live)
    for percent, target in KEY_TARGETS.items():
        yield Result(
            f"key, {name}, p{percent} of {ASKED.keys:,}", measured.percentile(percent), "ms", target
        )
    if "trains" in name:
        yield Result(f"steps made {name}", steps_done(store), "steps")
    yield Result(f"keys {name} without an answer", measured.unanswered.total(), "keys")
    for value, key in sorted(measured.spent)[-20:]:
        print(f"   {value:6.0f} ms  {key}", file=sys.stderr)
    print(f"   lost: {dict(measured.unanswered)}; not fired: {unfired()}", file=sys.stderr)


def steps_done(store: Path) -> int:
    """The steps of the run that trained."""
    with closing(sqlite3.connect(store)) as connection:
        return int(
            connection.execute("SELECT max(step) FROM run WHERE name = ?", (LIVE,)).fetchone()[0]
        )


def beside() -> Iterator[str]:
    """Tabulate the keys of all measured cases, one column per case."""
    yield "| key | " + " | ".join(FOUND) + " | target |"
    yield "|---" * (len(FOUND) + 2) + "|"
    for percent, target in KEY_TARGETS.items():
        values = [f"{measured.percentile(percent):.3g} ms" for measured in FOUND.values()]
        yield f"| p{percent} of {ASKED.keys:,} | {' | '.join(values)} | < {target:g} ms |"
    unanswered = [str(measured.unanswered.total()) for measured in FOUND.values()]
    yield f"| without an answer | {' | '.join(unanswered)} | |"


def watch(folder: Path) -> Iterator[Result]:
    """Time the same steps four times: headless, twice with Watch in front, headless."""
    alone, seen = list[list[float]](), list[list[float]]()
    for turn, watched in enumerate((False, True, True, False)):
        store = folder / f"{turn}.db"
        config = smol(steps=STEPS, rollout={"prompts": 2, "max_new_tokens": 32})
        if watched:
            with killed(with_run(store, folder, config)) as terminal:
                watch_to_the_end(terminal, store)
        else:
            settings = folder / "run.yaml"
            settings.write_text(json.dumps(config.model_dump(mode="json")))
            terminal = Terminal(
                ["-P", "-m", "grpo_tui", "train", str(settings), "--db", str(store)]
            )
            assert terminal.ended(900) == 0, terminal.text()
        (seen if watched else alone).append(steps_of(store))
    pairs = [statistics.mean(column) for column in zip(*alone, strict=True)]
    with_watch = [statistics.mean(column) for column in zip(*seen, strict=True)]
    yield Result("a step of SmolLM2, headless, mean", statistics.mean(pairs), "s")
    cost = sum(with_watch) / sum(pairs) - 1
    yield Result("Watch in front adds to a step, ABBA", 100 * cost, "%", 3.0)
    spread = max(sum(a) for a in alone) / min(sum(a) for a in alone) - 1
    yield Result("the two headless runs differ by", 100 * spread, "%")


def watch_to_the_end(terminal: Terminal, store: Path) -> None:
    """Read the output until the run ends; parsing it here would compete with the run."""
    terminal.until_step(1)
    end = time.monotonic() + 900
    while not run_is_over(store):
        assert time.monotonic() < end, f"the run in {store} has not ended"
        settled = time.monotonic() + 1.0
        while (left := settled - time.monotonic()) > 0:
            if terminal.waiting(left):
                terminal.take()


def run_is_over(store: Path) -> bool:
    """Return whether the only run has completed."""
    with closing(sqlite3.connect(store)) as connection:
        return bool(connection.execute("SELECT 1 FROM run WHERE status = 'completed'").fetchall())


def steps_of(store: Path) -> list[float]:
    """Return the seconds of each step of the only run, without the first, which compiles."""
    with closing(StoreReader(store)) as reader:
        values = reader.metric_series(reader.resolve("@last").key, "step_time").values
    return list(values[1:])


def memory(folder: Path) -> Iterator[Result]:
    """Measure the growth of the workbench's resident memory during a long run, Watch in front."""
    store = folder / "memory.db"
    long = build({"name": LIVE, "steps": LONG})
    with killed(with_run(store, folder, long, "haste")) as terminal:
        terminal.until_step(1000)
        process = psutil.Process(terminal.worker())
        before = process.memory_info().rss
        terminal.until(f"step {LONG}/", 600)
        gained = process.memory_info().rss - before
    yield Result("memory of the process at step 1,000", before / 1e6, "MB")
    yield Result(f"it gains until step {LONG:,}", gained / 1e6, "MB", 60.0)


def runs(folder: Path) -> Iterator[Result]:
    """Page down a table of 5,000 runs, and through the steps of a million rollouts."""
    store = folder / "runs.db"
    data.many_runs(store, MANY_RUNS)
    keys = ["pagedown"] * 60 + ["down", "up"] * 20
    with killed(opened(store, folder)) as terminal:
        terminal.until(f"{MANY_RUNS:,} runs", 120)
        yield from scrolled(terminal, f"in {MANY_RUNS:,} runs", keys)
    store = folder / "rollouts.db"
    count = many_rollouts(store)
    earlier, on = ["left_curly_bracket"] * 30, ["right_curly_bracket"] * 20  # by ten steps
    keys = earlier + ["less_than_sign"] * 10 + ["down"] * 5 + ["p"] * 10 + ["n"] * 10 + on
    with killed(opened(store, folder)) as terminal:
        terminal.until("1 run", 120)
        terminal.press("\r")
        terminal.until("▌3 Watch▐", 60)
        terminal.press("4")
        terminal.until("by token", 60)
        yield from scrolled(terminal, f"in {count:,} rollouts", keys)


def scrolled(terminal: Terminal, where: str, keys: list[str]) -> Iterator[Result]:
    """Time how long moves take to appear."""
    measured = Keys()
    press(Ear(terminal), Stop(("",), "", " ".join(keys)), measured, len(keys))
    yield Result(f"a move {where}, p50", measured.percentile(50), "ms")
    yield Result(f"a move {where}, p95", measured.percentile(95), "ms", 100)
    yield Result(f"moves {where} without an answer", measured.unanswered.total(), "keys")


def many_rollouts(store: Path) -> int:
    """Make a run of a million rollouts from copies of one recorded step; prompts recur."""
    script = Script(steps=1, total_steps=STEPS_OF_MANY, prompts=16, group=8, finished=True)
    record(store, script.events(), name="long-haul")
    with closing(sqlite3.connect(store)) as connection, connection:
        for table, new in (
            (
                "rollout_group",
                {
                    "id": "id + n * 1000",
                    "step": "n + 1",
                    "seq": "seq + n * 1000",
                    "prompt_hash": "prompt_hash || (n % 2000)",
                },
            ),
            ("rollout", {"id": "id + n * 1000", "group_id": "group_id + n * 1000"}),
            ("rollout_reward", {"rollout_id": "rollout_id + n * 1000"}),
        ):
            names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            rows = ", ".join(new.get(name, name) for name in names)
            which = {"rollout_group": "origin = 'train'"}.get(table, "1")
            connection.execute(
                f"INSERT INTO {table} ({', '.join(names)}) WITH RECURSIVE c (n) AS (SELECT 1 UNION "
                f"ALL SELECT n + 1 FROM c WHERE n < {STEPS_OF_MANY - 1}) "
                f"SELECT {rows} FROM c, {table} WHERE {which}"
            )
        connection.execute(f"UPDATE run SET step = {STEPS_OF_MANY}")
        return int(connection.execute("SELECT count(*) FROM rollout").fetchone()[0])


PARTS: dict[str, Callable[[Path], Iterator[Result]]] = {
    "start": start,
    "keys": partial(keys, "without a run"),
    "training": partial(keys, "while SmolLM2 trains"),
    "flood": partial(keys, f"while {FLOOD:,} events a second arrive"),
    "watch": watch,
    "memory": memory,
    "runs": runs,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and write it to a file if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="all, if none is named")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keys", type=int, default=ASKED.keys, help="of each of the three cases")
    chosen = parser.parse_args(arguments, ASKED)
    # the terminal asks for one thread, and full speed needs all of them
    os.environ["GRPO_TUI_THREADS"] = str(threads.cores())
    lines = ["| what | measured | target |", "|---|---|---|"]
    for part in chosen.parts or PARTS:
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="grpo-tui-bench-") as folder:
            for result in PARTS[part](Path(folder)):
                lines.append(result.line())
                print(lines[-1], flush=True)
        print(f"   {part} took {time.perf_counter() - begun:.0f} s", file=sys.stderr)
    if len(FOUND) > 1:
        lines += ["", *beside()]
        print("\n".join(lines[-6:]), flush=True)
    if chosen.out is not None:
        chosen.out.write_text("# What the workbench costs\n\n" + "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
