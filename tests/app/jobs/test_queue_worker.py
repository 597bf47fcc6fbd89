"""The queue's worker: waits for the run of a killed worker, and never starts it twice."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.jobs.queue_worker import work
from experiments.db.machine import host_name
from experiments.queue import RunQueue
from experiments.reader import StoreReader
from experiments.record.recorder import Recorder
from experiments.store import ExperimentStore
from tests.experiments.made import CONFIG, ended, finished, put_all, started
from tests.patience import PATIENCE


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[RunQueue]:
    with closing(ExperimentStore(tmp_path / "s.db")) as store:
        yield RunQueue(store)


def test_a_run_that_outlived_its_worker_is_waited_for_and_taken_as_it_ends(
    queue: RunQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.Popen", None)  # nothing may be started
    item = queue.add(CONFIG, name="orphan")
    assert queue.take() is not None
    recorder = Recorder(queue.store.path)
    handle = recorder.start_run(CONFIG, name="orphan")
    queue.attach(item, handle.key)
    put_all(handle, started(), finished(1))
    assert handle.flush(PATIENCE)
    queue._change(item, lease_owner=json.dumps([host_name(), 1, "another process"]))

    def end(_seconds: float) -> None:
        assert queue.item(item).state == "leased"
        handle.put(ended(1))
        handle.close()

    monkeypatch.setattr(
        "app.jobs.queue_worker.time", SimpleNamespace(sleep=end, monotonic=time.monotonic)
    )
    assert work(queue) == 0
    recorder.close()
    assert queue.item(item).state == "done"


def test_a_sweep_does_not_train_the_same_run_twice_and_says_so(
    queue: RunQueue, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder(queue.store.path)
    handle = recorder.start_run(CONFIG, name="there")
    put_all(handle, started(), finished(1), ended(1))
    assert handle.close()
    recorder.close()
    sweep, _ = queue.sweep("grid", {}, [({}, CONFIG)])
    assert work(queue) == 0
    with closing(StoreReader(queue.store.path)) as reader:
        assert reader.queue() == ()
        (item,) = reader.queue(ended=5)
    assert (item.state, item.run) == ("skipped", handle.id)
    assert item.note == "the same settings and seed were trained as there"
    assert "`grpo-tui sweep --queue --again` trains it anyway" in capsys.readouterr().err
    trained = []

    def train(_queue: RunQueue, item: object) -> tuple[str, str]:
        trained.append(item)
        return "done", ""

    monkeypatch.setattr("app.jobs.queue_worker.run_item", train)
    assert queue.requeue("skipped", sweep) == 1
    assert work(queue) == 0
    assert len(trained) == 1


def test_a_run_that_was_queued_by_itself_is_trained_though_the_same_run_exists(
    queue: RunQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(queue.store.path)
    handle = recorder.start_run(CONFIG, name="there")
    put_all(handle, started(), finished(1), ended(1))
    assert handle.close()
    recorder.close()
    item = queue.add(CONFIG, name="an unchanged clone")
    monkeypatch.setattr("app.jobs.queue_worker.run_item", lambda _queue, _item: ("done", ""))
    assert work(queue) == 0
    assert queue.item(item).state == "done"
