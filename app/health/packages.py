"""Optional packages: their purpose and how to install them."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from grpo_tui.app.health.facts import Fact

OPTIONAL: Final = (
    ("reasoning-gym", "tasks", "over a hundred generated tasks, offline"),
    ("math-verify", "tasks", "rewards that compare mathematics, not text"),
    ("pyarrow", "parquet", "Parquet files, in and out"),
    ("datasets", "hub", "data sets from a hub"),
    ("textual-serve", "serve", "the workbench in a browser"),
)


def facts() -> list[Fact]:
    """Return one fact per optional package."""
    return [fact(*row) for row in OPTIONAL]


def fact(package: str, extra: str, purpose: str) -> Fact:
    """Report the version, or the purpose and the install command; a missing one is no problem."""
    try:
        found: str | None = version(package)
    except PackageNotFoundError:
        found = None
    words = found or f"not installed ({purpose}): pip install 'grpo-tui[{extra}]'"
    return Fact(area="Optional", name=package, found=words, numbers={"version": found})
