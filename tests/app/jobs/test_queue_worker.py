"""The queue's worker: waits for the run of a killed worker, and never starts it twice."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_engine.presets import preset
from grpo_tui.app.jobs.queue_worker import work
from grpo_tui.experiments.db.machine import host_name
from grpo_tui.experiments.queue import RunQueue
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import start_run
from grpo_tui.experiments.store import ExperimentStore
from tests.experiments.made import CONFIG, ended, finished, put_all, record_run, sql, started
from tests.patience import PATIENCE


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[RunQueue]:
    with ExperimentStore(tmp_path / "s.db") as store:
        yield RunQueue(store)


def test_a_run_that_outlived_its_worker_is_waited_for_and_taken_as_it_ends(
    queue: RunQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.Popen", None)  # nothing may be started
    item = queue.add(CONFIG, name="orphan")
    assert queue.take() is not None
    handle = start_run(queue.store.path, CONFIG, name="orphan")
    queue.attach(item, handle.key)
    put_all(handle, started(), finished(1))
    assert handle.flush(PATIENCE)
    sql(queue.store.path, f"""UPDATE queue_item SET lease_owner = '["{host_name()}", 1, "x"]'""")

    def end(_seconds: float) -> None:
        assert queue.item(item).state == "leased"
        handle.put(ended(1))
        handle.close()

    monkeypatch.setattr(
        "grpo_tui.app.jobs.queue_worker.time", SimpleNamespace(sleep=end, monotonic=time.monotonic)
    )
    assert work(queue) == 0
    assert queue.item(item).state == "done"


def test_a_sweep_does_not_train_the_same_run_twice_and_says_so(
    queue: RunQueue, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = record_run(queue.store.path, name="there")
    sweep, _ = queue.sweep("grid", {}, [({}, CONFIG)])
    assert work(queue) == 0
    with StoreReader(queue.store.path) as reader:
        assert reader.queue() == ()
        (item,) = reader.queue(ended=5)
    assert (item.state, item.run) == ("skipped", short)
    assert item.note == "the same settings and seed were trained as there"
    assert "`grpo-tui sweep --queue --again` trains it anyway" in capsys.readouterr().err
    trained = []

    def train(_queue: RunQueue, item: object) -> tuple[str, str]:
        trained.append(item)
        return "done", ""

    monkeypatch.setattr("grpo_tui.app.jobs.queue_worker.run_item", train)
    assert queue.requeue("skipped", sweep) == 1
    assert work(queue) == 0
    assert len(trained) == 1


def test_a_run_that_was_queued_by_itself_is_trained_though_the_same_run_exists(
    queue: RunQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_run(queue.store.path, name="there")
    item = queue.add(CONFIG, name="an unchanged clone")
    monkeypatch.setattr(
        "grpo_tui.app.jobs.queue_worker.run_item", lambda _queue, _item: ("done", "")
    )
    assert work(queue) == 0
    assert queue.item(item).state == "done"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"rewards": {"functions": ["abc", "format_all"]}},
            "rewards.functions: reward abc: 'abc' is no name; give a built-in name",
        ),
        ({"algorithm": {"recipe": "grpoo"}}, "did you mean grpo"),
    ],
    ids=["refused when it is tried", "refused when it is read"],
)
def test_a_queued_run_that_is_refused_says_what_was_refused_and_the_remedy(
    changes: dict[str, Any], words: str, queue: RunQueue, capfd: pytest.CaptureFixture[str]
) -> None:
    tree = preset("starter").tree
    queue.add({**tree, **{name: tree[name] | own for name, own in changes.items()}}, name="wrong")
    assert work(queue) == 1
    with StoreReader(queue.store.path) as reader:
        (item,) = reader.queue(ended=5)
    assert (item.state, item.run) == ("failed", None)
    assert words in item.note
    assert f"wrong: failed, {item.note}" in capfd.readouterr().err


def test_a_process_that_ends_without_a_word_says_how_to_see_why(
    queue: RunQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "grpo_tui.app.jobs.queue_worker.command",
        lambda *_: [sys.executable, "-c", "raise SystemExit(9)"],
    )
    key = queue.add(CONFIG, name="mute")
    assert work(queue) == 1
    assert queue.item(key).note == (
        "it ended with status 9 before it was recorded; `grpo-tui sweep --queue --retry` in a "
        "terminal shows why"
    )
