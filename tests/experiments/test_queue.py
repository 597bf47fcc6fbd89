"""Sweeps: a grid is queued once, its runs are taken one by one, and it survives its worker."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.experiments.db.machine import host_name
from grpo_tui.experiments.db.tables import QUEUE_ITEM
from grpo_tui.experiments.queue import RunQueue, points
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.store import ExperimentStore
from tests.experiments.made import config, record_run


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[RunQueue]:
    store = ExperimentStore(tmp_path / "s.db")
    yield RunQueue(store)
    store.close()


def grid(queue: RunQueue, betas: tuple[float, ...] = (0.0, 0.04)) -> tuple[int, bool]:
    axes = {"algorithm.beta": list(betas)}
    made = [
        ({"algorithm.beta": beta}, config(algorithm={"recipe": "grpo", "beta": beta}))
        for beta in betas
    ]
    return queue.sweep("grid", axes, made)


def leave(queue: RunQueue, item: int, holder: str, until: float) -> None:
    lease = {"state": "leased", "lease_owner": holder, "lease_until": until}
    with queue.store.transaction() as conn:
        conn.execute(QUEUE_ITEM.update().where(QUEUE_ITEM.c.id == item).values(lease))


def test_a_grid_is_every_combination_the_last_axis_fastest() -> None:
    assert points({"a": [1, 2], "b": ["x", "y"]}) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]


def test_the_same_sweep_again_is_the_same_sweep(queue: RunQueue) -> None:
    key, new = grid(queue)
    assert new
    assert grid(queue) == (key, False)
    other, new = grid(queue, (0.0, 0.1))
    assert new
    assert other != key
    with StoreReader(queue.store.path) as reader:
        assert [item.name for item in reader.sweep(key)] == ["grid-1", "grid-2"]


def test_items_are_handed_out_in_order_and_once(queue: RunQueue) -> None:
    key, _ = grid(queue)
    taken = [queue.take(), queue.take()]
    assert [item.settings for item in taken if item] == [
        {"algorithm.beta": 0.0},
        {"algorithm.beta": 0.04},
    ]
    assert queue.take() is None
    assert queue.take(key) is None


def test_an_item_whose_worker_is_gone_is_handed_out_again(queue: RunQueue) -> None:
    grid(queue)
    first = queue.take()
    assert first is not None
    assert first.id is not None
    leave(queue, first.id, json.dumps([host_name(), 2**22 + 1, "then"]), 2e12)
    again = queue.take()
    assert again is not None
    assert again.id == first.id


def test_a_lease_from_another_host_holds_until_it_expires(queue: RunQueue) -> None:
    grid(queue, (0.0,))
    first = queue.take()
    assert first is not None
    assert first.id is not None
    leave(queue, first.id, json.dumps(["elsewhere", 1, ""]), 2e12)
    assert queue.take() is None
    leave(queue, first.id, json.dumps(["elsewhere", 1, ""]), 1.0)
    assert queue.take() is not None


def test_a_run_that_is_there_already_is_found_by_its_settings(queue: RunQueue) -> None:
    tree = config(algorithm={"recipe": "grpo", "beta": 0.7})
    short = record_run(queue.store.path, tree=tree, name="before")
    queue.sweep("again", {}, [({}, {**tree, "name": "another name"}), ({}, {**tree, "seed": 77})])
    same, other = queue.take(), queue.take()
    assert same is not None
    assert other is not None
    earlier = queue.repeats(same)
    assert earlier is not None
    assert earlier.short == short
    assert queue.repeats(other) is None


def test_failed_items_are_queued_again_on_request(queue: RunQueue) -> None:
    key, _ = grid(queue)
    item = queue.take()
    assert item is not None
    assert item.id is not None
    queue.finish(item.id, "failed", note="it broke")
    assert queue.requeue("failed", key) == 1
    assert queue.item(item.id).state == "queued"


@pytest.mark.parametrize(
    "owner",
    [
        "",
        "5",
        "null",
        "[]",
        "{}",
        '["host"]',
        '["host", "x", "1"]',
        '["host", null, "1"]',
        '["host", 1e999, "1"]',
        f'["{host_name()}", {10**400}, "1"]',
        '["host", [], {}]',
        "[" * 100_000,
        '"' + "x" * 1_000_000,
    ],
    ids=range(13),
)
def test_a_lease_of_no_worker_that_could_be_is_void(queue: RunQueue, owner: str) -> None:
    item = queue.add(config())
    assert queue.take() is not None
    queue._change(item, lease_owner=owner, lease_until=1e308)
    taken = queue.take()
    assert taken is not None
    assert taken.id == item


@pytest.mark.parametrize("until", ["soon", b"\xff", "9e999", None])
def test_a_lease_whose_end_cannot_be_read_has_ended(queue: RunQueue, until: Any) -> None:
    item = queue.add(config())
    assert queue.take() is not None
    elsewhere = json.dumps(["another host", 1, "1"])
    queue._change(item, lease_owner=elsewhere)
    with queue.store.transaction() as conn:
        conn.exec_driver_sql(
            "UPDATE queue_item SET lease_until = coalesce(?, lease_until - 1e6)", (until,)
        )
    taken = queue.take()
    assert (taken is None) == (until == "9e999")
