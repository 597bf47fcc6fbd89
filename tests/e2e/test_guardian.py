"""The process in front of the workbench, with small programs in a real terminal."""

import os
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from grpo_tui.app.guardian import GUARDIAN, opens_workbench
from tests.e2e.terminal import Terminal
from tests.patience import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the child in /proc")

GUARDED = """
import os, signal, subprocess, sys, termios, time, tty
from grpo_tui.app.guardian import GUARDIAN, guard
guard()
"""
WAITS = (
    GUARDED
    + """
tty.setraw(0)
print("ready", end="\\r\\n", flush=True)
time.sleep(600)
"""
)


def ready(code: str) -> Terminal:
    terminal = Terminal(["-c", code])
    terminal.until("ready")
    return terminal


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize(
    ("arguments", "opens"),
    [
        ([], True),
        (["--db", "runs"], True),
        (["--db=a.db", "watch", "@last"], True),
        (["--allow-sleep", "demo"], True),
        (["chat", "@last"], True),
        (["runs"], False),
        (["--db", "watch", "train"], False),
        (["--help"], False),
    ],
)
def test_a_screen_is_known_by_its_verb(arguments: list[str], opens: bool) -> None:
    assert opens_workbench(arguments) is opens


def test_the_child_is_a_program_of_its_own_that_knows_its_guardian() -> None:
    with ready(WAITS) as terminal:
        # what a process was started with, which a forked one shares with its parent
        started_with = Path(f"/proc/{terminal.worker()}/environ").read_bytes().split(b"\0")
        assert f"{GUARDIAN}={terminal.child.pid}".encode() in started_with
        assert os.getpgid(terminal.worker()) == os.getpgid(terminal.child.pid)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_child_that_dies_by_a_signal_leaves_the_terminal_as_it_was(
    number: signal.Signals,
) -> None:
    with ready(WAITS) as terminal:
        assert not termios.tcgetattr(terminal.child.child_fd)[3] & termios.ECHO
        terminal.signal(number)
        terminal.until(lambda: b"\x1b[?1049l" in terminal.raw and number.name in terminal.text())
        assert termios.tcgetattr(terminal.child.child_fd)[3] & termios.ECHO
        assert terminal.ended() == 128 + number


def test_the_childs_exit_status_is_the_guardians() -> None:
    assert Terminal(["-c", GUARDED + "sys.exit(7)"]).ended() == 7


def test_the_guardian_stops_and_continues_with_its_child() -> None:
    with ready(WAITS) as terminal:
        child = terminal.worker()
        os.kill(child, signal.SIGSTOP)
        until(lambda: state(terminal.child.pid) == "T")
        os.kill(terminal.child.pid, signal.SIGCONT)
        until(lambda: "T" not in (state(terminal.child.pid), state(child)))


def test_an_interrupt_of_the_terminal_is_the_childs_alone() -> None:
    caught = """
print("ready", flush=True)
try:
    time.sleep(600)
except KeyboardInterrupt:
    sys.exit(5)
"""
    with ready(GUARDED + caught) as terminal:
        terminal.press("\x03")
        assert terminal.ended() == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_asks_the_guardian_to_end_asks_its_child(number: signal.Signals) -> None:
    handled = f"""
signal.signal({number}, lambda *_: sys.exit(6))
print("ready", flush=True)
time.sleep(600)
"""
    with ready(GUARDED + handled) as terminal:
        os.kill(terminal.child.pid, number)
        assert terminal.ended() == 6


def test_a_screen_that_another_one_starts_has_a_guardian_of_its_own() -> None:
    inner = GUARDED + "sys.exit(0 if os.environ[GUARDIAN] == str(os.getppid()) else 1)"
    outer = GUARDED + f"sys.exit(8 + subprocess.run([sys.executable, '-c', {inner!r}]).returncode)"
    assert Terminal(["-c", outer]).ended() == 8


def test_without_a_terminal_there_is_no_guardian() -> None:
    program = [sys.executable, "-c", GUARDED + "print(GUARDIAN in os.environ)"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_guardian_loads_almost_nothing() -> None:
    code = (
        "import sys; before = set(sys.modules); import grpo_tui.app.entry;"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = [name for name in done.stdout.split() if name not in sys.stdlib_module_names]
    assert loaded == ["grpo_tui", "grpo_tui.app", "grpo_tui.app.entry", "grpo_tui.app.guardian"]
