"""Functions of users in the store: recorded, compared, resumed, cloned, swept over, inspected."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

import grpo_engine as grpo
from grpo_engine.config.parse import build, merge
from grpo_engine.config.recipes import recipe
from grpo_engine.errors import CheckpointError, EngineError
from grpo_tui.app.cli.run_config import assemble
from grpo_tui.app.inspector.stored import (
    load_group,
    load_step,
)
from grpo_tui.app.jobs.start import resumed_job
from grpo_tui.app.jobs.sweep import sweep_of
from grpo_tui.app.tui.screens.rollouts.lab.state import Study
from grpo_tui.app.tui.screens.rollouts.render import token_parts
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
    with StoreReader(store) as opened:
        yield opened


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    with StoreReader(store) as opened:
        source = opened.functions(opened.resolve("closure").key)["signal"]
    assert source["name"] == "python:scaled"
    assert "return scale * (rewards_PG" in source["code"]
    with pytest.raises(EngineError, match=r"grpo_engine\.resume\(run, functions=\[…\]\)"):
        resumed_job("closure", store=store)
    resumed = grpo.resume("closure", functions=[scaled], record=store, progress=False)
    assert resumed.status == "completed"
    with pytest.raises(CheckpointError, match="complete at step 2"):
        grpo.resume("closure", functions=[scaled], record=store, progress=False)
    longer = grpo.resume(resumed, steps=3, progress=False)
    assert sorted(longer.metrics["reward"]) == [1, 2, 3]
    assert longer.rollouts(step=1)
    with pytest.raises(EngineError, match="has no step 9: its last one is 3"):
        longer.rollouts(step=9)
    with StoreReader(store) as opened:
        assert opened.run(opened.resolve("closure").key).config["steps"] == 3


ALL = """
import mlx.core as mx

def signal(rewards_PG, scored_PG, step):
    assert scored_PG.all() and step in (1, 2)
    return rewards_PG - rewards_PG.mean(axis=1, keepdims=True)

def trust(ratio_BT, advantages_BT):
    clipped_BT = mx.clip(ratio_BT, 1 - 0.2, 1 + 0.2)
    return mx.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)

def weight(mask_BT, rows, max_length):
    return mask_BT / (rows * max_length)
"""


def last_losses(reader: StoreReader, name: str) -> tuple[Any, str]:
    step = load_step(reader, reader.resolve(name).key, None)
    detail = load_group(reader, step, step.groups[0])
    return [answer.losses for answer in detail.completions], detail.missing


@pytest.mark.slow
def test_the_inspector_and_the_lab_evaluate_functions_as_the_engine_did(
    world: Path, tmp_path: Path
) -> None:
    store, file = tmp_path / "store.db", tmp_path / "all.py"
    file.write_text(ALL)
    functions = {role: f"{file}:{role}" for role in ("signal", "trust", "weight")}
    for name, algorithm in {"custom": functions, "plain": {}}.items():
        tree = keywords(world, **algorithm, passes=2)
        grpo.train(record=store, progress=False, name=name, **tree)
    with StoreReader(store) as opened:
        losses, missing = last_losses(opened, "custom")
        expected, _ = last_losses(opened, "plain")
        assert not missing
        sides = {"side": "free", "low": 0.0, "high": 0.0}  # which a function does not tell
        assert [[t._replace(**sides) for t in row] for row in losses] == [
            [t._replace(**sides) for t in row] for row in expected
        ]
        # the lab: the built-in run under the functions, and the other way round
        for name, changes in (
            ("plain", functions),
            (
                "custom",
                {
                    "signal": "group_mean",
                    "trust": "clip",
                    "weight": "constant",
                },
            ),
        ):
            step = load_step(opened, opened.resolve(name).key, None)
            base, study = step.run.recipe, Study(step)
            variant = recipe(base, **changes)
            outcomes = {how: study.outcome(opened, how, step.step) for how in (base, variant)}
            effects = [outcomes[how].effect() for how in (base, variant)]
            assert effects[0].tokens > 20
            assert effects[1].push == pytest.approx(effects[0].push, rel=1e-6, abs=1e-9)
            gradients = [outcomes[how].arrays["gradient"].tolist() for how in (base, variant)]
            assert gradients[0] == gradients[1]
        detail = load_group(opened, step, step.groups[0])
        answer = max(detail.completions, key=lambda answer: len(answer.losses))
        shown = token_parts(answer, answer.tokens[0], step.run, 200)
        texts = " ".join(text for part in shown.values() for line in part for text, _ in line)
        assert "by all.py:trust" in texts
        assert "by all.py:weight" in texts
        # steps before a resume are evaluated with the file of then
        known = opened.functions(opened.resolve("custom").key)
        assert opened.functions(opened.resolve("custom").key, 1) == known
        # a file that has changed is not run, whatever the store has of it
        file.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n{ALL}")
        losses, missing = last_losses(opened, "custom")
        assert not any(losses)
        assert missing.endswith(f"is not evaluated: {file} is no longer as the run had it")
        assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_a_closure_is_not_evaluated_elsewhere(world: Path, tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    how = grpo.recipe("dr-grpo", trust=lambda ratio_BT, advantages_BT: ratio_BT * advantages_BT)
    grpo.train(record=store, progress=False, name="closure", **keywords(world) | {"algorithm": how})
    with StoreReader(store) as opened:
        losses, missing = last_losses(opened, "closure")
    assert not any(losses)
    assert "python:lambda was given by a Python process, which alone can evaluate it" in missing
