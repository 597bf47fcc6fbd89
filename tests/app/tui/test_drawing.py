"""The active screen is laid out once for its size, and shows only exact colours."""

from itertools import pairwise
from pathlib import Path

import pytest
from rich.color import ColorType
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.geometry import Region, Size
from textual.renderables.background_screen import BackgroundScreen

from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.dialogs.ask import InputDialog
from grpo_tui.app.tui.dialogs.dialog import AppScreen, Below
from grpo_tui.app.tui.screens.runs.screen import RunsTable
from grpo_tui.app.tui.widgets.field import Field
from grpo_tui.app.tui.widgets.top_bar import TopBar
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


async def test_a_key_in_a_dialog_does_not_draw_what_is_below(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be drawn with each event, as long as the dialog is open."""
    drawn = []
    app = Workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        app.push_screen(InputDialog("name", {"Another name.": Field()}))
        await pilot.pause()
        # something below has changed while the dialog is open
        app.screen_stack[0].query_one(TopBar).refresh()
        await pilot.pause(0.1)
        console = Below.__rich_console__
        monkeypatch.setattr(
            Below,
            "__rich_console__",
            lambda *args: drawn.append(args) or console(*args),  # type: ignore[func-returns-value]  # append
        )
        for key in "abc":
            await pilot.press(key)
            app.screen_stack[0].call_later(lambda: None)  # an event that changes nothing
            await pilot.pause(0.1)
        assert "abc" in shown(app)
        assert drawn == []
        app.screen_stack[0].query_one(TopBar).refresh(Region(0, 0, 10, 1))
        await pilot.pause(0.1)
        assert len(drawn) == 1


async def test_what_is_below_a_dialog_is_shown_as_it_changes(store: Path) -> None:
    app = Workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        app.push_screen(InputDialog("name", {"Another name.": Field()}))
        await pilot.pause()
        for number in range(3):
            app.screen_stack[0].query_one(RunsTable).title = f"title {number}"
            app.screen_stack[0].query_one(RunsTable).on_descendant_blur()
            await pilot.pause(0.1)
            assert f"title {number}" in shown(app)
        await pilot.press("escape")
        await pilot.pause()
        assert "title 2" in shown(app)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_what_is_below_a_dialog_has_textuals_colours(alpha: float) -> None:
    colour = Color(10, 20, 30, a=alpha)
    segments = [
        Segment("plain"),
        Segment("text", Style.parse("bold #ff8000 on #102030")),
        Segment("link", Style.parse("#ff8000 link https://example.org")),
        Segment("meta", Style.parse("on #ffffff") + Style.from_meta({"offset": (1, 2)})),
    ]
    expected = list(BackgroundScreen.process_segments(segments, colour))
    assert list(Below.process_segments(segments, colour)) == expected
    assert not any(style.meta or style.link for _, style, _ in expected if style)


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
