"""Real runs of a tiny model inside the workbench, and the same run through every feed."""

import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from grpo_engine import events as ev
from grpo_engine.config.parse import build
from grpo_tui.app.feed import stored as stored_feed
from grpo_tui.app.feed.feed import Session
from grpo_tui.app.feed.narrator import narrate
from grpo_tui.app.feed.replay import ReplayFeed
from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.feed.stored import StoreFeed
from grpo_tui.app.jobs import start
from grpo_tui.app.trial import ready
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.messages import LaunchRequested, ResumeRequested
from tests import patience
from tests.app import frames
from tests.app.rest import until
from tests.app.stored import record, run_events
from tests.engine.runs import settings


def shown(app: Workbench) -> Snapshot:
    assert app.session is not None
    return app.session.state.snapshot()


def exact(snapshot: Snapshot) -> list[ev.Group]:
    """The shown groups without log-probabilities, which the store rounds."""
    groups = [group for group in snapshot.groups if isinstance(group, ev.Group)]
    assert len(groups) == len(snapshot.groups)
    return [
        replace(group, rollouts=tuple(replace(one, sampler_logprobs=()) for one in group.rollouts))
        for group in groups
    ]


def settled(session: Session) -> Snapshot:
    """Pull from a feed until its run has ended."""
    patience.until(lambda: session.pull().status == "completed", session.pull)
    return session.pull()


@pytest.mark.slow
async def test_a_run_inside_the_app_is_recorded_shown_and_read_back_the_same(
    world: Path, tmp_path: Path
) -> None:
    store = tmp_path / "grpo.db"
    app = Workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        app.post_message(LaunchRequested(settings(world, name="quick-hare")))
        await until(app, lambda: app.live is not None)
        await until(app, lambda: not app.bridge.running and app.live is None)
        await pilot.pause()
        live = shown(app)
        assert live.status == "completed"
        assert live.step == 4
        assert "run is complete after 4 steps" in frames.text(app)
        frames.check(app)
    assert app.bridge.wait(patience.PATIENCE)

    stored = settled(Session(StoreFeed(store, "quick-hare")))
    replayed = settled(Session(ReplayFeed(store, "quick-hare", speed=1000.0)))
    for other in (stored, replayed):
        assert other.metrics == live.metrics
        assert exact(other) == exact(live)
        assert other.series.keys() == live.series.keys()
        assert other.series["reward"] == live.series["reward"]
        assert [line.text for line in other.log] == [line.text for line in live.log]


def test_a_run_that_has_ended_is_not_shown_as_running_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "grpo.db", run_events(steps=4))
    monkeypatch.setattr(stored_feed, "SLICE", 3)
    session, seen = Session(StoreFeed(tmp_path / "grpo.db", "@last")), set()

    def pulled() -> bool:
        snapshot = session.pull()
        seen.add((snapshot.status, snapshot.step))
        return snapshot.status == "completed"

    patience.until(pulled)
    session.close()
    assert seen == {("loading", 0), ("completed", 4)}


@pytest.mark.parametrize("saved", [(), (2,)])
def test_a_lost_run_is_resumed_from_its_checkpoint_or_begins_again(
    saved: tuple[int, ...], tmp_path: Path
) -> None:
    store, name = tmp_path / "grpo.db", "checkpoints/step-000002"
    checkpoints = [
        ev.CheckpointSaved(step=step, path=f"/moved/runs/r/{name}", best=False, seconds=0.1)
        for step in saved
    ]
    events = (one for one in run_events(steps=4) if not isinstance(one, ev.RunFinished))
    record(store, chain(events, checkpoints), name="otter")
    (run,) = (tmp_path / "runs").iterdir()
    (run / name).mkdir(parents=True)
    with closing(sqlite3.connect(store)) as conn, conn:
        conn.execute("UPDATE run SET status = 'running'")
        conn.execute("UPDATE attempt SET ended_at = NULL, pid_start = 'gone'")
    session = Session(StoreFeed(store, "otter"))
    patience.until(lambda: session.pull().status == "lost")
    sentence = narrate(session.pull())[0]
    session.close()
    assert "gone after 4 steps" in sentence
    assert ("from step 2" in sentence, "begins it again" in sentence) == (bool(saved), not saved)


