"""Key latency over every action of the workbench, in a pty: the key parts of benchmarks.app.

Latency is the time from writing the byte to the first output after which a cell has changed that
the run does not change by itself.
"""

import itertools
import json
import os
import sqlite3
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks import app_tour as tour
from benchmarks import store_data as data
from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_tui.experiments.db.texts import iso
from grpo_tui.experiments.queue import RunQueue
from grpo_tui.experiments.store import ExperimentStore
from tests.app import dialogues
from tests.app.stored import record, run_events
from tests.e2e.terminal import Terminal

COLUMNS, ROWS = 140, 45
COPIED = 60
RUNS_STORED = COPIED + 5
PATIENCE = 2.0  # seconds after which a key counts as unanswered
QUIET, REST = 0.1, 0.5  # quiet for QUIET seconds means settled; wait at most REST seconds
FLOOD = 1000  # events a second
HEEDED_S = 0.1  # after which the flood does what it was asked

# The workbench with a run that starts at once; `engine` names a function below as its engine.
PROGRAM = """
from grpo_tui.app.guardian import guard

guard()
import json, sys, time
from pathlib import Path
from grpo_tui.app.tui import app as workbench
from grpo_tui.app.tui.messages import LaunchRequested
from grpo_engine.config.parse import build

store, tree, engine = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
if engine:
    import grpo_engine.trainer
    from benchmarks import app_keys

    def run(config, control, **_):
        return getattr(app_keys, engine)(config, control)

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


def flood(config: RunConfig, control: Control) -> Iterator[Any]:
    """Emit `FLOOD` events a second: steps of 64 answers, an event for about a token of each."""
    from tests.app.script import Script

    events = list(Script(steps=20, total_steps=config.steps, slices=26).events())
    script = [event for event in events if event.step]
    yield from events[: len(events) - len(script)]
    begun = unasked = time.monotonic()
    for count, event in enumerate(itertools.cycle(script)):
        if control.stop_after_step:
            return
        if not (control.paused or control.checkpoint_requested):
            unasked = time.monotonic()
        elif time.monotonic() > unasked + HEEDED_S:
            yield from acknowledged(control, event.step)
        yield replace(event, step=event.step + 20 * (count // len(script)))
        early = count / FLOOD - (time.monotonic() - begun)
        if early > 0.002:
            time.sleep(early)


def acknowledged(control: Control, step: int) -> Iterator[Any]:
    """Pause and save a checkpoint when asked to, as a trainer does."""
    from grpo_engine.events import CheckpointSaved, RunPaused, RunResumed

    if control.paused:
        yield RunPaused(step=step)
        while control.wait_while_paused(1.0):
            pass
        yield RunResumed(step=step)
    if control.pop_checkpoint():
        yield CheckpointSaved(step=step, path=f"checkpoints/{step}", best=False, seconds=0.1)


def haste(config: RunConfig, control: Control) -> Iterator[Any]:
    """Emit steps without computing: every tenth has two groups, each has the trainer's metrics."""
    from tests.app.script import Script

    begin, *first = Script(steps=1, total_steps=config.steps, prompts=2, group=4).events()
    yield begin
    step_of = [event for event in first if event.step == 1]
    finished = next(event for event in step_of if type(event).__name__ == "StepFinished")
    for step in range(1, config.steps + 1):
        if control.stop_after_step:
            return
        for event in step_of if step % 10 == 0 else [finished]:
            yield replace(event, step=step)


@dataclass
class Keys:
    """Milliseconds per key, and the keys that were never answered."""

    spent: list[tuple[float, str]] = field(default_factory=list)
    unanswered: Counter[str] = field(default_factory=Counter)

    def percentile(self, percent: int) -> float:
        """Return a percentile of the latencies in milliseconds."""
        return statistics.quantiles([value for value, _ in self.spent], n=100)[percent - 1]


def stored(folder: Path) -> Path:
    """Make a store of copied runs, and of the five runs that the tour opens.

    From the newest on: a sweep of three with all answers and their token numbers, a run of
    dialogues, and one that was trained, whose checkpoint can be asked and begun with.
    """
    store = folder / "keys.db"
    data.many_runs(store, COPIED)
    trained(store, folder)
    record(store, finished(dialogues.run_events()), name="lucky-guess", rewards={"functions": []})
    with closing(ExperimentStore(store)) as database:
        queue = RunQueue(database)
        sweep, _ = queue.sweep("seeds", {"seed": [0, 1, 2]}, [])
        for number in range(4):
            queue.finish(queue.add(data.config(), name=f"twin-{number}"), "skipped")
    for seed, name in enumerate(("calm-otter", "swift-heron", "dry-newt")):
        record(
            store,
            run_events(steps=30, seed=3 + seed),
            sweep,
            name=name,
            seed=seed,
            rewards={"functions": []},
        )
    with closing(sqlite3.connect(store)) as connection, connection:
        for key, created in connection.execute("SELECT id, created_at FROM run").fetchall():
            old = datetime.fromisoformat(created) - timedelta(days=3)  # keeps the shown age fixed
            connection.execute(
                "UPDATE run SET created_at = ? WHERE id = ?", (iso(old.timestamp()), key)
            )
    return store


