"""The import direction app -> experiments -> grpo_engine, checked in a fresh interpreter."""

import subprocess
import sys

import pytest

HEAVY = ("mlx", "mlx_lm", "textual", "sqlmodel", "transformers", "torch")


@pytest.mark.parametrize("module", ["grpo_engine", "grpo_tui.experiments", "grpo_tui.app"])
def test_packages_load_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
