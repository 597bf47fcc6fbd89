"""Protocol between a benchmarked process and the measuring one: a line in, a line of JSON out."""

import json
import os
import resource
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

OUT = os.fdopen(os.dup(1), "w", buffering=1)  # a tool's own prints go to stderr
os.dup2(2, 1)


def send(**values: Any) -> None:
    """Send one JSON object to the measuring process."""
    OUT.write(json.dumps(values) + "\n")


def wait() -> None:
    """Wait for this process's turn; exit at end of input."""
    if sys.stdin.readline().strip() != "go":
        os._exit(0)


class MemoryWatch(threading.Thread):
    """The peak memory of this process and its children, shared pages counted once."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0

    def run(self) -> None:
        """Look every three seconds."""
        while True:
            self.measure()
            time.sleep(3.0)  # a look takes some 10 ms a gigabyte

    def measure(self) -> None:
        """Add up the proportional share of every process."""
        waiting, total = [os.getpid()], 0
        while waiting:
            process = Path("/proc") / str(waiting.pop())
            with suppress(OSError, ValueError, StopIteration):
                lines = (process / "smaps_rollup").read_text().splitlines()
                total += 1024 * int(next(n for n in lines if n.startswith("Pss:")).split()[1])
                for task in (process / "task").iterdir():
                    waiting += map(int, (task / "children").read_text().split())
        self.peak = max(self.peak, total)


_watch = MemoryWatch()
if sys.platform == "linux":
    _watch.start()


def peak_gigabytes() -> float:
    """Return the peak memory of this process and, on Linux, of its children."""
    if _watch.peak:
        _watch.measure()
        return _watch.peak / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
