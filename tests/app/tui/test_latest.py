"""Messages: one toast at a time, and a list of the latest."""

from pathlib import Path

from textual.widgets._toast import Toast

from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.dialogs.page import PageDialog
from tests.app import frames
from tests.app.rest import until


async def test_a_toast_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    app = Workbench(tmp_path / "none.db")
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        for text in ("first", "second", "third"):
            app.notify(text)
            await pilot.pause()
        await until(app, lambda: "third" in frames.text(app))
        assert len(app.screen.query(Toast)) == 1


async def test_the_latest_messages_are_listed_with_the_newest_first(tmp_path: Path) -> None:
    app = Workbench(tmp_path / "none.db", clock=lambda: 0.0)
    async with app.run_test(size=(80, 24)) as pilot:
        app.notify("first")
        app.notify("[b]second\x1b", title="not started", severity="error")
        await pilot.press("exclamation_mark")
        await pilot.pause()
        frames.check(app)
        text = frames.text(app)
        assert text.index("✗ not started: [b]second") < text.index("· first")
        await pilot.press("exclamation_mark")
        await pilot.pause()
        assert not isinstance(app.screen, PageDialog)
