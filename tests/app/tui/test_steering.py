"""Keys that control a run: on Runs they act on the run under the cursor, in any process."""

import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.parse import build
from grpo_engine.control import Control
from grpo_engine.events import RunPaused
from grpo_tui.app.feed.stored import StoreFeed
from grpo_tui.app.jobs import queue_worker
from grpo_tui.app.jobs.launch import enqueue
from grpo_tui.app.text.numbers import with_unit
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.screens.run_keys import ControlledRun, ControlScreen
from grpo_tui.app.tui.screens.runs.screen import RunsScreen
from grpo_tui.app.tui.widgets.key_bar import KeyBar
from grpo_tui.experiments.queue import RunQueue
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import PARENT, start_run
from grpo_tui.experiments.store import ExperimentStore
from tests.app import frames
from tests.app.rest import until
from tests.app.script import CONFIG, Script, ScriptFeed, started
from tests.app.stored import record
from tests.patience import PATIENCE

OTHER = ControlledRun("", active=False, pausing=False)


@pytest.mark.slow
async def test_runs_steers_the_run_under_the_cursor_in_another_process(tmp_path: Path) -> None:
    store, control = tmp_path / "grpo.db", Control()
    # simulates the other process, which polls for requests to the run
    handle = start_run(store, build(CONFIG), name="far-away", control=control)
    handle.put(started())
    record(store, name="calm-otter")
    app = Workbench(store)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        screen = app.screen
        assert isinstance(screen, RunsScreen)
        await until(app, lambda: len(screen.view.runs) == 2)
        await pilot.press("up", "full_stop")  # the cursor begins on the live run
        await until(app, lambda: "calm-otter has ended" in frames.text(app))
        await pilot.press("down", "full_stop")
        await until(app, lambda: "Asked far-away to pause" in frames.text(app))
        await until(app, lambda: control.paused)
        await pilot.press("S")
        assert "Stop far-away?" in frames.text(app)
        await pilot.press("s")
        await until(app, lambda: control.stop_after_step)
        assert not control.stop_now
        await until(app, lambda: not any(w.is_running for w in app.workers if w.group == "steer"))
    handle.close()


@pytest.mark.slow
async def test_the_shown_run_is_not_steered_from_another_row(tmp_path: Path) -> None:
    store = tmp_path / "grpo.db"
    record(store, name="calm-otter")
    feed = ScriptFeed(Script(steps=3, progress=False).events(), name="on-screen")
    feed.run = 77
    app = Workbench(store, feed=feed)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        screen = app.screen
        assert isinstance(screen, RunsScreen)
        await until(app, lambda: len(screen.view.runs) == 1)
        await pilot.press("full_stop", "w")
        await until(app, lambda: "calm-otter has ended" in frames.text(app))
        assert feed.asked == []


async def test_the_key_bar_says_go_on_while_the_run_holds(tmp_path: Path) -> None:
    feed = ScriptFeed(Script(steps=3, progress=False).events())
    app = Workbench(tmp_path / "none.db", feed=feed, mode="watch")
    async with app.run_test(size=(120, 40)) as pilot:
        app.frame_now()
        await pilot.pause()
        assert ". pause run" in frames.text(app)
        await pilot.press("full_stop")
        assert feed.asked == ["pause"]
        assert ". continue" in frames.text(app)
        assert "pause" not in app.screen.query_one(KeyBar).renamed.values()
        await pilot.press("full_stop")
        assert feed.asked == ["pause", "continue"]
        assert ". pause run" in frames.text(app)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["watch", "runs"])
async def test_a_read_only_view_offers_no_key_that_controls_a_run(
    mode: str, tmp_path: Path
) -> None:
    store = tmp_path / "grpo.db"
    handle = start_run(store, build(CONFIG), name="far-away")
    handle.put(started())
    assert handle.flush(PATIENCE)
    for read_only in (True, False):
        feed = StoreFeed(store, "far-away", may_control=not read_only)
        assert feed.caught_up.wait(PATIENCE)
        app = Workbench(store, feed=feed, mode=mode, read_only=read_only)
        async with app.run_test(size=(120, 40), notifications=True) as pilot:
            screen = app.screen
            assert isinstance(screen, ControlScreen)
            await until(app, partial(lambda one: (one.controlled_run() or OTHER).active, screen))
            await pilot.press("S")
            told = "This view is read-only." if read_only else "after this step"
            await until(app, partial(lambda app, told: told in frames.text(app), app, told))
            assert (app.screen is screen) == read_only
            offered = ("pause run" in frames.text(app), "w checkpoint" in frames.text(app))
            assert not read_only or offered == (False, False)
            assert read_only or "stop" in frames.text(app)
    handle.close()


@pytest.mark.parametrize("verb", ["pause", "continue", "checkpoint", "stop_after_step", "stop_now"])
async def test_what_was_asked_is_on_screen_before_the_engine_answers(
    verb: Any, tmp_path: Path
) -> None:
    feed = ScriptFeed(Script(steps=3, progress=False).events())
    app = Workbench(tmp_path / "none.db", feed=feed, mode="watch")
    async with app.run_test(size=(120, 40)) as pilot:
        app.frame_now()
        if verb == "continue":
            assert app.session is not None
            app.session.state.apply(RunPaused(step=1))
        before = frames.text(app)
        app.control(verb)  # no timer and no other thread: the next frame shows it
        await pilot.pause()
        words = {
            "continue": "Continuing.",
            "pause": "Pausing at the next token",
            "checkpoint": "Saving a checkpoint",
            "stop_after_step": "Stopping after step",
            "stop_now": "Stopping now; step",
        }[verb]
        assert words not in before
        assert words in frames.text(app)


@pytest.mark.slow
def test_a_clone_in_the_queue_keeps_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "grpo.db"
    record(store, name="calm-otter")
    reader = StoreReader(store)
    parent = reader.resolve("calm-otter").id
    monkeypatch.setattr("grpo_tui.app.trial.ready.require_apart", lambda _configs, **_: ())
    assert enqueue(build({**CONFIG, "name": "otter-two", "seed": 4}), store, parent) == "otter-two"
    seen: dict[str, str] = {}

    class Process:
        """Simulates the training process: it starts the run and ends."""

        def __init__(self, _words: list[str], env: dict[str, str], **_: Any) -> None:
            seen.update(env)

        def wait(self, timeout: float = 0.0) -> int:  # noqa: ARG002 - Popen takes it
            for name in (PARENT, "GRPO_TUI_QUEUE_ITEM"):
                monkeypatch.setenv(name, seen[name])
            record(store, name="otter-two", seed=4)
            return 0

    monkeypatch.setattr(subprocess, "Popen", Process)
    opened = ExperimentStore(store)
    assert queue_worker.work(RunQueue(opened)) == 0
    opened.close()
    assert seen[PARENT] == parent
    assert reader.resolve("otter-two").parent == parent
    reader.close()


def test_little_memory_is_told_in_megabytes() -> None:
    assert with_unit(8.2e-4, "GB") == ".82 MB"
    assert with_unit(0.051, "GB") == "51 MB"
    assert with_unit(1.9, "GB") == "1.9 GB"
