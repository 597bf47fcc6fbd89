"""How a benchmarked process and the one that measures talk: a line in, a line of JSON out."""

import json
import os
import resource
import sys
from typing import Any

OUT = os.fdopen(os.dup(1), "w", buffering=1)  # a tool's own prints go to standard error
os.dup2(2, 1)


def tell(**values: Any) -> None:
    """One JSON object to the process that measures."""
    OUT.write(json.dumps(values) + "\n")


def wait() -> None:
    """Wait for this process's turn; end where there is none."""
    if sys.stdin.readline().strip() != "go":
        os._exit(0)


def peak_gigabytes() -> float:
    """Most resident memory of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
