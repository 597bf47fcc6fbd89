"""A store of the test's own, and the command line on it."""

from pathlib import Path

import pytest

from tests.app.calls import Cli, caller


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRPO_TUI_DB", str(tmp_path / "s.db"))
    return tmp_path / "s.db"


@pytest.fixture
def cli(
    store: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Cli:
    assert store
    return caller(monkeypatch, capfdbinary)
