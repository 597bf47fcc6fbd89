"""The table of what stores name and what guards it: every place, guard and test is there."""

import importlib
import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
TABLE = PAGE[PAGE.index("| what a store names |") :].partition("\n\n")[0]
ROWS = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in TABLE.splitlines()[2:]]
NAME = re.compile(r"`([\w.]+):(\w+)`")


def source(module: str) -> Path:
    return ROOT / f"{module.replace('.', '/')}.py"


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_row_names_places_a_guard_and_a_test_that_exist(row: list[str]) -> None:
    _, places, guard, test = row
    for module, name in NAME.findall(places + guard):
        package = module if module.startswith("grpo_engine") else f"grpo_tui.{module}"
        assert callable(getattr(importlib.import_module(package), name))
    assert NAME.findall(places)
    assert (ROOT / test.strip("`")).is_file()


ASKING = [row for row in ROWS if row[2].endswith((":build`", ":require`"))]


@pytest.mark.parametrize("row", ASKING, ids=[row[0] for row in ASKING])
def test_a_place_that_asks_calls_its_guard(row: list[str]) -> None:
    ((_, guard),) = NAME.findall(row[2])
    for module, _ in NAME.findall(row[1]):
        assert re.search(rf"\b(consent\.)?{guard}\(", source(module).read_text(encoding="utf-8"))


def test_nothing_else_makes_settings_of_what_a_store_or_a_checkpoint_has() -> None:
    stored = re.compile(
        r"(?<!consent\.)\b(build|model_validate)\(\s*(detail|saved|item|row|chosen)\."
    )
    for folder in ("app", "experiments", "grpo_engine"):
        for file in (ROOT / folder).rglob("*.py"):
            places = stored.findall(file.read_text(encoding="utf-8"))
            assert len(places) == (file.name == "persist.py"), file  # it compares two of one run
