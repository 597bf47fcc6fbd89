"""The one-line field accepts pasted text without line ends and control characters."""

from textual.app import App, ComposeResult

from grpo_tui.app.tui.widgets.field import Field


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
