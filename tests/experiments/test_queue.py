"""Sweeps: a grid is queued once, its runs are taken one by one, and it survives its worker."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Row

from grpo_tui.experiments.db.machine import host_name
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


def leave(queue: RunQueue, item: int, owner: str, until: Any) -> None:
    """Give the lease of an item to another owner."""
    with queue.store.transaction() as conn:
        lease = "UPDATE queue_item SET lease_owner = ?, lease_until = ? WHERE id = ?"
        conn.exec_driver_sql(lease, (owner, until, item))


def taken(queue: RunQueue) -> Row[Any]:
    item = queue.take()
    assert item is not None
    return item


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
    betas = [taken(queue).settings["algorithm.beta"] for _ in range(2)]
    assert betas == [0.0, 0.04]
    assert queue.take() is None
    assert queue.take(key) is None


def test_a_run_that_is_there_already_is_found_by_its_settings(queue: RunQueue) -> None:
    tree = config(algorithm={"recipe": "grpo", "beta": 0.7})
    short = record_run(queue.store.path, tree=tree, name="before")
    queue.sweep("again", {}, [({}, {**tree, "name": "another name"}), ({}, {**tree, "seed": 77})])
    same, other = taken(queue), taken(queue)
    earlier = queue.repeats(same)
    assert earlier is not None
    assert earlier.short == short
    assert queue.repeats(other) is None


def test_failed_items_are_queued_again_on_request(queue: RunQueue) -> None:
    key, _ = grid(queue)
    item = taken(queue)
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
        json.dumps([host_name(), 2**22 + 1, "then"]),
    ],
    ids=range(14),
)
def test_a_lease_of_no_worker_that_could_be_is_void(queue: RunQueue, owner: str) -> None:
    queue.add(config())
    item = taken(queue).id
    leave(queue, item, owner, 1e308)
    assert taken(queue).id == item


@pytest.mark.parametrize(
    ("until", "holds"),
    [(2e12, True), ("9e999", True), (1.0, False), ("soon", False), (b"\xff", False)],
)
def test_a_lease_from_another_host_holds_until_it_expires_or_cannot_be_read(
    queue: RunQueue, until: Any, holds: bool
) -> None:
    queue.add(config())
    leave(queue, taken(queue).id, json.dumps(["elsewhere", 1, "1"]), until)
    assert (queue.take() is None) == holds
