"""The active screen is laid out once for its size, and shows only exact colours."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.color import ColorType
from rich.segment import Segment
from rich.style import Style
from textual._compositor import Compositor
from textual.color import Color
from textual.geometry import Size
from textual.renderables.background_screen import BackgroundScreen
from textual.screen import Screen

from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.dialogs.ask import InputDialog
from grpo_tui.app.tui.dialogs.dialog import Below, tinted
from grpo_tui.app.tui.screens.new_run import screen as new_run
from grpo_tui.app.tui.screens.new_run.state import NewRunView, preset_view
from grpo_tui.app.tui.screens.runs import screen as runs
from grpo_tui.app.tui.screens.runs.render import preview_lines
from grpo_tui.app.tui.screens.runs.screen import RunsTable
from grpo_tui.app.tui.screens.runs.state import Preview
from grpo_tui.app.tui.widgets.field import Field
from grpo_tui.app.tui.widgets.panel import Line, Panel
from tests.app.stored import record, workbench

TOUR = "1 enter question_mark escape z z 4 m v escape 2 p escape L escape 1 space d 5 ctrl+p escape"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    record(path)
    return path


def shown(app: Workbench) -> str:
    """All text on the screen."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often whole screens were drawn and laid out, by their classes, and panels painted."""
    counts = Counter[str]()

    def count(cls: Any, method: str, name: Callable[[Any], str]) -> None:
        real = getattr(cls, method)

        def counted(self: Any, *values: Any, **options: Any) -> Any:
            counts[name(self)] += 1
            return real(self, *values, **options)

        monkeypatch.setattr(cls, method, counted)

    count(Compositor, "render_full_update", lambda _: "full")
    count(Below, "render_strips", lambda _: "below")
    count(Screen, "_refresh_layout", lambda screen: f"layout {type(screen).__name__}")
    count(Panel, "_draw", lambda panel: f"paint {type(panel).__name__}")
    return counts


