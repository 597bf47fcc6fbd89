"""Data written by earlier versions opens, replays and resumes with the same numbers."""

import csv
import io
import json
import math
import re
import shutil
import sqlite3
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from grpo_engine import events as ev
from grpo_tui.app.feed import demo
from grpo_tui.experiments.db.machine import host_name
from grpo_tui.experiments.db.paths import spill_file
from grpo_tui.experiments.db.tables import CURRENT
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import writable
from grpo_tui.experiments.recorded_events import events_after
from tests.e2e.test_processors import CPUS, EMULATOR, HERE, emulated
from tests.old.tell import EXPECTED, FIRST, SPILL, SPILLED, STORE, told, unpack

VERSIONS = sorted(Path(__file__).parent.glob("v*"))
EARLY = "v0.1.0"
"""Of before everything was computed by one graph, in another order; other versions are exact."""
RUNS = [run for version in VERSIONS for run in sorted(version.glob("runs/*"))]


@pytest.fixture(params=VERSIONS, ids=lambda version: version.name)
def version(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def rows(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def stored(store: Path) -> list[ev.Event]:
    """All facts of the run that is in both stores."""
    with closing(StoreReader(store)) as reader:
        found = events_after(reader, reader.resolve(FIRST).key, after=0, limit=10_000)
    return [fact.event for fact in found]


def is_near(one: object, other: object) -> bool:
    """Whether facts are equal, but for token numbers that 0.1 stored in fewer bits."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=2**-11, abs_tol=1e-6)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_near(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_near, one, other))
    return one == other


def rounded(text: str) -> str:
    """A text whose numbers have 13 digits: the last ones depend on the order of a sum."""
    return re.sub(r"\d\.\d{13,}(e-\d+)?", lambda match: f"{float(match[0]):.13g}", text)


# what 0.1 said of a comparison, and is gone or beside it now, or is new
GONE = {
    "at_step",
    "delta_last",
    "delta_at",
    "better",
    "more_seeds",
    "more_problems",
    "method",
    "run",
    "baseline",
    "step",
    "baseline_step",
    "best_n",
    "last_n",
    "at_n",
    "effects",
}


def without_gone(tree: Any) -> Any:
    if isinstance(tree, list):
        return [without_gone(item) for item in tree]
    if isinstance(tree, dict):
        return {name: without_gone(item) for name, item in tree.items() if name not in GONE}
    return tree


def without_columns(text: str, names: set[str]) -> str:
    """A table in CSV without the columns that are newer."""
    header, *lines = csv.reader(io.StringIO(text, newline=""))
    kept = [index for index, name in enumerate(header) if name not in names]
    return "\n".join(repr([line[index] for index in kept]) for line in (header, *lines))


def comparable(version: Path, name: str, text: str) -> str:
    """What a command printed, without what is newer, and the tests that are now the rankings'."""
    changed = {"compare.json": ["tests", "sources", "by_recipe", "seeds", "equal_work"]}
    changed |= {
        name: ["ancestry", "begun_from", "origin", "code", "files"]
        for name in ("show.json", "resumed.json")
    }
    text = re.sub(r'\s*"bytes": \d+,', "", text)  # the size of a run
    text = re.sub(r',\s*"health(?:_reason)?": "(?:[^"\\]|\\.)*"', "", text)
    text = re.sub(r"\\+(?:x|u00)(?=[0-9a-f]{2})", r"\\u00", text)  # control characters in CSV
    if version.name == EARLY:
        changed["compare.json"].append("rankings")
    if name == "rollouts.json":
        text = re.sub(r'"group_std": [^,]+, |"failed": "[^"]*", ', "", text)
    if name == "rollouts.csv":
        text = without_columns(text, {"group_std", "failed"})
    if name not in changed:
        return rounded(text)
    tree = json.loads(text)
    for key in changed[name]:
        tree.pop(key, None)
    for key in {"metrics", "rankings"} & tree.keys():
        tree[key] = without_gone(tree[key])
    return rounded(json.dumps(tree, indent=2, ensure_ascii=False, sort_keys=True))


@pytest.mark.slow
def test_the_commands_and_the_replay_say_what_they_said(version: Path, tmp_path: Path) -> None:
    folder = unpack(version, tmp_path / "data")
    before = (folder / STORE).read_bytes()

    said = told(folder, "store")

    for name, text in said["printed"].items():
        expected = (version / EXPECTED / name).read_bytes().decode()
        assert comparable(version, name, text) == comparable(version, name, expected), name
    assert said["replayed"] == [
        [due, None if progress else at, progress, *event]  # progress is not recorded
        for due, at, progress, *event in rows(version / EXPECTED / "replay.jsonl")
    ]
    schema = int.from_bytes(before[60:64], "big")  # SQLite's user_version
    kept = list(folder.glob(f"{Path(STORE).stem}.*.db"))
    if schema == CURRENT:
        assert (folder / STORE).read_bytes() == before
    assert len(kept) == int(schema < CURRENT)  # an older store is migrated after a backup


@pytest.mark.slow
def test_a_store_that_was_opened_to_write_says_the_same(version: Path, tmp_path: Path) -> None:
    folder = unpack(version, tmp_path / "data")
    writable(folder / STORE)  # opening for writing migrates the schema

    for name, text in told(folder, "store")["printed"].items():
        expected = (version / EXPECTED / name).read_bytes().decode()
        assert comparable(version, name, text) == comparable(version, name, expected), name


def test_what_was_spilled_is_taken_in_as_it_would_have_been_stored(
    version: Path, tmp_path: Path
) -> None:
    folder = unpack(version, tmp_path / "data")
    store = demo.unpack(tmp_path / "spilled", folder / SPILLED)
    with closing(sqlite3.connect(store)) as conn:
        # make the spill come from a finished process on this machine
        conn.execute("UPDATE attempt SET host = ?", (host_name(),))
        (short,) = conn.execute("SELECT short FROM run").fetchone()
        conn.commit()
    waiting = spill_file(store, short)
    waiting.parent.mkdir(parents=True)
    shutil.copy(folder / SPILL, waiting)

    writable(store)

    assert not waiting.exists()
    events = stored(store)
    notes = [e for e in events if isinstance(e, ev.NoteWritten) and "is locked" in e.text]
    facts = [ev.to_json(event) for event in events if event not in notes]
    assert is_near(facts, [ev.to_json(event) for event in stored(folder / STORE)])
    assert len(notes) == 1


def resumes(run: Path, folder: Path, python: str = sys.executable) -> Iterator[tuple[Any, Any]]:
    """Each result after the checkpoint, from this version and from the one that made it."""
    version = run.parents[1]
    copy = unpack(version, folder)
    here = told(copy, "resumed", str(run.relative_to(version)), python=python)["facts"]
    for fact in here if version.name == EARLY else ():
        for numbers in fact.get("numbers", ()):
            numbers.pop("updates", None)  # recorded since
        _leave_out_accuracy(fact)
    for fact in here:
        _leave_out_counts(fact)
    return zip(here, rows(version / EXPECTED / f"{run.name}.jsonl"), strict=True)


def _leave_out_counts(fact: dict[str, Any]) -> None:
    """Remove the numbers of answers behind held-out means, which are recorded since."""
    metrics = fact.get("metrics", {})
    for name in [name for name in metrics if "/scored/" in name]:
        del metrics[name]
    for row in fact.get("rows", ()):
        row.pop("scored", None)


def _leave_out_accuracy(fact: dict[str, Any]) -> None:
    """Remove the task's own accuracy, which is measured since, whatever the rewards are."""
    name = "exact_answer"
    fact.get("metrics", {}).pop(f"eval/rewards/{name}", None)
    for row in fact.get("rows", ()):
        row.get("rewards", {}).pop(name, None)
    group = fact.get("group")
    for completion in group["completions"] if isinstance(group, dict) else ():
        completion["rewards"] = [one for one in completion["rewards"] if one["name"] != name]


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.parents[1].name}-{run.name}")
def test_a_checkpoint_resumes_to_the_same_numbers(run: Path, tmp_path: Path) -> None:
    for here, then in resumes(run, tmp_path / "data"):
        assert agrees(run, here, then)


@pytest.mark.slow
@pytest.mark.skipif(EMULATOR is None, reason=f"qemu-{HERE} is missing: install qemu-user")
@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.parents[1].name}-{run.name}")
def test_it_does_so_on_an_older_processor(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QEMU_CPU", CPUS[HERE][0])
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)  # it was chosen for this processor
    for here, then in resumes(run, tmp_path / "data", emulated(tmp_path)):
        assert agrees(run, here, then)


