"""Quitting, losing and killing the workbench in a real terminal; no run is ever lost."""

import os
import signal
import sys
from pathlib import Path

import pytest

from grpo_tui.experiments.post_mortem import post_mortem
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.values import RunSummary
from tests.e2e.terminal import DEAF, LAUNCH, Terminal
from tests.patience import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the child in /proc")


def training(store: Path, world: Path, steps: int, *, deaf: bool = False) -> Terminal:
    program = (DEAF if deaf else "") + LAUNCH
    return Terminal(["-c", program, str(store), str(world), str(steps), "calm-otter"])


def summary(store: Path) -> RunSummary:
    with StoreReader(store) as reader:
        return reader.resolve("calm-otter")


def wait_for(store: Path, status: str) -> RunSummary:
    until(lambda: summary(store).status == status, lambda: summary(store))
    return summary(store)


@pytest.mark.slow
def test_without_a_run_the_workbench_opens_and_is_left_by_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_TUI_DB", str(tmp_path / "none.db"))
    with Terminal(["-m", "grpo_tui"], 80, 24) as terminal:
        terminal.until("1 Runs")
        terminal.press("\x03")
        terminal.until("Leave the workbench?")
        terminal.press("y")
        assert terminal.ended() == 0
        assert b"\x1b[?1049l" in terminal.raw


@pytest.mark.slow
def test_an_error_of_the_workbench_leaves_its_run_and_says_how_to_see_it(
    world: Path, tmp_path: Path
) -> None:
    store = tmp_path / "grpo.db"
    break_messages = """
def broken(self):
    raise IndexError("no such answer\\x07")

workbench.Workbench.action_messages = broken
workbench.Workbench.on_mount = launch
"""
    program = LAUNCH.replace("workbench.Workbench.on_mount = launch", break_messages)
    with Terminal(["-c", program, str(store), str(world), "5000", "calm-otter"]) as terminal:
        terminal.until_step(3)
        terminal.press("!")
        terminal.until(lambda: b"saves and stops it" in terminal.raw)
        step = summary(store).step
        until(lambda: summary(store).step > step + 2, lambda: summary(store))
        terminal.press("\x03")
        assert terminal.ended() == 1
    ended = summary(store)
    said = terminal.raw.rpartition(b"\x1b[?1049l")[2].decode()
    assert "IndexError: no such answer" in said
    assert "in broken" in said
    assert "\x07" not in said
    assert said.count("\n") < 60
    words = said.replace("\r\n", "")
    assert "run calm-otter goes on in this process" in words
    assert f"to see it: grpo-tui --db {store}" in words
    assert ended.status == "stopped"


@pytest.mark.slow
@pytest.mark.parametrize("by", ["keys", "SIGTERM"])
def test_checkpoint_and_stop_leaves_when_the_step_is_saved(
    world: Path, tmp_path: Path, by: str
) -> None:
    store = tmp_path / "grpo.db"
    with training(store, world, 5000) as terminal:
        terminal.until_step(3)
        if by == "keys":
            terminal.press("\x03")
            terminal.until("trains in this process")
            terminal.press("s")
        else:
            os.kill(terminal.child.pid, signal.SIGTERM)
        assert terminal.ended() == 0
    found = summary(store)
    assert found.status == "stopped"
    with StoreReader(store) as reader:
        assert post_mortem(reader, found.key).checkpoint_step == found.step


@pytest.mark.slow
@pytest.mark.parametrize("deaf", [False, True], ids=["by SIGHUP", "by EIO"])
def test_a_lost_terminal_takes_the_screen_and_not_the_run(
    world: Path, tmp_path: Path, deaf: bool
) -> None:
    store = tmp_path / "grpo.db"
    with training(store, world, 20, deaf=deaf) as terminal:
        terminal.until_step(3)
        terminal.lose()
        terminal.gone()
    found = summary(store)
    assert (found.status, found.step) == ("completed", 20)


@pytest.mark.slow
def test_handing_over_goes_on_in_the_background(world: Path, tmp_path: Path) -> None:
    store = tmp_path / "grpo.db"
    with training(store, world, 2000) as terminal:
        terminal.until_step(3)
        terminal.press("\x03")
        terminal.until("trains in this process")
        terminal.press("h")
        assert terminal.ended() == 0
        assert b"continues in the background" in terminal.raw
    found = wait_for(store, "running")
    assert found.attempts == 2
    with StoreReader(store) as reader:
        attempt = reader.run(found.key).attempts[-1]
    os.kill(attempt.pid, signal.SIGTERM)
    assert wait_for(store, "stopped").step > 3


@pytest.mark.slow
def test_watch_shows_a_run_again_whose_terminal_was_lost(world: Path, tmp_path: Path) -> None:
    store = tmp_path / "grpo.db"
    first = training(store, world, 5000)
    first.until_step(3)
    first.lose()
    with Terminal(["-m", "grpo_tui", "watch", "calm-otter", "--db", str(store)]) as again:
        again.until("calm-otter")
        again.until_step(summary(store).step + 3)  # it continues without its terminal
        os.kill(first.child.pid, signal.SIGTERM)
        again.until("The run was stopped")
        first.gone()
        ended = summary(store)
        assert "▌3 Watch▐" in again.text()
        assert f"step {ended.step}/5000" in again.screen.display[0]
    assert ended.status == "stopped"
