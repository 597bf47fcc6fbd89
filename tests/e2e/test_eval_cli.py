"""`grpo-tui eval` for a run, an adapter and a bare model: tables of before and after."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.events import RunFinished
from grpo_engine.run import checkpoint
from tests.e2e.training import events_in, grpo_tui, write_config
from tests.engine.runs import events_of, settings, write_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world with a run of two steps."""
    folder = write_world(tmp_path_factory.mktemp("world"))
    changes: dict[str, Any] = {"steps": 2, "evaluation": {"samples": 2}}
    write_config(folder, folder / "c.yaml", **changes)
    assert isinstance(events_of(settings(folder, **changes), folder / "run")[-1], RunFinished)
    return folder


@pytest.mark.slow
def test_a_run_is_scored_beside_its_base_model(world: Path, tmp_path: Path) -> None:
    fewer = ("--set", "evaluation.samples=4", "--set", "evaluation.problems=3")
    done = grpo_tui(tmp_path, "eval", world / "run", *fewer)
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.split("sampled, 3 problems x 4 samples")[1].splitlines()
    assert "before (step 0)" in head
    assert "after (step 2)" in head
    labels = [row.split("  ")[0] for row in rows]
    assert {"accuracy", "reward", "rewards/letters", "pass@2", "pass@4"} <= set(labels)
    accuracy = next(row for row in rows if row.startswith("accuracy"))
    assert accuracy.count("[") == 2


@pytest.mark.slow
def test_an_adapter_alone_is_scored_as_the_run_was(world: Path, tmp_path: Path) -> None:
    saved = checkpoint.folder(world / "run", 2)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    for name in ("adapters.safetensors", "adapter_config.json"):
        shutil.copy(saved / name, adapter / name)
    words = ("--config", world / "c.yaml", "--no-base", "--json")
    of_adapter = grpo_tui(tmp_path, "eval", adapter, *words)
    assert of_adapter.returncode == 0, of_adapter.stderr
    of_run = grpo_tui(tmp_path, "eval", world / "run", "--no-base", "--json")
    ends = [
        [e["metrics"] for e in events_in(done.stdout) if e["event"] == "EvaluationFinished"]
        for done in (of_adapter, of_run)
    ]
    assert len(ends[0]) == 2
    assert ends[0] == ends[1]


@pytest.mark.slow
def test_a_bare_model_has_one_column(world: Path, tmp_path: Path) -> None:
    done = grpo_tui(tmp_path, "eval", world / "model", "--config", world / "c.yaml")
    assert done.returncode == 0, done.stderr
    assert "as it is" in done.stdout
    assert "change" not in done.stdout