async def test_a_dialog_lays_out_only_itself_and_its_end_draws_once(
    store: Path, drawn: Counter[str]
) -> None:
    app = Workbench(store, clock=lambda: 0.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        drawn.clear()
        app.push_screen(InputDialog("name", {"Another name.": Field()}))
        await pilot.pause()
        assert drawn["layout RunsScreen"] == 0
        assert drawn["layout InputDialog"] <= 2  # for the size, then with what was mounted
        # How often it is drawn until then depends on how busy the machine is.
        assert drawn["below"] == drawn["full"]
        drawn.clear()
        await pilot.press("escape")
        await pilot.pause()
        assert (drawn["layout RunsScreen"], drawn["full"]) == (0, 1)
        assert "Another name." not in shown(app)


@pytest.mark.parametrize("larger", [False, True])
async def test_a_screen_and_its_dialog_are_laid_out_for_another_size(
    store: Path, larger: bool
) -> None:
    app = Workbench(store)
    size = Size(140, 50) if larger else Size(90, 30)
    async with app.run_test(size=(120, 40)) as pilot:
        app.push_screen(InputDialog("name", {"Another name.": Field()}))
        await pilot.pause()
        await pilot.resize_terminal(*size)
        await pilot.pause()
        assert [screen._compositor.size for screen in app.screen_stack] == [size, size]


async def test_a_move_on_new_run_paints_each_panel_once_and_lays_nothing_out(
    store: Path, drawn: Counter[str]
) -> None:
    app = Workbench(store, clock=lambda: 0.0, mode="new_run")
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        drawn.clear()
        await pilot.press("down")
        await pilot.pause()
        assert drawn["paint FormPanel"] == 1
        assert set(drawn.values()) == {1}
        assert not [name for name in drawn if name.startswith(("layout", "full"))]


@pytest.mark.parametrize(
    ("mode", "key", "painted"),
    [
        ("runs", "space", {"RunsTable"}),
        ("rollouts", "right", {"CompletionPanel"}),
        ("rollouts", "down", {"CompletionPanel", "RewardPanel"}),
        ("rollouts", "m", {"CompletionPanel"}),
        ("compare", "down", {"CurvesPanel", "RunsPanel"}),
        ("new_run", "down", {"FormPanel", "HelpPanel"}),
    ],
)
async def test_a_key_paints_the_panels_that_show_what_it_changes(
    store: Path, drawn: Counter[str], mode: str, key: str, painted: set[str]
) -> None:
    app = workbench(store, mode=mode)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        drawn.clear()
        await pilot.press(key)
        await pilot.pause()
        names = {name.removeprefix("paint ") for name in drawn if name.startswith("paint ")}
        assert names - {"TopBar", "KeyBar"} == painted


MOVES = {
    "runs": "space g down enter enter space up down i escape m escape",
    "rollouts": "right down m m t t n p d d d s c f F s o n escape s p",
    "compare": "down right right_square_bracket down right_square_bracket b x w m escape",
    "new_run": "down down enter escape right_square_bracket end home L escape",
}


@pytest.mark.parametrize("mode", MOVES)
async def test_after_each_key_every_panel_is_as_if_it_was_painted_now(
    store: Path, mode: str
) -> None:
    app = workbench(store, mode=mode)
    async with app.run_test(size=(200, 60)) as pilot:
        await pilot.pause()
        for key in MOVES[mode].split():
            await pilot.press(key)
            await pilot.pause()
            for panel in app.screen.query(Panel):
                if panel.on_show() and panel.size:
                    before = [*panel._strips]
                    panel._draw()
                    assert [*panel._strips] == before, (key, panel)


@pytest.mark.parametrize("mode", ["runs", "watch", "rollouts", "new_run", "compare"])
async def test_a_frame_without_news_paints_nothing(
    store: Path, drawn: Counter[str], mode: str
) -> None:
    app = Workbench(store, clock=lambda: 0.0, mode=mode)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        app.frame_now()
        drawn.clear()
        for _ in range(5):
            app.frame_now()
        assert not drawn


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
    assert [tinted(style, colour) for _, style, _ in segments] == [
        style for _, style, _ in expected
    ]
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


async def test_a_key_is_answered_before_new_data_is_drawn(store: Path) -> None:
    now, drawn = [1000.0], list[float]()
    app = Workbench(store, clock=lambda: now[0])
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        app.frame_now = lambda: drawn.append(now[0])  # type: ignore[method-assign]  # counted
        app._frame_cost, app._last_frame, app._last_key = 0.0, 999.9, 1000.0
        for now[0] in (1000.02, 1000.06):
            app._poll()
        assert drawn == []
        now[0] = 1000.1
        app._poll()
        assert drawn == [1000.1]
        app._last_frame, app._last_key = 1000.1, 1000.36
        now[0] = 1000.37  # keys that follow each other closely do not stop the run on screen
        app._poll()
        assert drawn == [1000.1, 1000.37]


async def test_runs_draws_its_table_and_its_preview_only_for_what_they_show(
    store: Path, drawn: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Preview] = []

    def counted(preview: Preview, *look: Any) -> list[Line]:
        made.append(preview)
        return preview_lines(preview, *look)

    monkeypatch.setattr(runs, "preview_lines", counted)
    app = Workbench(store, clock=lambda: 0.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        await app.workers.wait_for_complete()
        await pilot.pause()
        screen = app.screen
        assert isinstance(screen, runs.RunsScreen)
        assert screen.view.preview is not None
        made.clear()
        drawn.clear()
        screen.update(queued=1)
        assert (drawn["paint RunsTable"], made) == (1, [])
        screen.update(runs=tuple(replace(run, step=run.step + 1) for run in screen.view.runs))
        assert (drawn["paint RunsTable"], len(made)) == (2, 1)  # both have the step
        screen.update(preview=None)
        assert drawn["paint RunsTable"] == 2


async def test_all_messages_are_one_widget(store: Path) -> None:
    app = Workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        for number in range(40):
            app.notify(f"message {number}")
        await pilot.press("exclamation_mark")
        await pilot.pause()
        assert len(app.screen.query("VerticalScroll > Static")) == 1
        assert shown(app).count("message ") > 20


async def test_new_run_reads_its_preset_once(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(name: str) -> NewRunView:
        read.append(name)
        return preset_view(name)

    monkeypatch.setattr(new_run, "preset_view", counted)
    new_run.first_view.cache_clear()
    app = Workbench(store, mode="new_run")
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        assert read == [new_run.FIRST_PRESET]


async def test_the_key_of_the_next_prompt_says_why_there_is_none(store: Path) -> None:
    app = Workbench(store, mode="new_run")
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        assert isinstance(app.screen, new_run.NewRunScreen)
        app.screen.update(activity="reading the task…", examples={})
        await pilot.press("n")
        assert app.notices[-1].text == "reading the task…"
