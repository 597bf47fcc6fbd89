"""`models export`: a run's checkpoint as a folder for another program, with a card of its facts."""

import json
import shutil
from pathlib import Path

import pytest
from mlx_lm.utils import load_model

from grpo_tui.app.cli.main import main
from grpo_tui.experiments.db.paths import run_folder
from grpo_tui.experiments.reader import StoreReader
from tests.app.stored import record
from tests.engine.runs import events_of, settings, write_world


def test_a_run_is_exported_with_its_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world, store = write_world(tmp_path), tmp_path / "s.db"
    config = settings(world, steps=2, evaluation={"before_and_after": True, "samples": 2})
    events = events_of(config, tmp_path / "run")
    key = record(store, iter(events), **{**config.model_dump(mode="json"), "name": "calm/otter"})
    with StoreReader(store) as reader:
        folder = run_folder(store, reader.run(key).summary.id)
    shutil.rmtree(folder)
    (tmp_path / "run").rename(folder)
    monkeypatch.chdir(tmp_path)
    assert (
        main(["models", "export", "calm/otter", "--db", str(store), "--step", "2", "--json"]) == 0
    )
    made = json.loads(capsys.readouterr().out)
    assert made["folder"] == "calm-otter-mlx"
    assert made["difference"] < 1e-4
    load_model(Path("calm-otter-mlx"))
    card = Path("calm-otter-mlx/README.md").read_text()
    assert f"base_model: {world}/model" in card
    assert "trained for 2 steps with the recipe `grpo`" in card
    assert "sampled, 4 problems x 2 samples" in card
    assert "after (step 2)" in card
    assert "| optimizer.learning_rate | 0.01 |" in card
    assert "model.lora_keys" not in card
