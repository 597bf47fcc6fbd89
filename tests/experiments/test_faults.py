"""File errors during a run: nothing is lost and training never stops."""

import json
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from grpo_engine import events as ev
from grpo_engine.control import Control
from grpo_tui.experiments.db.paths import spill_file
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.post_mortem import log_lines, post_mortem
from grpo_tui.experiments.purge import purge
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import Recorder, resume_run, start_run
from grpo_tui.experiments.record.spill import append, read_in_all
from grpo_tui.experiments.record.writer import RunWriter
from grpo_tui.experiments.recorded_events import events_after
from grpo_tui.experiments.store import ExperimentStore
from grpo_tui.experiments.values import AttemptView, RecordedEvent
from tests.disks import fill, small_disk
from tests.experiments.made import (
    CONFIG,
    ended,
    finished,
    metrics_at,
    put_all,
    record_run,
    sql,
    started,
    step_events,
    trouble,
)
from tests.patience import PATIENCE, until


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up on a locked store after 0.3 s; nothing else writes to it."""
    monkeypatch.setattr("grpo_tui.experiments.record.recorder.LOCK_LIMIT_S", 0.3)
    monkeypatch.setattr("grpo_tui.experiments.record.spill.LOCK_LIMIT_S", 0.3)
    monkeypatch.setattr("grpo_tui.experiments.record.live.PERIOD_S", 3600.0)


def begun(path: Path, **options: Any) -> Recorder:
    """A run whose first step is in the store."""
    handle = start_run(path, CONFIG, **options)
    put_all(handle, started(), *step_events(1))
    assert handle.flush(PATIENCE)
    return handle


def wait_until_stored(path: Path, step: int) -> None:
    with StoreReader(path) as reader:
        until(lambda: reader.resolve("@last").step >= step)


def steps_of(path: Path) -> list[int]:
    with StoreReader(path) as reader:
        return [view.step for view in reader.steps(reader.resolve("@last").key)]


def attempts(path: Path) -> tuple[AttemptView, ...]:
    with StoreReader(path) as reader:
        return reader.run(reader.resolve("@last").key).attempts


def check(path: Path) -> None:
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]
    assert sql(path, "PRAGMA foreign_key_check") == []


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process's transaction that never ends."""
    code = (
        "import sqlite3, sys, time\n"
        "c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "c.execute('BEGIN IMMEDIATE'); print('locked', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            yield
        finally:
            other.kill()


@pytest.mark.parametrize(
    "held", [0.0, pytest.param(60.0, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_a_store_locked_by_another_process_spills_and_is_caught_up(path: Path, held: float) -> None:
    handle = start_run(path, CONFIG)
    facts = handle.facts
    put_all(handle, started(), *step_events(1))
    assert handle.flush(PATIENCE)
    with locked(path):
        end = time.monotonic() + held
        step = 1
        while time.monotonic() < end or not trouble(handle):
            step += 1
            put_all(handle, *step_events(step))
            time.sleep(0.05)
        assert "imported later" in trouble(handle)
        until(spill_file(path, handle.id).exists)  # it is written after the announcement
    wait_until_stored(path, step)
    put_all(handle, finished(step + 1), ended(step + 1))
    assert handle.close(), trouble(handle)
    assert steps_of(path) == list(range(1, step + 2))
    assert not spill_file(path, handle.id).exists()
    shown = []
    while (fact := facts.get(timeout=PATIENCE)) is not None:
        if isinstance(fact[1], ev.StepFinished):
            shown.append(fact[1].step)
    assert shown == list(range(1, step + 2))
    check(path)


def test_a_full_disk_keeps_events_and_goes_on_when_there_is_room(path: Path) -> None:
    handle = begun(path)
    pages = handle.writer.connection.execute("PRAGMA page_count").fetchone()[0]
    handle.writer.connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    for step in range(2, 40):
        put_all(handle, *step_events(step, groups=4))
    until(lambda: "full" in trouble(handle))
    # the recorder reopens the file when it retries, which lifts the limit
    wait_until_stored(path, 39)
    assert handle.close()
    assert steps_of(path) == list(range(1, 40))
    check(path)


def test_a_full_file_system_loses_nothing_and_holds_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "small", "3m") as small:
        # the second location for spilled events is on the same full file system
        monkeypatch.setattr("tempfile.tempdir", str(small))
        path, control = small / "s.db", Control()
        handle = start_run(path, CONFIG, control=control)
        put_all(handle, started(), *step_events(1))
        assert handle.flush(PATIENCE)
        ballast = fill(small)
        for step in range(2, 12):
            put_all(handle, *step_events(step, groups=8))
        until(lambda: "free some disk space" in trouble(handle))
        assert control.blocked == trouble(handle)
        assert "No space left on device" in control.blocked
        ballast.unlink()
        wait_until_stored(path, 11)
        until(lambda: not control.blocked)
        assert handle.close(), trouble(handle)
        assert steps_of(path) == list(range(1, 12))
        check(path)


@pytest.mark.slow
def test_a_run_that_ends_while_the_store_is_locked_is_shown_as_it_ended(path: Path) -> None:
    handle = begun(path)
    with locked(path):
        put_all(handle, *step_events(2), *step_events(3), ended(3))
        assert not handle.close()
        assert re.search(r"\d+ events wait in .*spilled", handle.left)
        with StoreReader(path) as reader:
            (run,) = reader.runs()
            assert (run.status, run.step) == ("completed", 3)
            assert re.match(r"\d+ events wait in ", run.waiting)
            assert [one.status for one in reader.runs("status:completed")] == ["completed"]
    # the process that recorded the run keeps trying
    with StoreReader(path) as reader:
        until(lambda: not reader.runs()[0].waiting)
        (run,) = reader.runs()
        assert (run.status, run.step) == ("completed", 3)
        until(lambda: attempts(path)[0].ended_at is not None)
    assert steps_of(path) == [1, 2, 3]
    check(path)


@pytest.mark.slow
def test_spilled_events_are_taken_in_once_by_many_processes_and_guard_their_run(
    path: Path,
) -> None:
    short = record_run(path, steps=1)
    with StoreReader(path) as reader:
        run = reader.resolve(short)
    items = [
        RecordedEvent(1000 + place, time.time(), event)
        for place, event in enumerate([*step_events(2), *step_events(3), ended(3)])
    ]
    append(spill_file(path, run.id), items)
    with (
        ExperimentStore(path) as store,
        pytest.raises(StoreError, match=f"{len(items)} events wait in"),
    ):
        purge(store, run.key)
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from grpo_tui.experiments.record.spill import read_in_all\n"
        "from grpo_tui.experiments.store import ExperimentStore\n"
        "sys.stdin.readline()\n"
        "print(read_in_all(ExperimentStore(Path(sys.argv[1])))[0])"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", code, str(path)],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(4)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    counts = [int(child.communicate()[0]) for child in children]
    assert sorted(counts) == [0, 0, 0, len(items)]
    assert steps_of(path) == [1, 2, 3]
    check(path)


@pytest.mark.parametrize("tails", [True, False])
def test_a_deleted_store_is_written_again(path: Path, tails: bool) -> None:
    before = record_run(path, steps=2)
    handle = begun(path)
    path.unlink()
    if tails:
        for tail in ("-wal", "-shm"):
            path.with_name(path.name + tail).unlink(missing_ok=True)
    put_all(handle, *step_events(2))
    until(path.exists)
    put_all(handle, *step_events(3))
    assert handle.close()
    with StoreReader(path) as reader:
        assert reader.resolve(before).step == 2
        run = reader.resolve(handle.id).key
        assert [view.step for view in reader.steps(run)] == [1, 2, 3]
        assert any("deleted" in line for line in log_lines(reader, run))
    check(path)


def test_a_replaced_store_is_left_alone_and_the_run_goes_on_beside_it(tmp_path: Path) -> None:
    path, other = tmp_path / "s.db", tmp_path / "other" / "s.db"
    record_run(other, name="theirs")
    handle = begun(path, name="ours")
    theirs = attempts(other)
    for tail in ("-wal", "-shm"):
        path.with_name(path.name + tail).unlink(missing_ok=True)
    other.replace(path)
    (rescued,) = until(lambda: [*tmp_path.glob("s.rescued-*.db")])
    put_all(handle, *step_events(2))
    assert handle.close()
    assert attempts(path) == theirs  # from a run with the same key
    assert all(attempt.ended_at for attempt in attempts(rescued))
    with StoreReader(path) as reader:
        assert [run.name for run in reader.runs()] == ["theirs"]
    with StoreReader(rescued) as reader:
        assert [run.name for run in reader.runs()] == ["ours"]
        assert reader.resolve("ours").step == 2


def test_a_half_written_spill_file_is_taken_in_up_to_the_break(path: Path) -> None:
    short = record_run(path, steps=2)
    events = [*step_events(3), finished(4)]
    # an event that the store already has, then complete lines and the half of one
    spill, lines = spill_lines(path, short, finished(2, reward=9.0), *events, first=0)
    spill.write_bytes(b"\n".join([*lines, lines[0][:50]]))
    with ExperimentStore(path) as store:
        assert read_in_all(store) == (len(events), [])
    assert not spill.exists()
    assert steps_of(path) == [1, 2, 3, 4]
    with StoreReader(path) as reader:
        assert metrics_at(reader, reader.resolve(short).key, 2)["reward"] == 0.2
    check(path)


def spill_lines(
    path: Path, short: str, *events: ev.Event, first: int = 1
) -> tuple[Path, list[bytes]]:
    """The spill file of a run, and lines for it; `first` is the first place after the store's."""
    with ExperimentStore(path) as store:
        last = store.run_row(store.key_of(short)).last_seq
    lines = [
        json.dumps({"seq": last + number, "at": 1.0, "event": ev.to_json(event)}).encode()
        for number, event in enumerate(events, first)
    ]
    spill = spill_file(path, short)
    spill.parent.mkdir(parents=True, exist_ok=True)
    return spill, lines


def spilled(
    path: Path, short: str, *events: ev.Event, kind: str = "NoteWritten", unknown: int
) -> tuple[Path, bytes]:
    """A spill of these events; the one at `unknown` has a kind that only a later version knows."""
    spill, lines = spill_lines(path, short, *events)
    later = lines[unknown] = lines[unknown].replace(kind.encode(), b"WeatherTurned")
    spill.write_bytes(b"\n".join([*lines, b""]))
    return spill, later + b"\n"


def note(step: int) -> ev.Event:
    return ev.NoteWritten(step=step, text="it rains", severity="info")


@pytest.mark.parametrize("unknown", [0, -1])
def test_a_spilled_event_that_this_version_does_not_know_is_named_and_kept(
    path: Path, unknown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = record_run(path, steps=2)
    events: list[ev.Event] = [finished(3), finished(4)]
    events.insert(0 if unknown == 0 else 2, note(3))
    spill, line = spilled(path, short, *events, unknown=unknown)
    with ExperimentStore(path) as store:
        count, complaints = read_in_all(store)
    assert count == 2
    assert [text for text in complaints if "1 spilled events" in text and str(spill) in text]
    assert spill.read_bytes() == line
    assert steps_of(path) == [1, 2, 3, 4]

    # the next recorder of the run logs it, and gives its position to no other event
    handle = resume_run(path, short, from_step=4)
    put_all(handle, finished(5))
    assert handle.close()
    assert spill.read_bytes() == line
    with StoreReader(path) as reader:
        logged = log_lines(reader, reader.resolve(short).key)
        assert [text for text in logged if "1 spilled events" in text]

    # a version that knows the kind reads it in, and the run stays at its last step
    monkeypatch.setitem(ev.EVENT_TYPES, "WeatherTurned", ev.NoteWritten)
    with ExperimentStore(path) as store:
        assert read_in_all(store) == (1, [])
        assert read_in_all(store) == (0, [])
    assert not spill.exists()
    with StoreReader(path) as reader:
        run = reader.resolve(short)
        assert run.step == 5
        facts = [fact.event for fact in events_after(reader, run.key, after=0, limit=10_000)]
    assert facts.count(note(3)) == 1
    assert facts.count(finished(5)) == 1
    check(path)


def test_a_spilled_step_that_is_taken_in_late_leaves_the_run_at_its_last_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = record_run(path, steps=2)
    spilled(path, short, finished(3), finished(4), kind="StepFinished", unknown=0)
    with ExperimentStore(path) as store:
        assert read_in_all(store)[0] == 1
        before = store.run_row(store.key_of(short))
        monkeypatch.setitem(ev.EVENT_TYPES, "WeatherTurned", ev.StepFinished)
        assert read_in_all(store) == (1, [])
        after = store.run_row(store.key_of(short))
    assert (after.step, after.tokens, after.last_seq) == (4, before.tokens, before.last_seq)
    assert sorted(steps_of(path)) == [1, 2, 3, 4]


def test_a_spilled_event_that_the_store_refuses_is_kept_and_the_rest_taken_in(
    path: Path,
) -> None:
    short = record_run(path, steps=2)
    large = ev.StepFinished(step=3, metrics={"reward": 0.0}, tokens=2**70, elapsed=1.0)
    spill, line = spilled(path, short, note(3), large, finished(4), unknown=0)
    refused = spill.read_bytes().splitlines(keepends=True)[1]
    with ExperimentStore(path) as store:
        count, complaints = read_in_all(store)
    assert count == 1
    assert [text for text in complaints if "2 spilled events" in text]
    kept = spill.read_bytes().splitlines(keepends=True)
    assert {json.dumps(json.loads(one)) for one in kept} == {
        json.dumps(json.loads(one)) for one in (line, refused)
    }
    assert steps_of(path) == [1, 2, 4]


@pytest.mark.parametrize(
    "line", [b"what is this", b"[]", b'{"seq":"1"}', b'{"seq":%d,"at":1.0,"event":{}}' % 2**70]
)
def test_a_spilled_line_that_is_no_event_is_kept_and_the_rest_taken_in(
    path: Path, line: bytes
) -> None:
    short = record_run(path, steps=2)
    spill, later = spilled(path, short, finished(3), note(3), finished(4), unknown=1)
    spill.write_bytes(spill.read_bytes().replace(later, line + b"\n"))
    with ExperimentStore(path) as store:
        count, complaints = read_in_all(store)
        assert (count, len(complaints)) == (2, 1)
        assert store.run_row(store.key_of(short)).last_seq < 1000
    assert spill.read_bytes() == line + b"\n"
    assert steps_of(path) == [1, 2, 3, 4]


def test_a_run_is_not_resumed_before_its_spilled_events_are_in_the_store(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = record_run(path, steps=2)
    spill, _ = spilled(path, short, finished(3), note(3), unknown=1)

    def fail(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("database is locked")

    with monkeypatch.context() as patched:
        patched.setattr(RunWriter, "write", fail)
        with pytest.raises(StoreError, match=f"2 events wait in {spill}.*locked"):
            resume_run(path, short, from_step=3)
    handle = resume_run(path, short, from_step=3)
    put_all(handle, finished(4))
    assert handle.close()
    assert steps_of(path) == [1, 2, 3, 4]
    check(path)


def test_a_run_on_a_network_file_system_says_in_its_log_what_that_means(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "grpo_tui.experiments.record.recorder.network_file_system", lambda _: "nfs4"
    )
    short = record_run(path)
    with StoreReader(path) as reader:
        logged = log_lines(reader, reader.resolve(short).key)
    assert [line for line in logged if "(nfs4): only one process" in line]


def test_events_that_the_store_refuses_for_good_do_not_stop_the_rest(path: Path) -> None:
    handle = start_run(path, CONFIG)
    handle.put(started())
    handle.put(ev.StepFinished(step=1, metrics={"reward": 0.0}, tokens=2**70, elapsed=1.0))
    until(spill_file(path, handle.id).exists)
    handle.put(finished(2))
    assert handle.close()
    assert steps_of(path) == [2]
    (line,) = spill_file(path, handle.id).read_text().splitlines()
    assert json.loads(line)["event"]["step"] == 1
    assert re.match(rf"run {handle.name}: 1 events wait in ", handle.left)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills", [3, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_kill_9_loses_no_step_that_was_shown(path: Path, kills: int) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    resume = "-"
    for _ in range(kills):
        writer = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.experiments.writer_process",
                str(path),
                "100000",
                "0.002",
                resume,
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        resume = json.loads(writer.stdout.readline())["id"]
        time.sleep(chance.uniform(0.0, 0.7))
        writer.send_signal(signal.SIGKILL)
        shown = [line for line in writer.stdout.read().split("\n")[:-1] if line]
        writer.stdout.close()
        writer.wait()
        check(path)
        with StoreReader(path) as reader:
            summary = reader.resolve(resume)
            assert summary.status == "lost"
            assert post_mortem(reader, summary.key).last_step == summary.step
            stored = {view.step for view in reader.steps(summary.key)}
            for event in (ev.from_json(json.loads(line)) for line in shown):
                assert isinstance(event, ev.StepFinished)
                assert event.step in stored
                assert metrics_at(reader, summary.key, event.step) == event.metrics
                view = reader.groups(summary.key, step=event.step)[0]
                assert reader.tokens(summary.key, view.key) is not None
            assert sorted(stored) == list(range(1, len(stored) + 1))
