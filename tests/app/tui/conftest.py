"""A store that the screens show in several files."""

from pathlib import Path

import pytest

from tests.app.stored import record


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run calm-otter of six steps."""
    path = tmp_path_factory.mktemp("store") / "runs.db"
    record(path)
    return path
