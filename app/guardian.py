"""The workbench's parent process: waits, and repairs the terminal after a native crash.

A library that dies by a signal leaves the terminal in raw mode on the alternate screen. The parent
only keeps the terminal's old settings; it starts before anything heavy is loaded.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable

RESET = (
    "\x1b[<u\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l"
    "\x1b[?2004l\x1b[?2048l\x1b[?1004l\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[0m\r\n"
)


def guarded(work: Callable[[], int]) -> int:
    """Run the work in a child process, or here without a terminal; return its exit status."""
    if not (hasattr(os, "fork") and sys.stdin.isatty() and sys.stderr.isatty()):
        return work()
    import termios

    saved = termios.tcgetattr(sys.stdin.fileno())
    child = os.fork()
    if child == 0:
        return work()
    status = _wait(child)
    if os.WIFEXITED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    with contextlib.suppress(termios.error, OSError):
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, saved)
        os.write(sys.stderr.fileno(), RESET.encode())
    name = signal.Signals(number).name
    with contextlib.suppress(OSError):
        sys.stderr.write(
            f"grpo-tui: the workbench was killed by {name}; what was recorded is in the store. "
            "`grpo-tui watch` shows the last run, `grpo-tui resume` resumes it from its last "
            "checkpoint\n"
        )
    return 128 + number


def _wait(child: int) -> int:
    """Forward signals to the child, stop when it stops, and return its wait status."""

    def pass_on(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    # A terminal that hangs up signals only the leader of its session.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)
            continue
        return status
