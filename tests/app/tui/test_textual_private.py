"""Textual's private parts are used only in `app/tui/textual_private`."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from textual.widget import Widget

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "app" / "tui" / "textual_private"
FILES = sorted(
    path
    for folder in ("app/tui", "docs", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    if FOLDER not in path.parents
)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def imports_of_private_parts(tree: ast.AST) -> Iterator[str]:
    """`import textual._x`, `from textual._x import y`, `from textual.x import _y`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        source = f"{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
        for name in (source + alias.name for alias in node.names):
            first, *rest = name.split(".")
            if first == "textual" and any(map(is_private, rest)):
                yield f"line {node.lineno} imports {name}"


def is_own(owner: ast.expr) -> bool:
    return (isinstance(owner, ast.Name) and owner.id in ("self", "cls")) or (
        isinstance(owner, ast.Call)
        and isinstance(owner.func, ast.Name)
        and owner.func.id == "super"
    )


def private_names_of_others(tree: ast.AST) -> Iterator[str]:
    """`widget._x`, unless a class of the same file has a `_x`."""
    own = private_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not is_own(node.value):
            if node.attr in own:
                continue
            yield f"line {node.lineno} uses {ast.unparse(node)}"


def private_names(tree: ast.AST) -> set[str]:
    """The private names that the classes in a tree define, or use on themselves."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_own(node.value):
            found.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in found if is_private(name)}


@cache
def names_of_textual(kind: type) -> frozenset[str]:
    return frozenset(private_names(ast.parse(textwrap.dedent(inspect.getsource(kind)))))


def names_shared_with_textual(kind: type, tree: ast.AST) -> Iterator[str]:
    """Private names that a class of ours uses or inherits from the Textual class it extends."""
    own = private_names(tree)
    for base in kind.__mro__:
        if base.__module__.split(".")[0] == "textual":
            for name in sorted(own & names_of_textual(base)):
                yield f"{kind.__name__}.{name} is {base.__name__}'s"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_file_uses_a_private_part_of_textual(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = list(imports_of_private_parts(tree))
    if path.is_relative_to(ROOT / "app"):
        found += private_names_of_others(tree)
        place = path.relative_to(ROOT).with_suffix("")
        module = import_module(".".join(("grpo_tui", *place.parts)).removesuffix(".__init__"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found += names_shared_with_textual(getattr(module, node.name), node)
    assert not found, f"{path.relative_to(ROOT)}: {'; '.join(found)}; use app/tui/textual_private"


def test_each_kind_of_use_is_found() -> None:
    source = """
import textual._xterm_parser
from textual._context import active_app
from textual.keys import _character_to_key
class Ours(Widget):
    def _on_focus(self): self._mine = other._mine
    def lines(self): return self.screen._compositor, self._size
"""
    tree = ast.parse(source)
    assert len(list(imports_of_private_parts(tree))) == 3
    assert list(private_names_of_others(tree)) == ["line 7 uses self.screen._compositor"]
    shared = names_shared_with_textual(Widget, tree)
    assert set(shared) == {"Widget._on_focus is Widget's", "Widget._size is Widget's"}
