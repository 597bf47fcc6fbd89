"""The example of `docs/maths.md` runs and gives the stated result; functions stay short."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.maths.loss import Terms
from tests.engine.maths.helpers import number, numbers

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "maths.md").read_text()
MATHS = sorted((ROOT / "grpo_engine" / "maths").glob("*.py"))


def test_the_example_runs_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    example = re.findall(r"```python\n(.*?)```", PAGE, re.S)[0]
    assert len(example.splitlines()) <= 16
    space: dict[str, Any] = {}
    exec(compile(example, "docs/maths.md", "exec"), space)
    worth, loss = space["worth"], space["loss"]
    assert capsys.readouterr().out.startswith("array([0.566")
    assert numbers(worth.values) == pytest.approx([0.566, -1.493, 0.566, 0.360], abs=6e-4)
    assert numbers(loss.terms.side) == [[0], [-1], [1], [0]]
    assert (number(space["clipped"]), number(space["tokens"])) == (1, 4)


def test_every_term_is_described() -> None:
    described = PAGE.partition("`terms` holds")[2].partition("\n\n")[0]
    for name in Terms.__slots__:
        if name != "per_row":
            assert f"`{name}`" in described


@pytest.mark.parametrize("path", MATHS, ids=lambda path: path.stem)
def test_no_function_of_the_maths_is_longer_than_forty_lines(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 40, node.name
            assert ast.get_docstring(node) or node.name.startswith("_") or node.name == "over"
