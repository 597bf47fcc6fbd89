"""The picker: what is chosen from, in columns."""

from pathlib import Path

from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.dialogs.picker import Item, Picker
from tests.app import frames
from tests.app.rest import until


async def test_a_name_that_fills_its_column_has_a_space_after_it(tmp_path: Path) -> None:
    app = Workbench(tmp_path / "s.db")
    async with app.run_test(size=(80, 24)):
        items = [Item("a", ("a" * 60, "first")), Item("b", ("b", "second"))]
        app.push_screen(Picker("metrics", items))
        await until(app, lambda: "second" in frames.text(app), app.frame_now)
        assert "a… first" in frames.text(app)
