"""The environment of programs of ours that run in processes of their own."""

import os
import sys
from pathlib import Path

import grpo_tui


def environment() -> dict[str, str]:
    """Return this environment with the packages importable from any folder."""
    root = str(Path(grpo_tui.__file__).resolve().parent.parent)
    # An installed package is found anyway. Only one that was found by a path, perhaps a relative
    # one, needs it, and with it comes all that lies there.
    paths = [root] if root in map(os.path.realpath, sys.path) else []
    paths += filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
