"""A run in the background, started as on macOS."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo_engine.platform import spawn
from grpo_tui.app.jobs.detach import start_detached
from grpo_tui.experiments.reader import StoreReader
from tests.patience import until


@pytest.mark.slow
def test_a_run_trains_in_a_process_that_was_spawned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawn, "sys", SimpleNamespace(platform="darwin"))
    monkeypatch.setattr("subprocess.Popen", None)
    store = tmp_path / "grpo.db"
    words = ("train", "--preset", "starter", "--set", "steps=1", "--name", "calm-otter")
    started = start_detached(*words, "--db", str(store))
    assert os.getsid(started["pid"]) == started["pid"]
    with StoreReader(store) as reader:
        until(lambda: reader.resolve("calm-otter").status == "completed")
        assert reader.run(reader.resolve("calm-otter").key).attempts[-1].pid == started["pid"]
