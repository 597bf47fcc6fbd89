"""What tests of other trainers' files share."""

from pathlib import Path

import pytest


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The path of a store that the first import makes."""
    return tmp_path / "s.db"
