"""Versions of everything that affects a run's results."""

import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("grpo-tui", "mlx", "mlx-lm", "numpy", "transformers")


@cache
def versions() -> Mapping[str, str]:
    """Versions of Python and of the installed packages."""
    result = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            result[package] = version(package)
        except PackageNotFoundError:
            continue
    return result
