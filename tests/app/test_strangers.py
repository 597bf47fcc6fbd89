"""Stores of strangers: whatever text stands in them, no screen, dialog or verb acts on a terminal.

The columns and the keys of their JSON are found by looking, so that a new one is covered by itself.
"""

import shutil
import sqlite3
import string
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_engine import events as ev
from grpo_engine.config.parse import build
from grpo_tui.experiments.errors import ImportRefusedError
from grpo_tui.experiments.export.rows import WHAT
from grpo_tui.experiments.importing import import_files
from grpo_tui.experiments.queue import RunQueue
from grpo_tui.experiments.store import ExperimentStore
from tests.app.calls import Cli, caller
from tests.app.planted import Place, acting, plant, plantable
from tests.app.stored import record, run_events
from tests.experiments.made import evaluated

NAMES = ("one", "two")
# places whose texts an import checks, or that name a kind of event; all others are taken
TIMES = {"created_at", "started_at", "ended_at", "heartbeat", "progress_at"}
KNOWN = {"uid", "short", "payload", "nonfinite", "spans", *TIMES}
KEYS = {
    screen: [*" *+-/?!.<>{}[]()@:;=^~", *string.ascii_letters, "\r", "\t", "\x1b[A", "\x1b[B",
             "\x1b[6~", "\x1b[F", "\x0f", "\x10", "\x03"]
    for screen in "12345"
}  # fmt: skip
# keys that load a model, start a run, or leave
LEFT_OUT = {"1": "aq", "2": "LPrq", "3": "q", "4": "q", "5": "q"}


def more_events() -> Iterator[ev.Event]:
    """The scripted run with one event of each kind that it lacks."""
    for event in run_events():
        if isinstance(event, ev.StepFinished) and event.step == 2:
            yield ev.AlertRaised(step=2, rule="kl", severity="warning", value=1.0, limit=0.5,
                                 explanation="KL is high.", remedy="Lower it.")  # fmt: skip
            yield ev.NoteWritten(step=2, text="a note", severity="warning")
            yield ev.CheckpointSaved(step=2, path="/nowhere", best=True, seconds=1.0)
            found = evaluated(2)
            yield replace(found, rows=tuple(replace(row, rewards={"accuracy": 1.0})
                                            for row in found.rows))  # fmt: skip
        yield event


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two runs, a sweep and a queue, as its maker had it."""
    path = tmp_path_factory.mktemp("theirs") / "s.db"
    task = {"name": "arithmetic", "system_prompt": "Think."}
    for seed, name in enumerate(NAMES):
        record(path, more_events(), name=name, seed=seed, task=task)
    with closing(ExperimentStore(path)) as store:
        store.set_note(1, "my note")
        store.tag(1, add=["mine"])
        queue = RunQueue(store)
        queue.add(build({"seed": 3, "task": task}), name="waiting", settings={"seed": 3})
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("PRAGMA journal_mode = DELETE")
    return path


@pytest.fixture(scope="module")
def sorted_places(
    theirs: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Place], list[Place]]:
    folder = tmp_path_factory.mktemp("trials")
    count = 0

    def accepted(path: Path) -> bool:
        nonlocal count
        count += 1
        with closing(ExperimentStore(folder / str(count) / "s.db")) as store:
            try:
                return len(import_files(store, [path])) == len(NAMES)
            except ImportRefusedError:
                return False

    return plantable(theirs, folder, accepted)


@pytest.fixture(scope="module")
def planted(
    theirs: Path, sorted_places: tuple[list[Place], list[Place]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:  # fmt: skip
    """Their store with every text planted that an import does not refuse."""
    folder = tmp_path_factory.mktemp("planted") / "store"
    shutil.copytree(theirs.parent, folder)
    plant(folder / theirs.name, sorted_places[0])
    return folder / theirs.name


@pytest.fixture(scope="module")
def imported(planted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("imported") / "mine.db"
    with closing(ExperimentStore(path)) as store:
        assert len(import_files(store, [planted])) == len(NAMES)
    return path


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    return caller(monkeypatch, capfdbinary)


VERBS = [
    ("runs",), ("runs", "--columns", "note, task, model, =task.system_prompt"), ("runs", "--all"),
    ("runs", "--csv"), ("runs", "--json"), ("runs", "--filter", "note:my"), ("runs", "--sort", "x"),
    ("runs", "show", "one"), ("runs", "show", "one", "--json"), ("runs", "show", "one", "--csv"),
    ("runs", "show", "nobody"), ("runs", "tag", "one", "--add", "t"), ("runs", "note", "one", "n"),
    ("runs", "rename", "one", "two"),
    ("report", "one"), ("report", "one", "--json"),
    ("logs", "one"), ("logs", "one", "--json"), ("plot", "one", "two"), ("plot", "one", "--csv"),
    ("plot", "one", "--metric", "nothing"), ("plot", "one", "--json"),
    ("compare", "one", "two"), ("compare", "one", "two", "--all"),
    ("compare", "one", "two", "--md"),
    ("compare", "one", "two", "--csv"), ("compare", "one", "two", "--json"),
    ("compare", "one", "two", "--example", "e0"), ("compare", "one", "two", "--metric", "reward"),
    ("compare", "one", "two", "--grid", "seed", "--grid", "task.system_prompt"),
    ("rollouts", "one"), ("rollouts", "one", "--search", "answer"), ("rollouts", "one", "--csv"),
    ("rollouts", "one", "--json"), ("rollouts", "one", "--step", "999"),
    ("config", "diff", "one", "two"), ("config", "diff", "one", "--json"),
    ("config", "diff", "one", "--csv"), ("config", "init", "--preset", "one"),
    ("stop", "one"), ("pause", "one"), ("continue", "one"), ("resume", "one"),
    ("resume", "one", "--steps", "1"), ("eval", "one"), ("models", "export", "one"),
    ("sweep", "--queue", "--add-only"), ("watch", "nobody"), ("replay", "nobody"),
    *(("export", "one", "--what", what, "--format", format)
      for what in WHAT for format in ("csv", "jsonl", "md")),
    ("runs", "archive", "one"), ("runs", "delete", "one", "--yes"), ("runs", "rename", "two", "3"),
]  # fmt: skip


@pytest.mark.parametrize("where", ["imported", "planted"])
def test_no_verb_prints_what_acts_on_a_terminal(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli,
    where: str,
) -> None:  # fmt: skip
    store: Path = request.getfixturevalue(where)
    shutil.copytree(store.parent, tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRPO_TUI_DB", str(tmp_path / "store" / store.name))
    if where == "planted":
        plant(tmp_path / "store" / store.name, [Place("run", "short"), Place("run", "uid")])
    found = {}
    for words in VERBS:
        done = cli(*words)
        if bad := acting(done.out.encode("utf-8", "surrogateescape") + done.err.encode()):
            found[words] = bad[:2]
    assert not found, "\n".join(f"{words}: {bad}" for words, bad in found.items())


def test_only_known_places_of_a_store_are_refused_by_an_import(
    sorted_places: tuple[list[Place], list[Place]],
) -> None:
    good, bad = sorted_places
    assert {place.column for place in bad} <= KNOWN
    assert len(good) > 100
