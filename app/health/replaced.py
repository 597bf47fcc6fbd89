"""Whether MLX, mlx-lm, Textual or the Tinker SDK is newer than the release whose parts we replace.

`replaced.toml` lists these parts: what, why, and until when.
"""

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from grpo_tui.app.health.checks import Check

TESTED: Final = {"mlx": "0.32.4", "mlx-lm": "0.32.2", "textual": "8.2.8", "tinker": "0.25.0"}
"""As in constraints.txt."""


def check() -> Check:
    """Whether a library is newer than the release in which its replaced parts were tested."""
    installed = {}
    for package in TESTED:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:  # other lines say that it is missing
            continue
    return verdict(installed)


def verdict(installed: Mapping[str, str]) -> Check:
    """The line of the report for these releases."""
    newer = [
        name for name, number in installed.items() if _release(number) > _release(TESTED[name])
    ]
    if not newer:
        return Check("libraries", "not newer than those that were tested")
    text = ", ".join(f"{name} {installed[name]}, tested with {TESTED[name]}" for name in newer)
    pinned = " ".join(f"{name}=={TESTED[name]}" for name in newer)
    return Check("libraries", text, f"If something fails, go back: pip install '{pinned}'.")


def _release(number: str) -> tuple[int, ...]:
    """The numbers of a release, without what follows them."""
    return tuple(map(int, re.findall(r"\d+", re.split(r"[a-z+]", number)[0])))
