"""A run of several attempts: what a feed shows of those before and of those in other processes."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_engine import events as ev
from grpo_engine.control import Control
from grpo_tui.app.feed.feed import Session
from grpo_tui.app.feed.narrator import narrate
from grpo_tui.app.feed.stored import LiveFeed, StoreFeed
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.screens.runs.screen import RunsScreen
from grpo_tui.experiments.db.texts import seconds as seconds_of
from grpo_tui.experiments.record.recorder import Recorder, resume_run
from grpo_tui.experiments.store import ExperimentStore
from tests import patience
from tests.app import frames
from tests.app.rest import until
from tests.app.script import evaluation, started
from tests.app.stored import record, run_events

STOPPED = 6
LOADED = ev.ModelLoaded(
    step=0, path="starter", parameters=1, trainable=1, dtype="float32", seconds=0.1
)


def stopped_run(store: Path) -> int:
    """Record a run that was stopped after six of nine steps, in which its reward rose."""
    events = [event for event in run_events(steps=9) if event.step <= STOPPED]
    return record(
        store,
        iter([*events, ev.RunFinished(step=STOPPED, reason="stopped", summary={})]),
        name="otter",
    )


def resumed(store: Path, total: int = 9) -> Recorder:
    recorder = resume_run(store, "otter", from_step=STOPPED)
    recorder.put(started(total, STOPPED))
    recorder.put(LOADED)
    recorder.flush()
    return recorder


def later(total: int = 9) -> Iterator[ev.Event]:
    return (event for event in run_events(steps=total) if event.step > STOPPED)


def pulled(session: Session, step: int, status: str) -> None:
    patience.until(
        lambda: (session.pull().step, session.pull().status) == (step, status),
        lambda: (session.pull().step, session.pull().status),
    )


def test_a_run_that_is_resumed_here_has_the_history_of_one_that_is_opened(tmp_path: Path) -> None:
    store = tmp_path / "grpo.db"
    stopped_run(store)
    recorder = resumed(store)
    here = Session(LiveFeed(recorder, Control()))
    for event in later():
        recorder.put(event)
    recorder.put(evaluation(9, 0.4, "after"))
    recorder.close()
    pulled(here, 9, "completed")
    opened = Session(StoreFeed(store, "otter"))
    pulled(opened, 9, "completed")
    shown, stored = here.pull(), opened.pull()
    assert [int(step) for step in shown.series["reward"].steps] == list(range(1, 10))
    assert shown.series == stored.series
    assert narrate(shown) == narrate(stored)
    assert [line.text for line in shown.log] == [line.text for line in stored.log]
    assert shown.signal == stored.signal
    for session in (here, opened):
        session.close()


def test_what_another_process_adds_to_a_run_of_this_one_is_shown(tmp_path: Path) -> None:
    store = tmp_path / "grpo.db"
    stopped_run(store)
    recorder = resumed(store, total=7)
    here = Session(LiveFeed(recorder, Control()))
    for event in later(7):
        recorder.put(event)
    recorder.close()
    pulled(here, 7, "completed")
    elsewhere = resume_run(store, "otter", from_step=7)
    elsewhere.put(started(9, 7))
    for event in later():
        if event.step > 7:
            elsewhere.put(event)
    elsewhere.close()
    pulled(here, 9, "completed")
    assert here.pull().head.total_steps == 9
    here.close()


async def test_a_run_that_another_process_renames_and_deletes_is_called_so_and_closed(
    tmp_path: Path,
) -> None:
    store = tmp_path / "grpo.db"
    run = stopped_run(store)
    app = Workbench(store, feed=StoreFeed(store, "otter"), mode="watch")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(app, lambda: "otter" in frames.frame(app)[0], app.frame_now)
        await pilot.press("4")
        await until(app, lambda: "otter  step 6" in frames.frame(app)[1], app.frame_now)
        with ExperimentStore(store) as elsewhere:
            elsewhere.rename(run, "badger")
            await until(app, lambda: "badger" in frames.frame(app)[0], app.frame_now)
            await until(app, lambda: "badger  step 6" in frames.frame(app)[1], app.frame_now)
            await pilot.press("3")
            elsewhere.delete([run])
        await until(app, lambda: "No run is open" in frames.text(app), app.frame_now)
        assert app.notices[-1].text == "badger was deleted."


async def test_ages_go_on_while_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_tui.app.tui.screens.runs.screen.POLL_S", 3600.0)
    store, now = tmp_path / "grpo.db", [0.0]
    stopped_run(store)
    app = Workbench(store, clock=lambda: now[0])
    async with app.run_test(size=(80, 24)):
        screen = app.screen
        assert isinstance(screen, RunsScreen)
        await until(app, lambda: screen.view.preview, app.frame_now)
        now[0] = seconds_of(screen.view.runs[0].created_at) + 90
        await until(app, lambda: re.search("90s|89s", frames.text(app)), app.frame_now)
        now[0] += 540
        await until(app, lambda: "10 min" in frames.text(app), app.frame_now)
