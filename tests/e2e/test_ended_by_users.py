"""Runs that a function of the user, or an interrupt without disk space, ends in the middle."""

import signal
from pathlib import Path

import pytest

from tests.disks import fill, small_disk
from tests.e2e.training import grpo_tui, start, write_config
from tests.patience import PATIENCE, until

OWN = """
import os, sys

calls = []

def signal(rewards_PG):
    calls.append(1)
    if len(calls) > 8:  # after the checks before a run
        {end}
    return rewards_PG - rewards_PG.mean(axis=1, keepdims=True)
"""


def config(world: Path, folder: Path, end: str) -> Path:
    own = folder / "own.py"
    own.write_text(OWN.format(end=end))
    return write_config(world, folder / "c.yaml", steps=50, algorithm={"signal": f"{own}:signal"})


@pytest.mark.slow
def test_a_function_that_leaves_the_process_is_named_at_the_next_opening(
    world: Path, tmp_path: Path
) -> None:
    file = config(world, tmp_path, "os._exit(3)")
    assert grpo_tui(tmp_path, "train", str(file), "--name", "left").returncode == 3
    shown = " ".join(grpo_tui(tmp_path, "runs", "show", "left").stdout.split())
    assert f"its process ended in signal {tmp_path}/own.py:signal" in shown


@pytest.mark.slow
def test_a_function_that_calls_exit_fails_the_run_in_a_sentence(
    world: Path, tmp_path: Path
) -> None:
    done = grpo_tui(tmp_path, "train", str(config(world, tmp_path, "sys.exit(3)")))
    assert done.returncode != 0
    assert "own.py:signal failed: called sys.exit(3)" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_one_interrupt_ends_a_run_that_waits_for_disk_space(world: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "8m") as disk:
        file = write_config(world, tmp_path / "c.yaml", steps=1000)
        out = tmp_path / "out.txt"
        process = start(disk, "train", str(file), out=out)
        until(lambda: [*disk.glob("runs/*/log.txt")], out.read_text)
        log = next(disk.glob("runs/*/log.txt"))
        until(lambda: "step 2" in log.read_text(), out.read_text)
        fill(disk)
        until(lambda: "free some disk space" in out.read_text(), out.read_text)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) in (0, 1)
        assert "only in memory" in out.read_text()
