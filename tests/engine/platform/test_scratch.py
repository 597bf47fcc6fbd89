"""Temporary folders go with their process, also where it was killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_engine.platform import scratch as module
from grpo_engine.platform.scratch import scratch

HOLD = """
import sys
from grpo_engine.platform.scratch import scratch
with scratch("trial") as folder:
    (folder / "rewards.log").write_text("a line")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def _holder() -> "tuple[subprocess.Popen[str], Path]":
    """A process that holds a folder until its input closes."""
    root = str(Path(module.__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_removed_at_the_end(temporary: Path) -> None:
    with scratch("trial") as folder:
        (folder / "inside").write_text("")
        assert folder.is_relative_to(temporary)
        assert folder.stat().st_mode & 0o77 == 0
    assert not list(temporary.rglob("*.scratch"))


def test_the_folder_of_a_killed_process_is_removed_by_the_next_one(temporary: Path) -> None:
    process, left = _holder()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (left / "rewards.log").is_file()
    with scratch("trial") as folder:
        assert list(temporary.rglob("*.scratch")) == [folder]


def test_the_folder_of_a_living_process_stays(temporary: Path) -> None:
    process, held = _holder()
    with scratch("trial") as folder:
        assert set(temporary.rglob("*.scratch")) == {folder, held}
    process.communicate("")
    assert not list(temporary.rglob("*.scratch"))


def test_a_folder_is_made_where_locks_cannot_be_kept(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "temporary_folder", lambda: None)
    with scratch("trial") as folder:
        assert folder.is_relative_to(temporary)
    assert not folder.exists()
