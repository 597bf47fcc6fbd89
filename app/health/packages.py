"""Optional packages: their purpose and how to install them."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from grpo_tui.app.health.checks import Check

OPTIONAL: Final = (
    ("reasoning-gym", "tasks", "over a hundred generated tasks, offline"),
    ("math-verify", "tasks", "rewards that compare mathematics, not text"),
    ("pyarrow", "parquet", "Parquet files, and packed runs of prime-rl"),
    ("datasets", "hub", "data sets from a hub"),
    ("mcp", "mcp", "tools of MCP servers"),
    ("lm-eval", "lm-eval", "standard benchmarks of a trained model"),
    ("matplotlib", "plots", "figures for papers"),
    ("wandb", "trackers", "live logs and exports to Weights & Biases"),
    ("tinker", "remote", "training with weights on a server"),
    ("trackio", "trackers", "live logs to trackio; exports need no package"),
)


def checks() -> list[Check]:
    """Check each optional package."""
    return [check(*row) for row in OPTIONAL]


def check(package: str, extra: str, purpose: str) -> Check:
    """The version, or how to install the package, which is optional."""
    try:
        return Check(package, version(package))
    except PackageNotFoundError:
        return Check(package, f"not installed ({purpose}): pip install 'grpo-tui[{extra}]'")
