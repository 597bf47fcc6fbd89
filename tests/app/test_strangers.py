"""Stores of strangers: whatever text stands in them, no screen, dialog or verb acts on a terminal.

The columns and the keys of their JSON are found by looking, so that a new one is covered by itself.
"""

import json
import shutil
import sqlite3
import string
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_engine import events as ev
from grpo_engine.config.parse import build
from grpo_tui.experiments.errors import ImportRefusedError
from grpo_tui.experiments.export.rows import WHAT
from grpo_tui.experiments.importing import import_store
from grpo_tui.experiments.queue import RunQueue
from grpo_tui.experiments.store import ExperimentStore
from tests.app.calls import Cli, caller
from tests.app.planted import PLANTED, Place, acting, plant, plantable
from tests.app.stored import record, run_events
from tests.e2e.terminal import Terminal
from tests.engine.tiny import write_model
from tests.experiments.made import alerted, evaluated

NAMES = ("one", "two")
# places whose texts an import checks, or that name a kind of event; all others are taken
TIMES = {"created_at", "started_at", "ended_at", "heartbeat", "progress_at"}
KNOWN = {"uid", "short", "status", "payload", "nonfinite", "spans", *TIMES}
# places that hold one of a few words, which screens look up; another word is no text for people
CHOICES = {"origin", "mode", "finish", "severity", "status", "kind", "rule"}
KEYS = {
    screen: [
        *" *+-/?!.<>{}[]()@:;=^~",
        *string.ascii_letters,
        "\r",
        "\t",
        "\x1b[A",
        "\x1b[B",
        "\x1b[6~",
        "\x1b[F",
        "\x0f",
        "\x10",
        "\x03",
    ]
    for screen in "12345"
}
# keys that load a model, start a run or another program, or leave
LEFT_OUT = {"1": "Aq", "2": "LDq", "3": "q", "4": "oq", "5": "q"}


def more_events() -> Iterator[ev.Event]:
    """The scripted run with one event of each kind that it lacks."""
    for event in run_events(steps=2):
        if isinstance(event, ev.StepFinished) and event.step == 2:
            yield alerted(2, rule="kl", explanation="KL is high.", remedy="Lower it.")
            yield ev.NoteWritten(step=2, text="a note", severity="warning")
            yield ev.CheckpointSaved(step=2, path="/nowhere", best=True, seconds=1.0)
            found = evaluated(2)
            yield replace(
                found, rows=tuple(replace(row, rewards={"accuracy": 1.0}) for row in found.rows)
            )
        yield event


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two runs, a sweep and a queue, as its maker had it."""
    path = tmp_path_factory.mktemp("theirs") / "s.db"
    task = {"name": "arithmetic", "system_prompt": "Think."}
    for seed, name in enumerate(NAMES):
        record(path, more_events(), name=name, seed=seed, task=task)
    with ExperimentStore(path) as store:
        store.change(1, note="my note")
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
        with ExperimentStore(folder / str(count) / "s.db") as store:
            try:
                return len(import_store(store, path)) == len(NAMES)
            except ImportRefusedError:
                return False

    return plantable(theirs, folder, accepted, KNOWN)


@pytest.fixture(scope="module")
def planted(
    theirs: Path,
    sorted_places: tuple[list[Place], list[Place]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Their store with every text planted that an import does not refuse."""
    folder = tmp_path_factory.mktemp("planted") / "store"
    shutil.copytree(theirs.parent, folder)
    good = [place for place in sorted_places[0] if place.column != "origin"]  # answers are found
    plant(folder / theirs.name, good)
    return folder / theirs.name


