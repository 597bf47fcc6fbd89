"""A store that is compared in several files."""

from pathlib import Path

import pytest

from tests.app.compared import two_runs


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_runs(tmp_path_factory.mktemp("store"))
