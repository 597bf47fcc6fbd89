"""Rules are parsed once, themes reach every screen, and dialogs dim as in Textual."""

from pathlib import Path

import pytest
from textual.color import Color

from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.looks.colours import DARK
from grpo_tui.app.tui.preferences import Preferences


async def test_another_theme_reaches_screens_that_are_not_in_front(tmp_path: Path) -> None:
    app = Workbench(tmp_path / "store.db")
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("3")
        dark = app.screen.styles.background
        await pilot.press("1")
        app.change_theme("light")
        await pilot.press("3")
        await pilot.pause()
        assert app.screen.styles.background != dark
        app.change_theme(DARK)
        await pilot.pause()
        assert app.screen.styles.background == dark


@pytest.mark.parametrize("theme", [DARK, "light"])
async def test_the_first_picture_has_the_remembered_theme(tmp_path: Path, theme: str) -> None:
    preferences = Preferences()
    preferences.remember(theme=theme)
    app = Workbench(tmp_path / "store.db", preferences=preferences)
    async with app.run_test(size=(120, 40)):
        assert app.theme == theme
        assert app.has_class("-light-mode") == (theme == "light")
        assert app.screen.styles.background == Color.parse(str(app.current_theme.background))
