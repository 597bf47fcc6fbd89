"""Panels are hidden by keys, and as they were left."""

from pathlib import Path

import pytest
from textual.pilot import Pilot

from grpo_tui.app.feed.stored import StoreFeed
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.preferences import Preferences
from grpo_tui.app.tui.screens.base import WorkbenchScreen
from grpo_tui.app.tui.widgets.panel import Panel
from tests.app import frames
from tests.app.rest import until
from tests.app.stored import record, run_events
from tests.patience import PATIENCE


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("arranged") / "runs.db"
    for name in ("heron", "otter"):
        record(path, run_events(steps=6), name=name)
    return path


def opened(store: Path, mode: str = "watch", preferences: Preferences | None = None) -> Workbench:
    feed = StoreFeed(store, "otter")
    assert feed.caught_up.wait(PATIENCE)
    return Workbench(store, feed=feed, mode=mode, preferences=preferences or Preferences())


def panel(app: Workbench, name: str) -> Panel:
    return app.screen.query_one(f"#{name}", Panel)


def widths(app: Workbench, *names: str) -> list[int]:
    return [panel(app, name).region.width for name in names]


async def shown(app: Workbench, pilot: Pilot[int], *names: str) -> None:
    """Wait until exactly these panels are on a whole screen."""

    def settled() -> bool:
        screen = app.screen
        assert isinstance(screen, WorkbenchScreen)
        return {one.id for one in screen.panels() if one.framed and one.region.area} == set(names)

    await until(app, settled, app.frame_now)
    await pilot.pause()
    frames.check(app)


async def press(app: Workbench, pilot: Pilot[int], name: str, *keys: str) -> None:
    panel(app, name).focus()
    await pilot.press(*keys)
    await pilot.pause()
    app.frame_now()
    await pilot.pause()


async def test_a_hidden_panel_leaves_its_room_and_a_key_that_brings_it_back(
    store: Path, tmp_path: Path
) -> None:
    path = tmp_path / "settings.json"
    app = opened(store, preferences=Preferences(path))
    async with app.run_test(size=(160, 48)) as pilot:
        await shown(app, pilot, "curves", "answers", "groups", "alerts")
        await press(app, pilot, "groups", "X")
        await shown(app, pilot, "curves", "answers", "alerts")
        assert sum(widths(app, "curves", "answers")) == 160
        assert "Z show groups" in frames.text(app)
        await press(app, pilot, "answers", "X")
        await shown(app, pilot, "curves", "alerts")
        assert widths(app, "curves") == [160]
        assert app.screen.focused in (panel(app, "curves"), panel(app, "alerts"))
    app = opened(store, preferences=Preferences(path))
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(app, pilot, "curves", "alerts")
        assert "Z show groups, answers" in frames.text(app)
        await press(app, pilot, "curves", "Z")
        await shown(app, pilot, "curves", "answers", "groups", "alerts")
        assert "Z show" not in frames.text(app)


async def test_what_is_left_of_a_row_fills_it(store: Path) -> None:
    app = opened(store)
    async with app.run_test(size=(160, 48)) as pilot:
        await shown(app, pilot, "curves", "answers", "groups", "alerts")
        await press(app, pilot, "answers", "X")
        await shown(app, pilot, "curves", "groups", "alerts")
        assert sum(widths(app, "curves", "groups")) == 160


async def test_the_last_panel_stays(store: Path) -> None:
    app = opened(store)
    async with app.run_test(size=(160, 48)) as pilot:
        await shown(app, pilot, "curves", "answers", "groups", "alerts")
        for name in ("groups", "answers", "alerts", "curves"):
            await press(app, pilot, name, "X")
        await shown(app, pilot, "curves")
        assert widths(app, "curves") == [160]


@pytest.mark.parametrize(
    ("mode", "name", "others"),
    [
        ("runs", "preview", {"table"}),
        ("new_run", "help", {"settings", "page"}),
        ("rollouts", "why", {"groups", "answer"}),
        ("compare", "page", {"curves", "runs", "settings"}),
    ],
)
async def test_every_screen_has_the_keys(
    mode: str, name: str, others: set[str], store: Path
) -> None:
    app = opened(store, "runs" if mode == "compare" else mode)
    async with app.run_test(size=(160, 48)) as pilot:
        if mode == "compare":
            await shown(app, pilot, "table", "preview")
            await pilot.press("home", "space", "space", "d")
        await shown(app, pilot, name, *others)
        await press(app, pilot, name, "X")
        await shown(app, pilot, *others)
        assert f"Z show {name}" in frames.text(app)
        await press(app, pilot, next(iter(others)), "Z")
        await shown(app, pilot, name, *others)


async def test_the_pages_of_new_run_that_were_hidden_come_back_with_their_key(store: Path) -> None:
    app = opened(store, "new_run")
    async with app.run_test(size=(120, 40)) as pilot:
        await shown(app, pilot, "settings", "help", "page")
        for name in ("page", "help"):
            await press(app, pilot, name, "X")
        await shown(app, pilot, "settings")
        assert widths(app, "settings") == [120]
        await press(app, pilot, "settings", "right_square_bracket")
        await shown(app, pilot, "settings", "page")


async def test_preferences_of_another_kind_are_left_out(store: Path) -> None:
    preferences = Preferences()
    preferences.remember(panels={"watch": {"hidden": ["nothing", 3], "wide": {"curves": "x"}}})
    app = opened(store, preferences=preferences)
    async with app.run_test(size=(160, 48)) as pilot:
        await shown(app, pilot, "curves", "answers", "groups", "alerts")
        assert widths(app, "curves") == [78]
