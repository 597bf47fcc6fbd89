"""The one-line field accepts pasted text without line ends and control characters."""

from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.widgets import Input

from grpo_tui.app.tui.app import SCREENS
from grpo_tui.app.tui.widgets.field import Field
from tests.app.script import Script
from tests.app.tui.screens.test_watch import workbench

SHORT = Script(steps=3, total_steps=9)


class Asking(App[None]):
    def compose(self) -> ComposeResult:
        yield Field("old", select_on_focus=False)


async def test_what_is_pasted_stays_on_one_line_and_keeps_its_words() -> None:
    app = Asking()
    async with app.run_test() as pilot:
        app.copy_to_clipboard("two\nlines\x1b[31m")
        await pilot.press("ctrl+v")
        assert app.query_one(Field).value == "oldtwo lines [31m"


async def test_a_paste_replaces_the_selection() -> None:
    app = Asking()
    async with app.run_test() as pilot:
        app.copy_to_clipboard("a\tb")
        await pilot.press("end", "shift+home", "ctrl+v")
        assert app.query_one(Field).value == "a b"


@pytest.mark.parametrize("mode", list(SCREENS))
async def test_every_field_of_one_line_is_ours(mode: str, tmp_path: Path) -> None:
    app = workbench(SHORT.events(), tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press(str(1 + list(SCREENS).index(mode)))
        await pilot.pause()
        for keys in ((), ("slash",), ("ctrl+p",)):
            await pilot.press(*keys)
            await pilot.pause()
            assert [f for f in app.screen.query(Input) if not isinstance(f, Field)] == []