async def test_a_run_is_told_of_while_its_settings_are_checked_and_then_on_watch(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    require = ready.require
    monkeypatch.setattr(start, "require", lambda config: (go.wait(), require(config)))
    app = Workbench(tmp_path / "grpo.db")
    async with app.run_test(size=(120, 40)) as pilot:
        app.post_message(LaunchRequested(settings(world, name="quick-hare", steps=1)))
        await pilot.pause()
        await until(app, lambda: "starting checks its settings" in frames.text(app))
        assert app.live is None
        frames.check(app)
        go.set()
        await until(app, lambda: "run is complete after 1 step" in frames.text(app))
    assert app.bridge.wait(patience.PATIENCE)


async def test_settings_that_the_form_has_tried_are_not_tried_again(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(_config: object) -> None:
        raise AssertionError("they were tried")

    monkeypatch.setattr(start, "require", never)
    app = Workbench(tmp_path / "grpo.db")
    async with app.run_test(size=(120, 40)):
        config = settings(world, name="quick-hare", steps=1)
        app.post_message(LaunchRequested(config, tried=True))
        await until(app, lambda: "run is complete after 1 step" in frames.text(app))
    assert app.bridge.wait(patience.PATIENCE)


@pytest.mark.slow
async def test_an_engine_that_fails_shows_why_and_what_to_do(world: Path, tmp_path: Path) -> None:
    app = Workbench(tmp_path / "grpo.db")
    # the check before the run tries it on two answers
    (tmp_path / "bad.py").write_text(
        "def bad(completions, **_):\n    return [1 / (len(completions) < 3)] * len(completions)\n"
    )
    broken = settings(world, rewards={"functions": [f"{tmp_path}/bad.py:bad"]})
    async with app.run_test(size=(120, 40)) as pilot:
        app.post_message(LaunchRequested(broken))
        await until(app, lambda: "the run failed" in frames.text(app))
        frames.check(app)
        assert "ZeroDivisionError" in frames.text(app)
        assert "last checkpoint" in frames.text(app)
        await pilot.press("escape")
        assert shown(app).status == "failed"
    assert app.bridge.wait(patience.PATIENCE)


@pytest.mark.slow
async def test_dialogues_of_the_starter_are_shown_recorded_and_read_back_the_same(
    tmp_path: Path,
) -> None:
    """The real task `guess`, with little to say, so that limits end most dialogues."""
    config = build(
        {
            "name": "calm-hare",
            "steps": 2,
            "model": {"path": "starter"},
            "task": {"name": "guess"},
            "rollout": {"prompts": 2, "group_size": 3, "max_new_tokens": 40},
            "evaluation": {"every": 0, "problems": 2, "pinned": 0},
        }
    )
    store = tmp_path / "grpo.db"
    boards = []
    app = Workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        app.post_message(LaunchRequested(config))

        def ended() -> bool:
            boards.append(shown(app).board)
            return not app.bridge.running and app.live is None

        await until(app, lambda: app.live is not None)
        await until(app, ended)
        live = shown(app)
        assert live.status == "completed"
        await pilot.press("4")
        await until(app, lambda: "turn 1 of" in frames.text(app))
        frames.check(app)
    assert app.bridge.wait(patience.PATIENCE)
    rollouts = [one for group in live.groups for one in group.rollouts]
    assert any(span.kind == "environment" for one in rollouts for span in one.spans)
    on_board = [one for board in boards for group in board.groups for one in group.rollouts]
    assert any(one.spans for one in on_board)
    assert all(span.reward is None and not span.info for one in on_board for span in one.spans)
    for feed in (StoreFeed(store, "calm-hare"), ReplayFeed(store, "calm-hare", speed=1000.0)):
        assert exact(settled(Session(feed))) == exact(live)


@pytest.mark.slow
async def test_pause_stop_and_resume_reach_the_engine(world: Path, tmp_path: Path) -> None:
    store = tmp_path / "grpo.db"
    app = Workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        app.post_message(LaunchRequested(settings(world, name="slow-hare", steps=400)))
        await until(app, lambda: app.live is not None and shown(app).step >= 1)
        await pilot.press("full_stop")
        await until(app, lambda: shown(app).status == "paused")
        assert "paused" in frames.text(app)
        await pilot.press("full_stop")
        await until(app, lambda: shown(app).status == "running")
        await pilot.press("S")
        await pilot.press("s")
        await until(app, lambda: not app.bridge.running and app.live is None)
        step = shown(app).step
        assert shown(app).status == "stopped"
        app.post_message(ResumeRequested("slow-hare"))
        await until(app, lambda: app.live is not None and shown(app).step > step)
        await pilot.press("ctrl+c")
        assert "trains in this process" in frames.text(app)
        await pilot.press("s")
        await until(app, lambda: not app.is_running)
    assert app.bridge.wait(patience.PATIENCE)
    assert not app.bridge.running
