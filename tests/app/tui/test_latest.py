"""Messages: one toast at a time, and a list of the latest."""

from pathlib import Path

from textual.widgets._toast import Toast

from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.dialogs.page import PageDialog
from tests.app import frames
from tests.app.walk import walk


async def test_a_toast_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    async with walk(Workbench(tmp_path / "none.db"), (80, 24), notifications=True) as on:
        for text in ("first", "second", "third"):
            on.app.notify(text)
            await on.pilot.pause()
        await on.until(lambda: "third" in on.text)
        assert len(on.screen.query(Toast)) == 1


async def test_the_latest_messages_are_listed_with_the_newest_first(tmp_path: Path) -> None:
    async with walk(Workbench(tmp_path / "none.db", clock=lambda: 0.0), (80, 24)) as on:
        on.app.notify("first")
        on.app.notify("[b]second\x1b", title="not started", severity="error")
        await on.press("exclamation_mark")
        frames.check(on.app)
        text = on.text
        assert text.index("✗ not started: [b]second") < text.index("· first")
        await on.press("exclamation_mark")
        assert not isinstance(on.screen, PageDialog)