@pytest.fixture(scope="module")
def imported(planted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("imported") / "mine.db"
    with ExperimentStore(path) as store:
        assert len(import_store(store, planted)) == len(NAMES)
    return path


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    return caller(monkeypatch, capfdbinary)


VERBS = [
    ("runs",), ("runs", "--columns", "note, task, model, =task.system_prompt"), ("runs", "--all"),
    ("runs", "--json"), ("runs", "--filter", "note:my"), ("runs", "--sort", "x"),
    ("runs", "show", "one"), ("runs", "show", "one", "--json"),
    ("runs", "show", "nobody"), ("runs", "tag", "one", "--add", "t"), ("runs", "note", "one", "n"),
    ("runs", "rename", "one", "other"),
    ("report", "one"), ("report", "one", "--json"), ("audit", "one"), ("audit", "one", "--json"),
    ("report", "one", "two", "--out", "page.html"), ("wait", "one", "--until", "step > 99"),
    ("plot", "one", "--out", "curves.svg", "--data"),
    ("logs", "one"), ("logs", "one", "--json"), ("plot", "one", "two"),
    ("plot", "one", "--metric", "nothing"), ("plot", "one", "--json"),
    ("compare", "one", "two"), ("compare", "one", "two", "--all"),
    ("compare", "one", "two", "--json"),
    ("compare", "one", "two", "--metric", "reward"),
    ("rollouts", "one"), ("rollouts", "one", "--search", "answer"), ("rollouts", "one", "--json"),
    ("rollouts", "one", "--step", "999"),
    ("config", "init", "--preset", "one"),
    ("stop", "one"), ("pause", "one"), ("continue", "one"), ("resume", "one"),
    ("resume", "one", "--steps", "1"), ("eval", "one"), ("models", "export", "one"),
    ("sweep", "--queue", "--add-only"), ("watch", "nobody"), ("replay", "nobody"),
    *(("export", "one", "--what", what, "--format", format)
      for what in WHAT for format in ("csv", "jsonl")),
    ("runs", "archive", "one"), ("runs", "delete", "one", "--yes"), ("runs", "rename", "two", "3"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("where", ["imported", "planted"])
def test_no_verb_prints_what_acts_on_a_terminal(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: Cli,
    where: str,
) -> None:
    store: Path = request.getfixturevalue(where)
    shutil.copytree(store.parent, tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("grpo_tui.app.cli.verbs.wait.RESUMED_S", 0.0)
    monkeypatch.setenv("GRPO_TUI_DB", str(tmp_path / "store" / store.name))
    if where == "planted":
        plant(tmp_path / "store" / store.name, [Place("run", "short"), Place("run", "uid")])
    with closing(sqlite3.connect(tmp_path / "store" / store.name)) as conn:
        shorts = conn.execute("SELECT short FROM run ORDER BY id").fetchall()
    ids = {name: short[:8] for name, (short,) in zip(NAMES, shorts, strict=True)}
    found = {}
    for words in VERBS:
        done = cli(*(ids.get(word, word) for word in words))
        if bad := acting(done.out.encode("utf-8", "surrogateescape") + done.err.encode()):
            found[words] = bad[:2]
        if "Traceback" in done.err:
            found[words] = [done.err[-1000:].encode()]
    assert not found, "\n".join(f"{words}: {bad}" for words, bad in found.items())


@pytest.mark.slow
def test_only_known_places_of_a_store_are_refused_by_an_import(
    sorted_places: tuple[list[Place], list[Place]],
) -> None:
    good, bad = sorted_places
    assert {place.column for place in bad} <= KNOWN
    assert len(good) > 100


@pytest.mark.slow
@pytest.mark.parametrize("screen", KEYS)
def test_no_screen_or_dialog_sends_what_acts_on_a_terminal(
    theirs: Path, sorted_places: tuple[list[Place], list[Place]], tmp_path: Path, screen: str
) -> None:
    shutil.copytree(theirs.parent, tmp_path / "theirs")
    good = [place for place in sorted_places[0] if not {place.column, place.key} & CHOICES]
    plant(tmp_path / "theirs" / theirs.name, good)
    store = tmp_path / "mine.db"
    with ExperimentStore(store) as mine:
        assert len(import_store(mine, tmp_path / "theirs" / theirs.name)) == len(NAMES)
    with Terminal(["-P", "-m", "grpo_tui", "--db", str(store)], 160, 48) as terminal:
        terminal.until("1 Runs")
        terminal.press_now("\r")
        terminal.until("3 Watch")
        sent = terminal.raw
        for key in KEYS[screen]:
            if key in LEFT_OUT[screen]:
                continue
            for pressed in ("\x1b", "\x1b", screen, key):
                terminal.press_now(pressed)
                while terminal.waiting(0.1):
                    sent += terminal.take()
                assert terminal.child.isalive(), f"{key!r} on {screen}: {sent[-2000:]!r}"
    assert not acting(sent)
    assert b"PLANTED" in sent


def model_texts(folder: Path) -> Iterator[tuple[str, list[Any]]]:
    """Every text in the files of a model folder, by file and path within it."""

    def inside(tree: Any, path: list[Any]) -> Iterator[list[Any]]:
        if isinstance(tree, str):
            yield path
        for key, value in tree.items() if isinstance(tree, dict) else ():
            yield from inside(value, [*path, key])
        for index, value in enumerate(tree if isinstance(tree, list) else ()):
            yield from inside(value, [*path, index])

    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        for path in inside(json.loads((folder / name).read_text()), []):
            yield name, path
    yield "tokenizer.json", ["added_tokens", 0, "content"]
    yield "tokenizer.json", ["model", "type"]
    yield "adapter/adapter_config.json", ["fine_tune_type"]
    yield "adapter/adapter_config.json", ["lora_parameters", "keys", 0]


def with_planted(text: str, path: Sequence[Any]) -> str:
    tree = json.loads(text)
    place = tree
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] += PLANTED
    return json.dumps(tree)


@pytest.mark.slow
def test_no_text_of_a_model_acts_on_a_terminal(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"transformers_version": "4.0"}))
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text(
        json.dumps(
            {
                "fine_tune_type": "lora",
                "num_layers": -1,
                "lora_parameters": {
                    "rank": 2,
                    "scale": 2.0,
                    "dropout": 0.0,
                    "keys": ["self_attn.q_proj"],
                },
            }
        )
    )
    found = {}
    for number, (name, path) in enumerate(model_texts(folder)):
        copy = shutil.copytree(folder, tmp_path / f"model-{number}")
        (copy / name).write_text(with_planted((copy / name).read_text(), path))
        words = [
            "train",
            "--db",
            str(tmp_path / "s.db"),
            "--set",
            f"model.path={copy}",
            "--set",
            "steps=1",
            "--set",
            "rollout.max_new_tokens=4",
        ]
        if name.startswith("adapter"):
            words += ["--set", f"model.adapter={copy / 'adapter'}"]
        with Terminal(["-P", "-m", "grpo_tui", *words]) as terminal:
            sent = terminal.child.read().replace(b"\r\n\a", b"\r\n")  # our bell at the end
        if bad := acting(sent):
            found[name, *path] = bad[:2]
    assert not found, "\n".join(f"{where}: {bad}" for where, bad in found.items())
