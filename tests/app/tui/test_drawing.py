"""The active screen is laid out once for its size, and shows only exact colours."""

from itertools import pairwise
from pathlib import Path

import pytest
from rich.color import ColorType
from textual.geometry import Size

from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.dialogs.ask import InputDialog
from grpo_tui.app.tui.dialogs.dialog import AppScreen
from grpo_tui.app.tui.widgets.field import Field
from tests.app.stored import record

TOUR = "1 enter question_mark escape z z 4 m v escape 2 p escape L escape 1 space d 5 ctrl+p escape"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    record(path)
    return path


def shown(app: Workbench) -> str:
    """All text on the screen."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


@pytest.mark.slow
async def test_a_dialog_and_what_is_beneath_follow_the_size(store: Path) -> None:
    app = Workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("3")
        await pilot.press("1")
        app.push_screen(InputDialog("name", {"Another name.": Field()}))
        await pilot.pause()
        await pilot.resize_terminal(90, 30)
        await pilot.pause()
        assert {screen._compositor.size for screen in app.screen_stack} == {Size(90, 30)}
        assert "Another name." in shown(app)
        await pilot.press("escape")
        await pilot.press("3")
        await pilot.pause()
        assert app.screen._compositor.size == Size(90, 30)
        assert isinstance(app.screen, AppScreen)
        assert app.screen.has_class("-narrow")


@pytest.mark.slow
async def test_every_colour_is_exact(store: Path) -> None:
    """No filter changes the terminal's own colours or dimmed ones."""
    app = Workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        for key in TOUR.split():
            await pilot.press(key)
            await pilot.pause()
            for strip in app.screen._compositor.render_strips():
                for segment in strip:
                    look = segment.style
                    colours = (look.color, look.bgcolor) if look else ()
                    kinds = {colour.type for colour in colours if colour is not None}
                    assert kinds <= {ColorType.TRUECOLOR}, (key, segment)
                    assert look is None or not look.dim, (key, segment)


async def test_a_dialog_under_another_is_not_left_and_leaves_once(store: Path) -> None:
    app = Workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        given: list[list[str] | None] = []
        below, above = (
            InputDialog("below", {"One.": Field()}),
            InputDialog("above", {"Two.": Field()}),
        )
        app.push_screen(below, given.append)
        app.push_screen(above, given.append)
        await pilot.pause()
        below.dismiss(["early"])
        assert app.screen is above
        above.dismiss(["above"])
        above.dismiss(["late"])
        below.dismiss(["below"])
        await pilot.pause()
        assert given == [["above"], ["below"]]
        assert len(app.screen_stack) == 1


async def test_frames_that_take_long_come_rarely(store: Path) -> None:
    now, drawn = [1000.0], []
    app = Workbench(store, clock=lambda: now[0])
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        frame = app.frame_now

        def slow() -> None:
            drawn.append(now[0])
            frame()
            app._frame_cost = 1.0  # an eighth of the time is one frame every 8 seconds

        app.frame_now = slow  # type: ignore[method-assign]  # counted in its place
        for _ in range(20):
            now[0] += 1.0
            app._poll()
        assert drawn[0] == 1001.0
        assert [b - a for a, b in pairwise(drawn)] == [8.0, 8.0]
