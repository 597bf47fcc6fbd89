"""A replay: its clock, its speed, and going to another step."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_engine import events as ev
from grpo_tui.app.feed.feed import Session
from grpo_tui.app.feed.replay import MARK, ReplayFeed, timed
from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.feed.stored import StoreFeed
from tests.app.stored import pinned_groups, record, run_events
from tests.patience import until

STEPS = 6


class Clock:
    """Seconds that pass only when they are told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay") / "runs.db"
    record(path, run_events(steps=STEPS, seed=1), name="otter")
    return path


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def session(store: Path, clock: Clock) -> Iterator[Session]:
    made = Session(ReplayFeed(store, "@last", clock=clock))
    yield made
    made.close()


def feed_of(session: Session) -> ReplayFeed:
    assert isinstance(session.feed, ReplayFeed)
    return session.feed


def settled(session: Session) -> Snapshot:
    """The snapshot once everything up to the moment has been read."""
    until(lambda: not session.feed.catching_up or not session.pull())
    return session.pull()


def played(session: Session, clock: Clock, step: int) -> Snapshot:
    """The snapshot at the end of a step that was reached at the recorded pace."""
    while settled(session).step < step:
        clock.now += 0.01
    return settled(session)


def facts_of(snapshot: Snapshot) -> tuple[object, ...]:
    return (snapshot.step, snapshot.series, snapshot.groups, snapshot.alerts)


def test_seeking_shows_what_playing_to_the_end_of_that_step_shows(
    session: Session, store: Path
) -> None:
    slow = Session(ReplayFeed(store, "@last", clock=(clock := Clock())))
    wanted = facts_of(played(slow, clock, 3))
    slow.close()
    feed_of(session).seek(3)
    assert facts_of(settled(session)) == wanted


@pytest.mark.parametrize(("to", "then"), [(5, 0), (3, STEPS)])
def test_a_replay_goes_back_and_forth(session: Session, to: int, then: int) -> None:
    for step in (to, then):
        feed_of(session).seek(step)
        assert settled(session).step == step


def test_the_last_snapshot_stays_until_the_sought_step_is_read(session: Session) -> None:
    feed_of(session).seek(4)
    before = settled(session)
    feed_of(session).seek(2)
    shown = []
    while feed_of(session).catching_up:
        shown.append(session.pull().step)
    assert set(shown) <= {before.step, 2}
    assert settled(session).step == 2


def test_a_held_replay_stays_held_at_the_step_it_went_to(session: Session, clock: Clock) -> None:
    session.ask("pause")
    feed_of(session).seek(3)
    assert settled(session).status == "paused"
    clock.now += 1000
    assert settled(session).step == 3
    session.ask("continue")
    clock.now += 1000
    assert played(session, clock, STEPS).step == STEPS  # read by and by


def test_twice_the_speed_takes_half_the_time_from_here_on(session: Session, clock: Clock) -> None:
    feed = feed_of(session)
    times = []
    played(session, clock, 1)
    for speed, step in ((1, 2), (2, 3)):  # steps of 2.1 to 2.3 s
        feed.play_at(speed)
        begun = clock.now
        played(session, clock, step)
        times.append(clock.now - begun)
        assert feed.mark == (MARK if speed == 1 else f"{MARK} ×2")
    assert times == [pytest.approx(2.2, abs=0.13), pytest.approx(1.1, abs=0.08)]


def test_only_groups_that_are_trained_on_are_sampled_in_a_step() -> None:
    rng = random.Random(1)
    asked = [ev.GroupScored(step=0, group=group) for group in pinned_groups(rng, 0)]
    facts = [*asked, *run_events(steps=1, prompts=3)]
    shown = [moment.event for moment in timed((0.0, fact) for fact in facts)]
    prompts = next(event for event in shown if isinstance(event, ev.PromptsStarted))
    assert [(one.group, one.origin) for one in prompts.prompts] == [
        (place, "train") for place in range(3)
    ]
    # the others still arrive, and before a board that is sampled shows them as its own
    assert all(shown.index(event) < shown.index(prompts) for event in asked)


def test_a_run_whose_end_nobody_reported_is_not_shown_as_training(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    record(path, (event for event in run_events(steps=2) if not isinstance(event, ev.RunFinished)))
    session = Session(StoreFeed(path, "@last"))
    until(lambda: session.pull().status == "aborted")
    session.close()
