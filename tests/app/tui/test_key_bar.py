"""The footer: at most six keys of the screen, and at the right end those of every screen."""

from pathlib import Path

import pytest

from grpo_tui.app.tui.widgets.key_bar import COMMON, MOST, KeyBar
from tests.app.stored import workbench
from tests.app.walk import walk


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 80, 120, 200])
async def test_the_palette_is_at_the_same_end_of_the_footer_of_each_screen(
    width: int, store: Path
) -> None:
    async with walk(workbench(store), (width, 40)) as on:
        for mode in "12345":
            await on.press(mode)
            await on.pilot.pause()
            names = [name for _, name, _ in on.screen.query_one(KeyBar).fitting]
            assert names[-1] == "palette"
            assert tuple(name for name in names if name in COMMON) == COMMON
            assert len(names) - len(COMMON) <= MOST
            assert on.lines[-1].rstrip().endswith("/ find  z zoom  ? explain  ctrl+p palette")
            assert len(on.lines[-1].rstrip()) == width - 2


async def test_a_click_on_a_hint_presses_its_key(store: Path) -> None:
    async with walk(workbench(store), (120, 40)) as on:
        await on.see("curves", "reward")
        x = on.lines[-1].index("zoom")
        await on.pilot.click(offset=(x, 39))
        await on.pilot.pause()
        assert on.screen.maximized is not None
