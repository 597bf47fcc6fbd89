"""Versions of everything that decides a run's numbers."""

import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("grpo-tui", "mlx", "mlx-lm", "numpy", "transformers")


@cache
def versions() -> Mapping[str, str]:
    """Python's version and those of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
