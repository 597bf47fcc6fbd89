"""Functions of users in the store: recorded, compared, resumed, cloned, swept over, inspected."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

import grpo_engine as grpo
from grpo_engine.config.parse import build, merge
from grpo_engine.errors import EngineError
from grpo_tui.app.cli.run_config import assemble
from grpo_tui.app.jobs.start import resumed_job
from grpo_tui.app.jobs.sweep import sweep_of
from grpo_tui.experiments.compare.runs import compare
from grpo_tui.experiments.reader import StoreReader
from tests.engine.runs import settings, write_world

MINE = """
import mlx.core as mx

def plain(rewards_PG):
    return rewards_PG - rewards_PG.mean(axis=1, keepdims=True)

def ranks(rewards_PG):
    return mx.argsort(mx.argsort(rewards_PG, axis=1), axis=1) - 1.5
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_world(tmp_path_factory.mktemp("world"))
    (folder / "mine.py").write_text(MINE)
    return folder


def keywords(world: Path, **algorithm: Any) -> dict[str, Any]:
    tree = settings(world, steps=2).model_dump(mode="json", exclude_unset=True)
    return merge(tree, {"algorithm": {"recipe": "dr-grpo", **algorithm}})


@pytest.fixture(scope="module")
def store(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs with two functions of a file, the first of them once more after it was changed."""
    path, file = tmp_path_factory.mktemp("store") / "store.db", world / "mine.py"
    for name, function in {"first": "plain", "second": "ranks", "third": "plain"}.items():
        if name == "third":
            file.write_text(
                MINE.replace("rewards_PG - rewards_PG.mean", "2 * rewards_PG - rewards_PG.mean")
            )
        grpo.train(
            record=path, progress=False, name=name, **keywords(world, signal=f"{file}:{function}")
        )
    return path


@pytest.fixture
def reader(store: Path) -> Iterator[StoreReader]:
    with closing(StoreReader(store)) as opened:
        yield opened


def test_the_source_is_kept_and_compared_as_a_diff(reader: StoreReader, world: Path) -> None:
    runs = [reader.resolve(name) for name in ("first", "second", "third")]
    source = reader.functions(runs[0].key)["signal"]
    assert (source["file"], source["text"]) == (str(world / "mine.py"), MINE)
    assert source["code"].startswith("def plain(rewards_PG):")
    result = compare(reader, runs)
    (values,) = (item.values for item in result.differing if item.path == "algorithm.signal")
    assert [value.split()[0] for value in values] == [
        "mine.py:plain",
        "mine.py:ranks",
        "mine.py:plain",
    ]
    assert len(set(values)) == 3  # a changed file is another setting, and no seed of the first
    assert "-    return rewards_PG - rewards_PG.mean(axis=1, keepdims=True)" in result.sources
    assert "+    return 2 * rewards_PG - rewards_PG.mean(axis=1, keepdims=True)" in result.sources
    assert "+    return mx.argsort(mx.argsort(rewards_PG, axis=1), axis=1) - 1.5" in result.sources
    assert not compare(reader, runs[:1]).sources


def test_a_run_is_cloned_and_swept_with_its_function(reader: StoreReader, world: Path) -> None:
    config = build(reader.run(reader.resolve("first").key).config)
    names = [f"{world}/mine.py:{name}" for name in ("plain", "ranks")]
    assert config.algorithm.signal == names[0]
    point = assemble(
        None, None, [f"algorithm.signal={names[1]}"], start=config.model_dump(mode="json")
    )
    assert point.algorithm.signal == names[1]
    axis = "algorithm.signal"
    sweep = sweep_of([({axis: names[0]}, config), ({axis: names[1]}, point)], seeds=2)
    assert sweep.axes[axis] == names
    assert [dict(values)[axis] for values, _ in sweep.runs] == [names[0]] * 2 + [names[1]] * 2


def test_a_closure_is_trained_with_and_given_again_to_resume(world: Path, tmp_path: Path) -> None:
    scale = 2.0

    def scaled(rewards_PG: mx.array) -> mx.array:
        return scale * (rewards_PG - rewards_PG.mean(axis=1, keepdims=True))

    how = grpo.recipe("dr-grpo", signal=scaled)
    tree = keywords(world) | {"algorithm": how}
    store = tmp_path / "store.db"
    run = grpo.iterate(record=store, name="closure", **tree)
    for event in run:
        if type(event).__name__ == "CheckpointSaved":
            break
    run.close()
    assert run.config.algorithm.signal == "python:scaled"
    with closing(StoreReader(store)) as opened:
        source = opened.functions(opened.resolve("closure").key)["signal"]
    assert source["name"] == "python:scaled"
    assert "return scale * (rewards_PG" in source["code"]
    with pytest.raises(EngineError, match=r"grpo_engine\.resume\(run, functions=\[…\]\)"):
        resumed_job("closure", db=store)
    resumed = grpo.resume("closure", functions=[scaled], record=store, progress=False)
    assert resumed.status == "completed"
