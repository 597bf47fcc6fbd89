"""Which files start processes: those that docs/architecture.md lists, each with its reason."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STARTS = re.compile(
    r"os\.(fork|forkpty|posix_spawnp?|system|popen|exec\w+|spawn\w+)|pty\.(fork|spawn)|multiprocessing\b.*"
    r"|subprocess\.(run|Popen|call|check_\w+|get\w*output)|asyncio\.create_subprocess_\w+"
    r"|.*\bProcessPoolExecutor|psutil\.Popen|mcp\.client\.stdio\.stdio_client"
)


def starts(code: str) -> bool:
    """Whether code uses something that starts a process."""
    return any(STARTS.fullmatch(name) for name in used(ast.parse(code)))


def used(tree: ast.AST) -> Iterator[str]:
    """Every attribute, and every name that is imported, with its module."""
    annotations = {
        id(part)
        for node in ast.walk(tree)
        for note in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if isinstance(note, ast.AST)
        for part in ast.walk(note)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in annotations:
            yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import os\nos.fork()", True),
        ("from subprocess import run", True),
        ("from os import posix_spawn", True),
        ("import multiprocessing as m", True),
        ("from multiprocessing.pool import Pool", True),
        ("from concurrent.futures import ProcessPoolExecutor", True),
        ("await asyncio.create_subprocess_exec('a')", True),
        ("from subprocess import TimeoutExpired", False),
        ("def wait(process: subprocess.Popen[bytes]) -> subprocess.Popen[str]: ...", False),
        ("import subprocess\nsubprocess.DEVNULL", False),
    ],
)
def test_what_starts_a_process_is_seen(code: str, found: bool) -> None:
    assert starts(code) is found


def test_every_file_that_starts_a_process_is_listed_with_why_metal_is_out_of_reach() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = page.partition("\n## Processes\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| `(\S+\.py)` \| .+ \| .+ \|$", section, re.MULTILINE))
    files = (
        file
        for folder in ("app", "experiments", "grpo_engine", "grpo_tui")
        for file in (ROOT / folder).rglob("*.py")
    )
    starting = {
        file.resolve().relative_to(ROOT).as_posix()
        for file in files
        if starts(file.read_text(encoding="utf-8"))
    }
    assert starting == listed
