"""Every path and every name in backticks on a page exists in the code."""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePath
from pkgutil import iter_modules

import mlx_lm.models
import pytest

from tests.docs.blocks import PAGES, ROOT, SHEETS

NAMED = [page for page in ("CONTRIBUTING.md", *PAGES) if page not in SHEETS]
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
WORD = re.compile(r"[A-Za-z_]\w+")
# A file with one of these endings, and no placeholder in capitals.
PATH = re.compile(r"(?!.*[A-Z]{4}.*\.py)[\w./-]+\.(?:py|toml|md|c|h|tcss)")
# A name that a page says is in a file: `RECIPES` in `grpo_engine/config/recipes.py`.
PLACED = re.compile(r"`([A-Za-z_]\w*)`\s+(?:in|of)\s+`([\w./]+\.py)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
# Words that are not the program's, by whose they are.
OUTSIDE = {
    "other libraries": "distributed_config jaccl libgfortran logdir nccl pycosat tensorboardX "
    "WAL_READ_LOCK",
    "SkyRL": "megatron placement policy_num_nodes",
    "the system": "Application Library Support pgdn pgup",
    "TRL, and left out here": "aux_loss",
    "the ends of several names": "_clip_min _k_neg _lambda_neg _lambda_pos _terminated_length",
    "examples": "GRPT PROBLEM TASK clearest device-report.md my_rewards my_rewards.py report.md "
    "tests/x.py",
}


@cache
def files() -> frozenset[str]:
    """The files of the repository, and its folders."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [PurePath(line) for line in listed.splitlines()]
    return frozenset(str(part) for path in paths for part in (path, *path.parents))


@cache
def words() -> frozenset[str]:
    """The words of the code, of its data and of its paths, and those that lie outside of it."""
    texts = [
        (ROOT / name).read_text(encoding="utf-8", errors="replace")
        for name in files()
        if name.endswith((".py", ".c", ".h", ".toml", ".yml", ".json", ".tcss", "Makefile", "run"))
        and name != "tests/docs/test_names.py"
        and (ROOT / name).is_file()
    ]
    models = (module.name for module in iter_modules(mlx_lm.models.__path__))
    return frozenset(WORD.findall("\n".join([*files(), *texts]))).union(
        models, *map(str.split, OUTSIDE.values())
    )


def exists(path: str, page: str) -> bool:
    """Whether a path, or the end of one, is in the repository."""
    nearby = str((ROOT / page).parent.joinpath(path).resolve().relative_to(ROOT))
    name = path.rstrip("/")
    return nearby in files() or any(file == name or file.endswith(f"/{name}") for file in files())


def problems(page: str) -> Iterator[str]:
    """What a page names and the code has not."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S)
    for span in SPAN.findall(text):
        unknown = sorted(set(WORD.findall(span)) - words())
        paths = [part for part in span.split() if PATH.fullmatch(part)]
        missing = [path for path in paths if path not in words() and not exists(path, page)]
        if unknown or missing:
            yield f"`{span}`: there is no {', '.join([*unknown, *missing])}"
    for name, path in PLACED.findall(text):
        sources = [Path(ROOT / file) for file in files() if f"/{file}".endswith(f"/{path}")]
        if not any(re.search(rf"\b{name}\b", source.read_text()) for source in sources):
            yield f"`{name}` is not in `{path}`"
    for target in LINK.findall(text):
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        if "://" not in target and not (file.exists() and (not anchor or anchor in anchors(file))):
            yield f"a link to {target}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", NAMED)
def test_what_a_page_names_exists(page: str) -> None:
    assert list(problems(page)) == []
