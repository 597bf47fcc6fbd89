"""How long a key takes, over every action of the workbench, in a pty: the parts of benchmarks.app.

The time is from the byte that is written to the first output after which a cell has changed that
the run does not change by itself.
"""

import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import app_tour as tour
from benchmarks import store_data as data
from grpo_engine.config import RunConfig
from tests.app.stored import record, run_events
from tests.e2e.terminal import Terminal

COLUMNS, ROWS, RUNS_STORED = 140, 45, 60
PATIENCE = 2.0  # seconds after which a key counts as lost
QUIET, REST = 0.04, 0.5  # a screen that was quiet for so long has settled; not waited for longer
FLOOD = 1000  # events a second

# The workbench with a run that starts at once; with `flood` events come from a list, not from MLX.
PROGRAM = """
import json, sys, time
from pathlib import Path
from app import app as workbench
from app.messages import LaunchRequested
from grpo_engine.settings import build

store, tree, flood = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
if flood:
    import grpo_engine.trainer
    from benchmarks.app_keys import steady

    def run(config, control, **_):
        return steady(control, flood)

    grpo_engine.trainer.run = run
opened = workbench.Workbench.on_mount

async def launch(self):
    await opened(self)
    if tree:
        self.post_message(LaunchRequested(build(tree)))

# not a subclass: Textual looks for the file of every class, and this has none
workbench.Workbench.on_mount = launch
sys.exit(workbench.open_workbench(store))
"""


def steady(control: Any, rate: int) -> Iterator[Any]:
    """A run of so many events a second: steps of 64 answers, token by token."""
    from tests.app.script import Script

    begun = time.monotonic()
    script = Script(steps=100_000, total_steps=100_000, prompts=8, group=8)
    for count, event in enumerate(script.events(), 1):
        if control.stop_after_step:
            return
        yield event
        ahead = count / rate - (time.monotonic() - begun)
        if ahead > 0.002:
            time.sleep(ahead)


@dataclass
class Keys:
    """What was measured: milliseconds per key, and which keys nothing answered."""

    spent: list[tuple[float, str]] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)

    def percentile(self, percent: int) -> float:
        """Milliseconds within which so many of a hundred keys were answered."""
        return statistics.quantiles([value for value, _ in self.spent], n=100)[percent - 1]


def stored(folder: Path) -> Path:
    """A store of runs, three of them with every answer and the numbers of its tokens."""
    store = folder / "keys.db"
    data.many_runs(store, RUNS_STORED)
    for seed, name in enumerate(("calm-otter", "swift-heron", "dry-newt")):
        record(store, run_events(steps=30, seed=3 + seed), name=name, seed=seed)
    return store


def opened(store: Path, folder: Path, config: RunConfig | None = None, flood: int = 0) -> Terminal:
    """The workbench in a pty, with a run if there is a config."""
    os.environ["XDG_CONFIG_HOME"] = str(folder / "config")
    tree = config.model_dump(mode="json") if config is not None else {}
    program = ["-P", "-c", PROGRAM, str(store), json.dumps(tree), str(flood)]
    return Terminal(program, COLUMNS, ROWS, folder)


def settle(terminal: Terminal) -> tuple[object, ...]:
    """Read until what does not change by itself has not changed for a moment."""
    end = time.perf_counter() + REST
    now = tour.still(terminal)
    since = time.perf_counter()
    while time.perf_counter() < end and time.perf_counter() - since < QUIET:
        if terminal.waiting(0.01):
            terminal.read(0.0)
            new = tour.still(terminal)
            if new != now:
                now, since = new, time.perf_counter()
    return now


def measure(terminal: Terminal, key: str) -> float:
    """Milliseconds from the byte to the output after which the screen has changed; 0 if none."""
    before = settle(terminal)
    begun = now = time.perf_counter()
    terminal.press_now(tour.BYTES.get(key, key))
    while now - begun < PATIENCE:
        chunks = []  # drawn later: that takes longer than the program needs for the next one
        while terminal.waiting(QUIET if chunks else 0.2):
            chunks.append((time.perf_counter(), terminal.take()))
        for place, (arrived, drawn) in enumerate(chunks, 1):
            terminal.draw(drawn)
            if tour.still(terminal) != before:
                for _, rest in chunks[place:]:
                    terminal.draw(rest)
                return (arrived - begun) * 1e3
        now = time.perf_counter()
    return 0.0


def walk(terminal: Terminal, stop: tour.Stop, found: Keys, count: int) -> None:
    """Go to a stop and press its keys."""
    for key in ("escape", "escape", "escape", "escape", *stop.way.split()):
        terminal.press_now(tour.BYTES.get(key, key))
        time.sleep(2 * QUIET if key == "escape" else 0.0)  # else it goes with the next key as alt
        settle(terminal)
    for place, key in enumerate(stop.keys.split()):
        if len(found.spent) >= count:
            return
        value = measure(terminal, key)
        name = f"{stop.screens[0]} {place}: {key}"
        if value:
            found.spent.append((value, name))
        else:
            found.lost[name] += 1
            if os.environ.get("TOUR_DEBUG"):
                print(name, terminal.text(), sep="\n", flush=True)


def walked(terminal: Terminal, count: int, live: bool) -> Keys:
    """The tour, again and again, until there are so many keys."""
    found = Keys()
    runs, watch = tour.RUNS.then("R R"), tour.WATCH.to("1 home down enter 3")
    if live:
        runs = tour.RUNS.then(f"R home {tour.STEER} R")
        watch = tour.WATCH.to("1 R home enter 1 R 3").then(f"{tour.STEER} q 3")
    while len(found.spent) < count:
        before = len(found.spent)
        for stop in (runs, watch, tour.ROLLOUTS, tour.COMPARE, tour.NEW_RUN):
            walk(terminal, stop, found, count)
        assert len(found.spent) > before, terminal.text()
    return found
