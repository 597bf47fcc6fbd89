"""Keys that are typed before the screen they are meant for is ready wait for it, in their order."""

import threading
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.widgets import Input

from grpo_tui.app.charts.stored import CurveLoader
from grpo_tui.app.feed.stored import StoreFeed
from grpo_tui.app.tui import app as workbench
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.screens.compare.screen import CompareScreen
from grpo_tui.app.tui.screens.rollouts.screen import RolloutsScreen
from grpo_tui.app.tui.screens.watch.screen import WatchScreen
from grpo_tui.experiments.reader import StoreReader
from tests.app.compared import two_runs
from tests.app.rest import until
from tests.patience import PATIENCE


def type_at_once(app: Workbench, *keys: str) -> None:
    """Put keys into the app's queue together, as a terminal does that was typed into early."""
    for key in keys:
        character = " " if key == "space" else key if len(key) == 1 else None
        app.post_message(events.Key(key, character))


@pytest.fixture(autouse=True)
def _keys_wait_as_long_as_they_must(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbench, "EARLY_S", 10 * PATIENCE)


def held_up(monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> threading.Event:
    """Let a method, called on another thread, wait for an event."""
    go, inner = threading.Event(), getattr(owner, method)

    def held(*args: Any, **more: Any) -> Any:
        go.wait(PATIENCE)
        return inner(*args, **more)

    monkeypatch.setattr(owner, method, held)
    return go


@pytest.mark.parametrize("taken_away", [False, True])
async def test_a_key_typed_before_the_table_of_runs_is_read_acts_on_it(
    store: Path, monkeypatch: pytest.MonkeyPatch, taken_away: bool
) -> None:
    """Also where the processor is taken away from one look at the clock to the next one."""
    if taken_away:
        seconds = count(step=0.003)
        monkeypatch.setattr("textual._time.get_time", lambda: next(seconds))
    may_read = held_up(monkeypatch, StoreReader, "runs")
    app = Workbench(store)
    async with app.run_test(size=(120, 40)):
        type_at_once(app, "enter")
        await until(app, lambda: app._early)
        may_read.set()
        await until(app, lambda: isinstance(app.screen, WatchScreen))


async def test_the_crosshair_of_compare_waits_for_the_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_read = held_up(monkeypatch, CurveLoader, "charts")
    app = Workbench(two_runs(tmp_path))
    async with app.run_test(size=(160, 48)):
        type_at_once(app, "space", "down", "space", "d", "left")
        await until(app, lambda: isinstance(app.screen, CompareScreen) and app.screen.view.runs)
        screen = app.screen
        assert isinstance(screen, CompareScreen)
        assert screen.view.at is None
        may_read.set()
        await until(app, lambda: screen.view.at is not None)


async def test_keys_typed_while_a_run_is_opened_reach_watch_once_it_has_been_read(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Runs has n as well, for a new run; on Watch it goes to the next of the four prompts
    may_read = held_up(monkeypatch, StoreFeed, "_read_facts")
    app = Workbench(store)
    async with app.run_test(size=(120, 40)):
        type_at_once(app, "enter", "n", "n")
        await until(app, lambda: isinstance(app.screen, WatchScreen))
        screen = app.screen
        assert isinstance(screen, WatchScreen)
        assert screen.view.prompt == 0
        may_read.set()
        await until(app, lambda: screen.view.prompt == 2)


async def test_keys_typed_while_a_comparison_is_read_are_handled_in_order(tmp_path: Path) -> None:
    # on Runs: mark two runs and compare them; there: crosshair, smoothing, axis
    app = Workbench(two_runs(tmp_path))
    async with app.run_test(size=(160, 48)):
        await until(app, lambda: app.screen.is_mounted)
        type_at_once(app, "space", "down", "space", "d", "left", "minus", "b")
        await until(app, lambda: isinstance(app.screen, CompareScreen) and not app._early)
        screen = app.screen
        assert isinstance(screen, CompareScreen)
        assert len(screen.view.refs) == 2
        assert screen.view.smooth == 2
        assert screen.view.x is not None
        assert screen.view.x < 8  # from the last step to the left


async def test_moves_through_answers_wait_for_the_step_and_the_group(store: Path) -> None:
    app = Workbench(store)
    async with app.run_test(size=(120, 40)):
        type_at_once(app, "enter", "4", "n", "right", "right", "right")
        await until(app, lambda: isinstance(app.screen, RolloutsScreen) and not app._early)
        screen = app.screen
        assert isinstance(screen, RolloutsScreen)
        assert screen.view.group_at == 1
        assert screen.view.token == screen.view.tokens[3]


async def test_text_typed_behind_the_key_that_opens_a_field_goes_into_it(store: Path) -> None:
    app = Workbench(store)
    async with app.run_test(size=(120, 40)):
        type_at_once(app, "slash", "o", "t", "t", "e", "r")
        await until(app, lambda: not app._early and isinstance(app.screen.focused, Input))
        field = app.screen.focused
        assert isinstance(field, Input)
        assert field.value == "otter"


async def test_a_key_that_leaves_does_not_wait_for_what_is_being_read(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WatchScreen, "ready", property(lambda _: False))
    app = Workbench(store, mode="watch")
    async with app.run_test(size=(120, 40)):
        type_at_once(app, "1")
        await until(app, lambda: not isinstance(app.screen, WatchScreen))


async def test_a_screen_that_never_gets_ready_delays_keys_for_a_limited_time(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WatchScreen, "ready", property(lambda _: False))
    monkeypatch.setattr(workbench, "EARLY_S", 0.0)
    app = Workbench(store, mode="watch")
    async with app.run_test(size=(120, 40)):
        type_at_once(app, "z")
        await until(app, lambda: app.screen.maximized is not None)
