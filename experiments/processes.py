"""The environment of child processes."""

import os
import sys
from pathlib import Path

import grpo_tui


def environment() -> dict[str, str]:
    """Return this environment with the packages importable from any folder."""
    root = str(Path(grpo_tui.__file__).resolve().parent.parent)
    # An installed package is importable anyway. The root is needed only if the package was found
    # by a path, which may be relative; everything else in that folder becomes importable, too.
    paths = [root] if root in map(os.path.realpath, sys.path) else []
    paths += filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
