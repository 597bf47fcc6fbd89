"""A sweep is every combination of its values with as many seeds, in the queue whole or not."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from grpo_engine.config.parse import build
from grpo_engine.config.settings import RunConfig
from grpo_tui.app.jobs.launch import CLONE_OF, enqueue_sweep
from grpo_tui.app.jobs.sweep import sweep_of, values_in
from grpo_tui.experiments.db.tables import QUEUE_ITEM
from grpo_tui.experiments.queue import RunQueue
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.store import ExperimentStore


def point(beta: float, **settings: Any) -> tuple[dict[str, str], RunConfig]:
    config = build({"algorithm": {"beta": beta}, "name": "mine", **settings})
    return {"algorithm.beta": str(beta)}, config


def test_each_point_is_run_with_each_seed() -> None:
    sweep = sweep_of([point(0.04, seed=3), point(0.4, seed=3)], seeds=2)
    assert sweep.axes == {"algorithm.beta": [0.04, 0.4], "seed": [3, 4]}
    assert [values for values, _ in sweep.runs] == [
        {"algorithm.beta": 0.04, "seed": 3},
        {"algorithm.beta": 0.04, "seed": 4},
        {"algorithm.beta": 0.4, "seed": 3},
        {"algorithm.beta": 0.4, "seed": 4},
    ]
    for values, tree in sweep.runs:
        assert (tree["seed"], tree["algorithm"]["beta"]) == (
            values["seed"],
            values["algorithm.beta"],
        )
        assert tree["name"] == ""


def test_seeds_may_be_an_axis_themselves() -> None:
    points = [({"seed": text}, build({"seed": int(text)})) for text in ("5", "9")]
    assert sweep_of(points, seeds=1).axes == {"seed": [5, 9]}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1, 2", ["1", "2"]),
        ("[1,2],[3]", ["[1,2]", "[3]"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ("1,", ["1"]),
        ("", [""]),
        ("@last,%x", ["@last", "%x"]),
        ("[" * 9999, ["[" * 9999]),
    ],
)
def test_commas_separate_values_but_for_those_in_brackets_or_quotes(
    text: str, values: list[str]
) -> None:
    assert values_in(text) == values


def test_a_clones_sweep_is_queued_whole_with_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.db"
    monkeypatch.setattr("grpo_tui.app.trial.ready.require_apart", lambda _configs, **_: ())
    for _ in range(2):  # the same again is the same sweep
        assert enqueue_sweep("grid", [point(0.04), point(0.4)], 2, path, parent="abc") == 4
    with StoreReader(path) as reader:
        items = reader.queue()
    assert [item.name for item in items] == ["grid-1", "grid-2", "grid-3", "grid-4"]
    assert {item.sweep for item in items} == {"grid"}
    assert {item.settings[CLONE_OF] for item in items} == {"abc"}


def test_a_sweep_that_fails_halfway_is_not_in_the_queue(tmp_path: Path) -> None:
    with ExperimentStore(tmp_path / "s.db") as store:
        queue = RunQueue(store)
        runs: list[Any] = [*sweep_of([point(0.04)], seeds=2).runs, ({"bad": object()}, {})]
        with pytest.raises(Exception, match="JSON"):
            queue.sweep("grid", {}, runs)
        with store.transaction() as conn:
            assert not conn.execute(select(QUEUE_ITEM)).all()
        assert queue.sweep("grid", {}, runs[:2])[1]
