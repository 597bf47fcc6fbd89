"""Every module of ours that is named in a string, unchecked by any import, exists."""

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from grpo_engine.rewards.builtins import BUILT_IN as REWARDS
from grpo_engine.tasks.base import BUILT_IN as TASKS
from grpo_tui.app.cli.verb_table import VERBS
from grpo_tui.app.tui.app import PRELOADED, SCREENS, Workbench

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("app", "experiments", "grpo_tui", "grpo_engine", "benchmarks", "tests", "docs", "tools")
# The first two are names of folders only, under which no module is there.
PACKAGES = ("app", "experiments", "grpo_tui", "grpo_engine", "benchmarks", "tests")
NAME = rf"(?:{'|'.join(PACKAGES)})(?:\.\w+)*"
WHOLE = re.compile(
    rf"(?=\w+[.:])(?!.*\.py\b){NAME}(?::\w+)?"
)  # module, module.attribute, module:attribute
PREFIX = re.compile(rf"({NAME})\.")  # the prefix of an f-string: f"grpo_tui.app.cli.verbs.{name}"
RUN = re.compile(rf"(?<!\w)-m ({NAME})(?![\w/])")
IMPORTED = re.compile(rf"\bfrom ({NAME}) import (\w+(?:, ?\w+)*)|\bimport ({NAME})(?!\w)")
TEXTS = ("Makefile", "grpo-tui", ".ci/run", ".github/workflows/*.yml", "tools/*", "*.md",
         "docs/*.md")  # fmt: skip

Named = tuple[str, str]  # where, what


def in_python(source: str, where: str) -> Iterator[Named]:
    """The names in a file's strings, and those after "-m" in a list of arguments."""
    for node in ast.walk(ast.parse(source)):
        place = f"{where}:{getattr(node, 'lineno', 0)}"
        match node:
            case ast.Constant(value=str(text)):
                for name in in_text(text):
                    yield place, name
                if WHOLE.fullmatch(text):
                    yield place, text
            case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
                if found := PREFIX.fullmatch(text):
                    yield place, found[1]
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                for before, after in pairwise(parts):
                    match before, after:
                        case ast.Constant(value="-m"), ast.Constant(value=str(text)):
                            if re.fullmatch(NAME, text):
                                yield place, program(text)


def in_text(text: str) -> Iterator[str]:
    """Modules that a text runs with -m, or that code in the text imports."""
    for found in RUN.finditer(text):
        yield program(found[1].rstrip("."))
    for found in IMPORTED.finditer(text):
        if found[3]:
            yield found[3]
        else:
            yield from (f"{found[1]}:{name.strip()}" for name in found[2].split(","))


def program(module: str) -> str:
    """What `-m` runs: the module, or a package's `__main__`."""
    spec = spec_of(module)
    is_package = spec is not None and spec.submodule_search_locations is not None
    return f"{module}.__main__" if is_package else module


def spec_of(module: str) -> Any:
    try:
        return find_spec(module)
    except ModuleNotFoundError:  # its parent is missing
        return None


def resolves(name: str) -> bool:
    """Whether a module, or the attribute of it, exists."""
    if name.startswith("app.") and hasattr(Workbench, "action_" + name.removeprefix("app.")):
        return True  # an action as Textual writes it: app.focus_next
    if spec_of(name.replace(":", ".")) is not None:
        return True
    try:
        resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def named() -> Iterator[Named]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path != Path(__file__):
                yield from in_python(path.read_text(), str(path.relative_to(ROOT)))
    for pattern in TEXTS:
        for path in filter(Path.is_file, sorted(ROOT.glob(pattern))):
            for name in in_text(path.read_text()):
                yield str(path.relative_to(ROOT)), name
    yield from in_settings(tomllib.loads((ROOT / "pyproject.toml").read_text()))


def in_settings(tree: Any) -> Iterator[Named]:
    """The names in pyproject.toml: commands, wheel contents, contracts."""
    match tree:
        case dict():
            for value in tree.values():
                yield from in_settings(value)
        case list():
            for value in tree:
                yield from in_settings(value)
        case str():
            if WHOLE.fullmatch(tree) or tree in PACKAGES:
                yield "pyproject.toml", tree


TABLES = {
    "verbs": [verb.target for verb in VERBS],
    "screens": list(SCREENS.values()),
    "rewards": [row.target for row in REWARDS.values()],
    "tasks": [target for target, _ in TASKS.values()],
}


def test_every_module_named_in_a_string_is_there() -> None:
    found = list(named())
    assert [f"{place}: {name}" for place, name in found if not resolves(name)] == []
    assert {
        "grpo_tui.app.entry:main",  # the command
        "grpo_tui.app.cli.verbs",  # a prefix
        "grpo_tui.__main__",  # -m in a list of arguments
        "grpo_tui.app.trial.service:Trials",
        "grpo_engine.sandbox.program:main",  # code for a child process
        "grpo_engine.rewards.service:Rewards",
        "benchmarks.quick",  # the Makefile
        "grpo_tui.app.tui.screens.watch:WatchScreen",
    } <= {name for _, name in found}


@pytest.mark.parametrize("table", TABLES)
def test_every_target_of_a_table_is_there(table: str) -> None:
    assert TABLES[table]
    assert [target for target in TABLES[table] if ":" not in target or not resolves(target)] == []


def test_every_module_that_is_loaded_ahead_is_there() -> None:
    assert [name for name in PRELOADED if spec_of(name) is None] == []


@pytest.mark.parametrize(
    "line",
    [
        'import_module("grpo_tui.app.no_such")',
        f'import_module("{"experiments"}.errors")',  # a file that has another name
        'find_spec("grpo_engine.no.such")',
        'TARGET = "grpo_tui.app.tui.app:NoSuchScreen"',
        'monkeypatch.setattr("grpo_tui.app.tui.app.no_such", 1)',
        'f"grpo_tui.app.no_such.{name}"',
        '[sys.executable, "-P", "-m", "grpo_tui.app.no_such", path]',
        '[sys.executable, "-m", "grpo_tui.app.tui.screens"]',  # a package without __main__
        '"import sys; from grpo_engine.no_such import main; main()"',
        '"import sys; from grpo_engine.sandbox.program import no_such; no_such()"',
        '"import grpo_engine.no_such"',
        '"""`python -m grpo_tui.app.no_such` does it."""',
    ],
)
def test_a_name_that_leads_nowhere_is_noticed(line: str) -> None:
    assert [name for _, name in in_python(line, "") if not resolves(name)] != []