def agrees(run: Path, here: Any, then: Any) -> bool:
    """Whether results are equal: tokens always, numbers of the early version but for rounding."""
    is_exact = run.parents[1].name != EARLY and HERE == "x86_64"
    return bool(here == then) if is_exact else near(here, then)


def near(here: Any, then: Any) -> bool:
    """Whether the numbers differ only by rounding."""
    if isinstance(then, dict):
        return here.keys() == then.keys() and all(near(here[k], then[k]) for k in then)
    if isinstance(then, list):
        return len(here) == len(then) and all(map(near, here, then))
    close: bool = here == then or (
        isinstance(then, float) and here == pytest.approx(then, rel=1e-5, abs=3e-5)
    )
    return close


def test_the_data_names_no_folder_of_the_machine_that_made_it(
    version: Path, tmp_path: Path
) -> None:
    folder = unpack(version, tmp_path / "data")
    demo.unpack(tmp_path / "spilled", folder / SPILLED)
    for file in (*folder.rglob("*"), *(tmp_path / "spilled").rglob("*")):
        if file.is_file() and file.suffix not in (".safetensors", ".xz"):
            content = file.read_bytes()
            for place in (b"/tmp/", b"/home/", b"/root", b"/Users/"):
                assert place not in content, (file, place)
    with tarfile.open(folder / SPILLED) as archive:
        assert {(one.uname, one.uid) for one in archive} == {("", 0)}
