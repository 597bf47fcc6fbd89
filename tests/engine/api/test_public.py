"""The top level: lazy, typed, and the same whatever was imported before."""

import subprocess
import sys
from pathlib import Path

import pytest

import grpo_engine as grpo

PAGE = Path(__file__).resolve().parents[3] / "docs" / "python.md"
LEAVES = ("events", "errors", "control", "metrics", "names", "config.settings", "presets")


def printed(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_imports_nothing_else() -> None:
    code = (
        "import sys; before = set(sys.modules); import grpo_engine; "
        "print(sorted(set(sys.modules) - before))"
    )
    assert printed(code) == "['grpo_engine']"


def test_leaves_and_settings_load_no_mlx_and_no_store() -> None:
    heavy = "('mlx', 'mlx_lm', 'sqlmodel', 'grpo_tui', 'pandas', 'tqdm')"
    used = [f"grpo_engine.{name}" for name in ("RunConfig", "recipe", "Task", "events")]
    imported = [f"import grpo_engine.{leaf}" for leaf in LEAVES]
    code = "; ".join(["import sys, grpo_engine", *used, *imported])
    assert printed(f"{code}; print([m for m in {heavy} if m in sys.modules])") == "[]"


@pytest.mark.parametrize("name", sorted(grpo.PUBLIC))
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert name in dir(grpo)
    assert getattr(grpo, name).__doc__
    assert f"`{name}`" in PAGE.read_text()


def test_a_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'grpo_engine' has no attribute 'trian'"):
        grpo.trian  # type: ignore[attr-defined]  # noqa: B018
