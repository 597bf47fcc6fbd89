"""Helpers that use the New run screen as a person would."""

from pathlib import Path
from typing import Any

from textual.keys import _character_to_key
from textual.pilot import Pilot

from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.messages import NewRunRequested
from grpo_tui.app.tui.preferences import Preferences
from grpo_tui.app.tui.screens.new_run import NewRunScreen
from tests.app import frames


async def opened(app: Workbench, pilot: Pilot[int], **request: Any) -> NewRunScreen:
    await app.forward("new_run", NewRunRequested(**request))
    screen = app.screen
    assert isinstance(screen, NewRunScreen)
    await pilot.pause()
    return screen


async def write(pilot: Pilot[int], text: str) -> None:
    """Replace the text of the focused field."""
    await pilot.press("end", "ctrl+u", *(_character_to_key(char) for char in text))


async def go_to(pilot: Pilot[int], screen: NewRunScreen, path: str) -> None:
    """Move to a setting by keys: search for the start of its path, keep the search, go down."""
    await pilot.press("slash", "ctrl+u", *(_character_to_key(char) for char in path[:11]))
    await pilot.press("enter")
    while screen.view.cursor != path:
        before = screen.view.cursor
        await pilot.press("down")
        assert screen.view.cursor != before, frames.text(screen.workbench)


def workbench(store: Path, theme: str = "dark") -> Workbench:
    preferences = Preferences()
    preferences.remember(theme=theme)
    return Workbench(store, preferences=preferences)
