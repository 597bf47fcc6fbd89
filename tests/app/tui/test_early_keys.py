"""Keys that are typed before the screen they are meant for is ready wait for it, in their order."""

import asyncio
import threading
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.widgets import Input

from grpo_tui.app.feed.stored import StoreFeed
from grpo_tui.app.tui import app as workbench
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.screens.rollouts.screen import RolloutsScreen
from grpo_tui.app.tui.screens.runs import dialogs as runs_dialogs
from grpo_tui.app.tui.screens.watch.screen import WatchScreen
from grpo_tui.experiments.reader import StoreReader
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


def held_up(monkeypatch: pytest.MonkeyPatch, owner: Any, method: str) -> threading.Event:
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


@pytest.mark.parametrize(
    ("keys", "reads", "dialog"),
    [
        (("ctrl+p", *"export"), (StoreReader, "runs"), "ActionPalette"),
        (("m", *"export"), (runs_dialogs, "column_items"), "Picker"),
    ],
    ids=["the palette", "a list that is read first"],
)
async def test_keys_typed_behind_one_that_opens_a_dialog_never_reach_the_screen_below(
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    keys: tuple[str, ...],
    reads: tuple[Any, str],
    dialog: str,
) -> None:
    """Also where that takes longer than a key waits; e would open the exports of Runs."""
    app = Workbench(store)
    async with app.run_test(size=(120, 40)):
        await until(app, lambda: getattr(app.screen, "ready", False))
        may_read = held_up(monkeypatch, *reads)
        monkeypatch.setattr(workbench, "EARLY_S", 0.0)
        type_at_once(app, *keys)
        await until(app, lambda: app._early or app.screen.is_modal)
        await asyncio.sleep(0.05)
        may_read.set()
        await until(app, lambda: not app._early and app.screen.is_modal)
        assert type(app.screen).__name__ == dialog
        await until(app, lambda: app.screen.query_one(Input).value == "export")


async def test_enter_typed_behind_a_question_waits_for_the_slowest_search(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a key behind it acts on what the choice leads to."""
    app = Workbench(store)
    async with app.run_test(size=(120, 40)):
        await until(app, lambda: getattr(app.screen, "ready", False))
        may_read = held_up(monkeypatch, StoreReader, "runs")
        type_at_once(app, "ctrl+p", *"which prompt fails", "enter", "slash", "o")
        await until(app, lambda: app._early and not getattr(app.screen, "ready", True))
        may_read.set()
        await until(app, lambda: isinstance(app.screen, RolloutsScreen) and not app._early)
        field = app.screen.focused
        assert isinstance(field, Input)
        assert field.value == "o"
