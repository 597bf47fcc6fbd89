"""A store with a run to begin from."""

from pathlib import Path

import pytest

from tests.app.stored import record, run_events


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "runs.db"
    record(path, run_events(steps=2))
    return path
