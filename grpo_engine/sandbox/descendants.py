"""Ends every process that users' code started, also those in sessions of their own.

The environment of a process of the sandbox has a mark, which its descendants inherit unless they
clear it; those that clear it are found by their parents. On Linux it adopts orphans, so that a
chain of parents leads to it while it lives. Elsewhere `ps` is asked, and orphans that cleared their
environment are missed.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MARK = "GRPO_TUI_SANDBOX"
ADOPT = 36  # PR_SET_CHILD_SUBREAPER
ROUNDS = 20


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(ADOPT, 1, 0, 0, 0)


def end_all(mark: str, root: int) -> None:
    """Kill `root`, its descendants and the processes with this mark, until none is left."""
    for _ in range(ROUNDS):  # A process may start another before it is killed.
        pids = _started(mark, root) - {os.getpid()}
        if not pids:
            return
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _started(mark: str, root: int) -> set[int]:
    processes = list(_processes(f"{MARK}={mark}"))
    pids = {
        pid
        for pid, _, is_marked in processes
        if is_marked or (pid == root and sys.platform != "linux")
    }
    while further := {pid for pid, parent, _ in processes if parent in pids} - pids:
        pids |= further
    return pids


def _processes(variable: str) -> Iterator[tuple[int, int, bool]]:
    """Each living process: its id, its parent's, and whether its environment has the mark."""
    if sys.platform != "linux":
        yield from _listed(variable)
        return
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                yield int(entry.name), int(parent), _has_mark(entry, variable)


def _has_mark(entry: Path, variable: str) -> bool:
    try:
        return variable.encode() in (entry / "environ").read_bytes()
    except OSError:
        return False  # a process of another user


def _listed(variable: str) -> Iterator[tuple[int, int, bool]]:
    listed = subprocess.run(
        ["ps", "-A", "-E", "-ww", "-o", "pid=,ppid=,command="],
        capture_output=True,
        check=False,
        text=True,
        errors="replace",
    ).stdout
    for line in listed.splitlines():
        with suppress(ValueError):
            pid, parent, command = line.split(None, 2)
            yield int(pid), int(parent), variable in command
