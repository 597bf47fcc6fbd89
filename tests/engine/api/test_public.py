"""The top level: lazy, typed, and the same whatever was imported before."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, assert_type

import mlx.core as mx
import pytest

import grpo_engine as grpo
from grpo_engine.api.policy import LoadedPolicy
from grpo_engine.api.run import Run
from grpo_engine.api.tables import Metrics, Rollouts
from grpo_engine.config.recipes import Recipe
from grpo_engine.events import EvaluationFinished, Event, Group
from grpo_engine.maths.advantage import Advantages
from grpo_engine.maths.loss import Loss

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


@pytest.mark.parametrize("name", ["RunConfig", "recipe", "Task", "events", *LEAVES])
def test_leaves_and_settings_load_no_mlx_and_no_store(name: str) -> None:
    heavy = "('mlx', 'mlx_lm', 'sqlmodel', 'grpo_tui', 'pandas', 'tqdm')"
    get = (
        f"grpo_engine.{name}"
        if name in (*grpo.PUBLIC, "events")
        else f"__import__('grpo_engine.{name}')"
    )
    code = f"import sys, grpo_engine; {get}; print([m for m in {heavy} if m in sys.modules])"
    assert printed(code) == "[]"


@pytest.mark.parametrize("name", sorted(grpo.PUBLIC))
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert name in dir(grpo)
    assert getattr(grpo, name).__doc__
    assert f"`{name}`" in PAGE.read_text()


def test_a_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'grpo_engine' has no attribute 'trian'"):
        grpo.trian  # type: ignore[attr-defined]  # noqa: B018


def test_an_iterators_record_is_used_through_the_protocol_alone() -> None:
    """The engine names no module of the store; import-linter cannot see names in strings."""
    sources = "".join(path.read_text() for path in PAGE.parents[1].glob("grpo_engine/**/*.py"))
    assert "experiments" not in re.sub(r"#.*", "", sources)


def test_the_pages_code_compiles_and_uses_only_public_names() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) > 8
    for block in blocks:
        tree = ast.parse(block)
        used = [
            node.attr for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            and node.value.id == "grpo"
        ]  # fmt: skip
        assert [name for name in used if name not in dir(grpo)] == []


def test_the_pages_maths_runs() -> None:
    made = grpo.advantages([[1.0], [0.0], [0.0], [1.0]], [0, 0, 1, 1], "grpo")
    # mean 1/2, sample deviation sqrt(1/2): (1 - 1/2) / (0.7071 + 0.0001) = 0.707
    assert [round(value, 3) for value in made.values.tolist()] == [0.707, -0.707, -0.707, 0.707]  # type: ignore[union-attr, arg-type]
    loss = grpo.policy_loss(
        new=mx.zeros((4, 3)), old=None, ref=None, advantages=made.values, mask=mx.ones((4, 3)),
        recipe=grpo.recipe("grpo", beta=0.0), group_ids=mx.array([0, 0, 1, 1]),
    )  # fmt: skip
    assert loss.value.item() == pytest.approx(0.0, abs=1e-6)


def _types() -> None:
    """Never called: what type checkers and editors know about the top level."""
    run = grpo.train({"rollout.prompts": 2}, preset="starter", steps=1, rewards=[len])
    assert_type(run, Run)
    assert_type(run.metrics, Metrics)
    assert_type(run.metrics["reward"][1], float)
    assert_type(run.rollouts(step=1), Rollouts)
    assert_type(run.rollouts()[0], Group)
    assert_type(run.evaluate(), dict[str, EvaluationFinished])
    assert_type(run.policy, LoadedPolicy)
    assert_type(run.policy.generate("a"), str)
    assert_type(grpo.resume(run), Run)
    assert_type(grpo.recipe("grpo"), Recipe)
    assert_type(grpo.advantages([1.0], [0], "grpo"), Advantages)
    assert_type(grpo.RunConfig().steps, int)
    for event in grpo.iterate(steps=1):
        assert_type(event, Event)
    none: Any = None
    assert_type(grpo.policy_loss(none, none, none, none, none, "grpo", group_ids=None), Loss)