def finished(events: Iterable[Any]) -> Iterator[Any]:
    """Complete a run: another one could be resumed."""
    from grpo_engine.events import RunFinished

    yield from events
    yield RunFinished(step=2, reason="completed", summary={})


def trained(store: Path, folder: Path) -> None:
    """Train a tiny model for two steps."""
    from grpo_tui.app.jobs.start import new_job
    from tests.engine.runs import settings, write_world

    (folder / "world").mkdir()
    job = new_job(settings(write_world(folder / "world"), steps=2, name="tiny-ant"), store=store)
    job.train(lambda _: None)
    job.close()


def opened(
    store: Path, folder: Path, config: RunConfig | None = None, engine: str = ""
) -> Terminal:
    """Open the workbench in a pty, with a run if there is a config."""
    os.environ["XDG_CONFIG_HOME"] = str(folder / "config")
    tree = config.model_dump(mode="json") if config is not None else {}
    program = ["-P", "-c", PROGRAM, str(store), json.dumps(tree), engine]
    return Terminal(program, COLUMNS, ROWS, folder)


class Ear:
    """Reads a terminal and times what changes on its screen."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal, self.screen = terminal, tour.Screen(COLUMNS, ROWS)
        self.screen.draw(terminal.raw)
        self._last = time.perf_counter()  # time of the last output

    def next(self, seconds: float) -> float:
        """Draw the next output and return its time; 0 if none came in time."""
        if not self._terminal.waiting(max(0.0, seconds)):
            return 0.0
        data, self._last = self._terminal.take(), time.perf_counter()
        self.screen.draw(data)
        return self._last

    def settle(self) -> tuple[object, ...]:
        """Draw output until the screen, or the part that the run leaves alone, has settled."""
        frame, since = tour.still(self.screen), self._last
        end = time.perf_counter() + REST
        while at := self.next(min(end, since + QUIET) - time.perf_counter()):
            new = tour.still(self.screen)
            if new != frame:
                frame, since = new, at
        return frame

    def measure(self, key: str, patience: float = PATIENCE) -> float:
        """Return milliseconds from the byte to the output that changed the screen; 0 if none."""
        before = self.settle()
        begun = time.perf_counter()
        self._terminal.press_now(tour.BYTES.get(key, key))
        while (left := begun + patience - time.perf_counter()) > 0:
            at = self.next(left)
            if at and tour.still(self.screen) != before:
                return (at - begun) * 1e3
        return 0.0


def walk(ear: Ear, stop: tour.Stop, answered: Keys, count: int) -> None:
    """Go to a stop and press its keys."""
    for key in ("escape", "escape", "escape", "escape", *stop.way.split()):
        ear.measure(key, 3 * QUIET if key == "escape" else REST)
    press(ear, stop, answered, count)


def press(ear: Ear, stop: tour.Stop, answered: Keys, count: int) -> None:
    """Press the keys of a stop until the wanted number is reached."""
    for index, key in enumerate(pressed(ear, stop.keys)):
        if len(answered.spent) + answered.unanswered.total() >= count:
            return
        value = ear.measure(key)
        name = f"{stop.screens[0]} {index}: {key}"
        if os.environ.get("TOUR_DEBUG"):
            print(f"{value:7.1f} ms  {name}", flush=True)
        if value:
            answered.spent.append((value, name))
        else:
            answered.unanswered[name] += 1
            if os.environ.get("TOUR_DEBUG"):
                print(name, *ear.screen.display, sep="\n", flush=True)


def pressed(ear: Ear, keys: str) -> Iterator[str]:
    """Return the keys one by one, and one with `AROUND` until it has led back to the titles."""
    for key in keys.split():
        single = key.removesuffix(tour.AROUND)
        before = titles(ear)
        yield single
        while single != key and titles(ear) != before:
            yield single


def titles(ear: Ear) -> str:
    """Return the titles of the table, once they are drawn."""
    ear.settle()
    return ear.screen.display[tour.TITLES]


def walked(terminal: Terminal, count: int, live: bool) -> Keys:
    """Repeat the tour until the wanted number of keys is reached."""
    answered, ear = Keys(), Ear(terminal)
    while len(answered.spent) + answered.unanswered.total() < count:
        before = len(answered.spent)
        for stop in tour.LIVE_STOPS if live else tour.STOPS:
            walk(ear, stop, answered, count)
        assert len(answered.spent) > before, "\n".join(ear.screen.display)
    return answered
