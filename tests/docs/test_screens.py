"""The script that draws the pages' pictures."""

import asyncio
from pathlib import Path

import pytest

from docs import screens
from grpo_tui.app.tui.looks.colours import DARK


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, s in screens.STATES.items() if s.store == "none"])
def test_a_screen_without_runs_shows_what_its_picture_is_of(name: str, tmp_path: Path) -> None:
    shot, size = screens.STATES[name], (120, 36)
    picture, _ = asyncio.run(screens.shoot(shot, tmp_path / "none.db", size, DARK))
    assert picture.startswith("<svg")
