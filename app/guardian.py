"""The workbench's parent process: waits, and repairs the terminal after a native crash.

A library that dies by a signal leaves the terminal in raw mode on the alternate screen. The parent
keeps the terminal's settings and loads nothing else. The workbench is a program started anew:
Metal fails in a process that was only forked.
"""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

GUARDIAN = "GRPO_TUI_GUARDIAN"  # the guardian's process id
SCREENS = ("watch", "replay", "demo", "tour", "chat")
IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTTOU)
RESET = (
    "\x1b[<u\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l"
    "\x1b[?2004l\x1b[?2048l\x1b[?1004l\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[0m\r\n"
)


def opens_workbench(arguments: Sequence[str]) -> bool:
    """Return whether a command line opens the workbench, judged by its verb alone."""
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--db":
            next(remaining, "")
        elif argument != "--allow-sleep" and not argument.startswith("--db="):
            return argument in SCREENS
    return True


def guard() -> None:
    """Run this command line in a child process and exit as it does.

    Returns in the child, and without a terminal.
    """
    if os.environ.get(GUARDIAN) == str(os.getppid()) or not all(map(os.isatty, range(3))):
        return
    import termios

    saved = termios.tcgetattr(0)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    child = os.posix_spawn(
        sys.executable,
        [sys.executable, *sys.orig_argv[1:]],
        {**os.environ, GUARDIAN: str(os.getpid())},
        setsigdef=IGNORED,  # A new program inherits ignored signals.
    )
    status = os.waitstatus_to_exitcode(_wait(child))
    if status < 0:
        with suppress(termios.error, OSError):  # The terminal may be gone.
            termios.tcsetattr(0, termios.TCSADRAIN, saved)
            os.write(2, (RESET + _obituary(-status)).encode())
        status = 128 - status
    sys.exit(status)


def _obituary(number: int) -> str:
    return (
        f"grpo-tui: the workbench was killed by {signal.Signals(number).name}; what was recorded "
        "is in the store. `grpo-tui watch` shows the last run, `grpo-tui resume` resumes it from "
        "its last checkpoint\n"
    )


def _wait(child: int) -> int:
    """Forward signals to the child, stop when it stops, and return its wait status."""

    def send(number: int, _frame: object = None) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    # A terminal that hangs up signals only the leader of its session.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, send)
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return status
        os.kill(os.getpid(), signal.SIGSTOP)
        send(signal.SIGCONT)
