"""Ends every process that reward functions started, also those in sessions of their own.

The worker's environment holds a mark, which its descendants inherit unless they clear it; those
that clear it are found by their parents. On Linux the worker adopts orphans, so that a chain of
parents leads to it while it lives. Elsewhere `ps` is asked, and orphans that cleared their
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

MARK = "GRPO_TUI_REWARDS"
ADOPT = 36  # PR_SET_CHILD_SUBREAPER
ROUNDS = 20


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(ADOPT, 1, 0, 0, 0)


def end_all(mark: str, root: int) -> None:
    """Kill `root`, its descendants and the processes with this mark, until none is left."""
    for _ in range(ROUNDS):  # one that is being killed may start another
        found = _started(mark, root) - {os.getpid()}
        if not found:
            return
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _started(mark: str, root: int) -> set[int]:
    parents: dict[int, int] = {}
    found = set()
    for pid, parent, marked in _processes(f"{MARK}={mark}"):
        parents[pid] = parent
        if marked or (pid == root and sys.platform != "linux"):
            found.add(pid)
    if root not in found:  # it has ended, and another process may have its number
        return found
    for pid in parents:
        above = parents[pid]
        while above in parents and above != root:
            above = parents[above]
        if above == root:
            found.add(pid)
    return found


def _processes(marked: str) -> Iterator[tuple[int, int, bool]]:
    """Each living process: its id, its parent's, and whether its environment has the mark."""
    if sys.platform != "linux":
        yield from _listed(marked)
        return
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError, IndexError, ValueError):
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                yield int(entry.name), int(parent), _has_mark(entry, marked)


def _has_mark(entry: Path, marked: str) -> bool:
    try:
        return marked.encode() in (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False  # another user's


def _listed(marked: str) -> Iterator[tuple[int, int, bool]]:
    listed = subprocess.run(
        ["ps", "-A", "-E", "-ww", "-o", "pid=,ppid=,command="], capture_output=True, check=False,
        text=True, errors="replace",
    ).stdout  # fmt: skip
    for line in listed.splitlines():
        with suppress(ValueError):
            pid, parent, command = line.split(None, 2)
            yield int(pid), int(parent), marked in command.split()
