"""Standard streams that are closed or on a full disk, with the real command."""

import os
import subprocess
from pathlib import Path

import pytest

from grpo_tui.experiments.reader import StoreReader
from tests.e2e.training import command, environment, write_config
from tests.experiments.made import record_run

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="/dev/full is of Linux")


def redirected(
    home: Path, redirection: str, *words: str | Path
) -> "subprocess.CompletedProcess[str]":
    """Run the command with streams that a shell redirects."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *command(*words)],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment(home),
        check=False,
    )


@needs_full
@pytest.mark.parametrize("verb", [("export", "otter"), ("--help",)])
def test_output_to_a_full_disk_is_an_error_in_one_line(
    verb: tuple[str, ...], tmp_path: Path
) -> None:
    record_run(tmp_path / "store.db", name="otter")
    done = redirected(tmp_path, f"> {FULL}", *verb)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert os.strerror(28) in line


@needs_full
@pytest.mark.slow
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_run_whose_results_are_not_printed_is_recorded_and_says_so(
    form: tuple[str, ...], world: Path, tmp_path: Path
) -> None:
    config = write_config(world, tmp_path / "c.yaml", steps=1)
    done = redirected(tmp_path, f"> {FULL}", "train", config, "--name", "otter", *form)
    assert done.returncode == 1
    assert os.strerror(28) in done.stderr.splitlines()[-1]
    with StoreReader(tmp_path / "store.db") as reader:
        assert reader.resolve("otter").status == "completed"


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_command_without_standard_streams_does_its_work(closed: str, tmp_path: Path) -> None:
    record_run(tmp_path / "store.db", name="otter")
    assert redirected(tmp_path, closed, "runs", "rename", "otter", "badger").returncode == 0
    assert redirected(tmp_path, closed, "runs", "show", "otter").returncode == 3
    with StoreReader(tmp_path / "store.db") as reader:
        assert reader.resolve("badger").name == "badger"


@pytest.mark.slow
def test_a_run_without_standard_streams_is_trained(world: Path, tmp_path: Path) -> None:
    config = write_config(world, tmp_path / "c.yaml", steps=1)
    done = redirected(tmp_path, "<&- >&- 2>&-", "train", config, "--name", "otter")
    assert done.returncode == 0
    with StoreReader(tmp_path / "store.db") as reader:
        assert reader.resolve("otter").status == "completed"
