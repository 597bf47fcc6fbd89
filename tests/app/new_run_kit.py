"""Helpers that use the New run screen as a person would."""

from collections.abc import Mapping
from typing import Any, Final

from textual.keys import _character_to_key
from textual.widgets import Input, TextArea

from grpo_tui.app.tui.messages import NewRunRequested
from grpo_tui.app.tui.screens.new_run.screen import NewRunScreen
from tests.app import frames
from tests.app.walk import Walk

# The example prompts of a task, as its trial gives them.
EXAMPLES: Final[Mapping[str, Any]] = {
    "about": "Sums.",
    "train": 2,
    "held_out": 1,
    "notes": [],
    "gets": "text",
    "examples": [
        {
            "key": "a",
            "where": "",
            "text": "1 + 2 = ?",
            "tokens": 5,
            "folded": False,
            "target": "3",
            "columns": "",
        }
    ],
}


async def opened(on: Walk, **request: Any) -> Any:
    await on.app.forward(NewRunRequested(**request))
    screen = on.screen
    await on.pilot.pause()
    return screen


async def write(on: Walk, text: str) -> None:
    """Replace the text of the focused field."""
    await on.press("end", "ctrl+u", *(_character_to_key(char) for char in text))


async def go_to(on: Walk, screen: NewRunScreen, path: str) -> None:
    """Move to a setting by keys: search for the start of its path, keep the search, go down."""
    await on.press("slash", "ctrl+u", *(_character_to_key(char) for char in path[:11]))
    await on.press("enter")
    while screen.view.cursor != path:
        before = screen.view.cursor
        await on.press("down")
        assert screen.view.cursor != before, frames.text(screen.workbench)


async def turn_to(on: Walk, screen: NewRunScreen, page: str) -> None:
    """Turn the pages until this one is shown and focused."""
    if isinstance(screen.focused, Input | TextArea):
        await on.press("escape")
    await on.press("right_square_bracket")
    while screen.view.page != page:
        await on.press("right_square_bracket")
