"""Protocol between a benchmarked process and the measuring one: a line in, a line of JSON out."""

import json
import os
import resource
import sys
from typing import Any

OUT = os.fdopen(os.dup(1), "w", buffering=1)  # a tool's own prints go to stderr
os.dup2(2, 1)


def tell(**values: Any) -> None:
    """Send one JSON object to the measuring process."""
    OUT.write(json.dumps(values) + "\n")


def wait() -> None:
    """Wait for this process's turn; exit at end of input."""
    if sys.stdin.readline().strip() != "go":
        os._exit(0)


def peak_gigabytes() -> float:
    """Return the peak resident memory of this process."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
