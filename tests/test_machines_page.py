"""docs/machines.md names existing places in the code, and only states that it explains."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STATES = {"tested", "emulated", "run", "never run", "–"}
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "machines.md").read_text().splitlines()
    if line.count("|") == 8 and "---" not in line
][1:]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_row_names_a_place_that_exists_and_a_state_for_each_device(row: list[str]) -> None:
    places = re.findall(r"`([^`:]+)(?:: ([^`]+))?`", row[2])
    assert places
    for file, name in places:
        path = next(p for p in (ROOT / "grpo_engine" / file, ROOT / file) if p.is_file())
        assert name in path.read_text()
    assert set(row[3:]) <= STATES
