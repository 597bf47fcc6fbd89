"""Rules are parsed once, themes reach every screen, and dialogs dim as in Textual."""

from pathlib import Path
from typing import Any

import pytest
from rich.style import Style
from textual.color import Color
from textual.renderables.background_screen import BackgroundScreen

from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.dialogs.ask import InputDialog
from grpo_tui.app.tui.looks.colours import DARK
from grpo_tui.app.tui.preferences import Preferences
from grpo_tui.app.tui.widgets.field import Field
from tests.app import frames
from tests.app.rest import until


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


async def test_a_dialog_dims_the_screen_beneath_as_textual_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = await _dimmed(tmp_path / "store.db")
    monkeypatch.setattr("textual.screen.BackgroundScreen", BackgroundScreen)
    assert ours == await _dimmed(tmp_path / "store.db")


async def _dimmed(store: Path) -> list[tuple[str, tuple[Any, ...]]]:
    """The cells of a screen with a dialog over it."""
    app = Workbench(store, clock=lambda: 1000.0)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(app, lambda: "reading the store" not in frames.text(app))
        await app.push_screen(InputDialog("tags", {"Which?": Field()}))
        await pilot.pause()
        strips = app.screen._compositor.render_strips()
        return [
            (char, _look(style)) for strip in strips for text, style, _ in strip for char in text
        ]


def _look(style: Style | None) -> tuple[Any, ...]:
    assert style is not None
    return style.color, style.bgcolor, style.bold
