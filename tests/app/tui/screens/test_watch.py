"""Watch on the scripted run: its contents at every size and in every theme."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.pilot import Pilot

from app.feed.replay import ReplayFeed
from app.feed.stored import StoreFeed
from app.tui.app import Workbench
from app.tui.looks.colours import PALETTES
from app.tui.preferences import Preferences
from app.tui.screens.watch import WatchScreen
from app.tui.widgets.charts.curves import Curves
from app.tui.widgets.groups import Groups, why_line
from app.tui.widgets.lanes import Lanes
from experiments.reader import StoreReader
from grpo_engine import events as ev
from tests.app import frames
from tests.app.frames import LOOKS, SIZES
from tests.app.rest import until
from tests.app.script import (
    FIRST_WALL_TIME,
    Script,
    ScriptFeed,
    hostile_group,
    scored,
    started,
)
from tests.app.stored import record, run_events
from tests.patience import PATIENCE

SHORT = Script(steps=24, total_steps=60)


def workbench(events: object, tmp_path: Path, theme: str = "dark", **more: object) -> Workbench:
    """The app on Watch with a scripted feed, no store and a fixed clock."""
    preferences = Preferences()
    preferences.remember(theme=theme)
    feed = ScriptFeed(events, at=FIRST_WALL_TIME)  # type: ignore[arg-type]
    return Workbench(tmp_path / "none.db", feed=feed, mode="watch", preferences=preferences,
                     clock=lambda: FIRST_WALL_TIME, **more)  # type: ignore[arg-type]  # fmt: skip


async def settle(pilot: Pilot[int], app: Workbench) -> None:
    """Wait until the screen is shown, and draw one frame."""
    await pilot.pause()
    app.frame_now()
    await pilot.pause()


@pytest.mark.parametrize(("size", "theme"), LOOKS)
async def test_frames_are_whole_at_every_size_and_theme(
    size: tuple[int, int], theme: str, tmp_path: Path
) -> None:
    app = workbench(SHORT.sampling(), tmp_path, theme)
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app)
        frames.check(app)
        text = frames.text(app)
        assert "Sampling 64 answers to 8 prompts" in text
        assert "step 25/60" in text or "25/60" in text
        assert "answers to prompt 1" in text


@pytest.mark.parametrize("size", SIZES)
async def test_hostile_text_reaches_no_terminal(size: tuple[int, int], tmp_path: Path) -> None:
    app = workbench([started(), *SHORT.events(), hostile_group(25)], tmp_path)
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app)
        frames.check(app)
        for key in ("tab", "z", "z", "tab", "z", "question_mark"):
            await pilot.press(key)
            frames.check(app)


def evaluated(step: int, first: int) -> Iterator[ev.Event]:
    """Held-out problems from number `first` on, one answer each, on the board and scored."""
    prompts = [
        ev.PromptStarted(group=first + i, origin="eval", prompt_text="p", target="", rows=1)
        for i in range(3)
    ]
    yield ev.PhaseStarted(step=step, phase="evaluate", total=3)
    yield ev.PromptsStarted(step=step, prompts=tuple(prompts))
    for index in range(first, first + 3):
        group = scored(step, index, (1, 2), [("3", True, False)]).group
        yield ev.GroupScored(step=step, group=replace(group, origin="eval"))


@pytest.mark.parametrize("size", SIZES)
async def test_when_a_run_ends_its_last_groups_and_phase_times_stay(
    size: tuple[int, int], tmp_path: Path
) -> None:
    done = ev.RunFinished(step=24, reason="completed", summary={})
    app = workbench([*SHORT.events(), *evaluated(24, 512), done], tmp_path)
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app)
        frames.check(app)
        text = frames.text(app)
        assert "answers to prompt 1" in text
        assert "a–h" in text
        assert "completed" in text
        # the times of the last step
        assert "generate 1.2s  score .1s" in text


async def test_a_held_out_problem_beyond_ninety_nine_shows_its_mean(tmp_path: Path) -> None:
    app = workbench([*SHORT.events(), *evaluated(24, 512)], tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app)
        (line,) = [line for line in frames.text(app).splitlines() if "513▸" in line]
        # one right answer with its form: 1 + 0.1
        assert line.rstrip(" │").endswith("1.1")


@given(
    width=st.integers(16, 60),
    right=st.sampled_from(["all wrong", "all right"]),
    score=st.floats(-100, 100, allow_nan=False).map(lambda value: f"{value:g}"),
)
def test_a_group_that_is_all_wrong_and_scored_is_never_called_wrong_alone(
    width: int, right: str, score: str
) -> None:
    ((text, _),) = why_line(f"{right}, all scored {score}", width, PALETTES["dark"])
    assert len(text) <= width
    assert "all scored" in text


async def test_arrows_choose_the_prompt_that_the_answers_belong_to(tmp_path: Path) -> None:
    app = workbench(SHORT.events(), tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app)
        await pilot.press("n", "n")
        assert "answers to prompt 3" in frames.text(app)
        await pilot.press("p")
        assert "answers to prompt 2" in frames.text(app)


async def test_pause_shows_at_once_and_goes_to_the_engine(tmp_path: Path) -> None:
    app = workbench(SHORT.sampling(), tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app)
        await pilot.press("full_stop")
        assert "Pausing at" in frames.text(app)
        assert app.session is not None
        assert app.session.feed.asked == ["pause"]  # type: ignore[attr-defined]


async def test_a_frozen_view_holds_while_the_run_goes_on(tmp_path: Path) -> None:
    feed = ScriptFeed(SHORT.events(), at=FIRST_WALL_TIME, slice_size=60)
    app = Workbench(tmp_path / "none.db", feed=feed, mode="watch", clock=lambda: FIRST_WALL_TIME)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app)
        await pilot.press("f")
        before = app.screen.query_one(Curves).snapshot
        for _ in range(4):
            app.frame_now()
        assert app.screen.query_one(Curves).snapshot is before
        assert "frozen" in frames.text(app)
        await pilot.press("f")
        assert app.screen.query_one(Curves).snapshot is not before


async def test_zoom_gives_a_panel_the_screen_and_gives_it_back(tmp_path: Path) -> None:
    app = workbench(SHORT.events(), tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app)
        app.screen.query_one(Lanes).focus()
        await pilot.press("z")
        frames.check(app)
        assert app.screen.query_one(Lanes).size.width >= 118
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen.query_one(Lanes).size.width < 80


async def test_a_replay_has_keys_for_speed_and_position_and_none_that_do_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.db"
    record(path, run_events(steps=4), name="otter")
    feed = ReplayFeed(path, "otter", clock=lambda: 0.0)
    app = Workbench(path, feed=feed, mode="watch")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app)

        async def at(step: int) -> None:
            await until(app, lambda: app.screen.snapshot.step == step)  # type: ignore[attr-defined]

        await pilot.press("greater_than_sign", "greater_than_sign")
        await at(2)
        await pilot.press("right_curly_bracket")
        await at(4)
        await pilot.press("less_than_sign")
        await at(3)
        await pilot.press("right_square_bracket", "right_square_bracket")
        assert feed.speed == 4
        await settle(pilot, app)
        assert "×4" in frames.text(app)
        keys = {active.binding.id for active in app.screen.active_bindings.values()}
        assert {"watch.back", "watch.faster", "run.pause"} <= keys
        assert not {"run.stop", "run.checkpoint"} & keys


async def test_a_run_that_is_not_replayed_has_no_keys_of_a_replay(tmp_path: Path) -> None:
    app = workbench(SHORT.events(), tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app)
        keys = {active.binding.id for active in app.screen.active_bindings.values()}
        assert "watch.faster" not in keys
        assert {"run.stop", "run.checkpoint"} <= keys


async def test_earlier_steps_are_looked_at_while_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    record(path, run_events(steps=6), name="otter")
    reader = StoreReader(path)
    prompts = {step: reader.groups(1, step, "train")[0].prompt_text for step in range(1, 7)}
    reader.close()
    feed = ScriptFeed(run_events(steps=9), name="otter", slice_size=1)
    app = Workbench(path, feed=feed, mode="watch")
    async with app.run_test(size=(120, 40)) as pilot:
        screen = app.screen
        assert isinstance(screen, WatchScreen)
        await until(app, lambda: screen.snapshot.step == 5, app.frame_now)
        lanes, groups = screen.query_one(Lanes), screen.query_one("#groups", Groups)

        async def back_at(step: int) -> None:
            await until(app, lambda: screen.past is not None and screen.past.step == step)
            assert lanes.snapshot.groups[0].prompt_text == prompts[step]
            assert groups.snapshot.groups_step == step
            assert f"Step {step}, seen from step" in frames.text(app)
            frames.check(app)

        await pilot.press("less_than_sign")
        await back_at(5)
        await pilot.press("less_than_sign")
        await back_at(4)
        await pilot.press("left_curly_bracket")
        await back_at(1)
        await until(app, lambda: screen.snapshot.step == 7, app.frame_now)  # it goes on meanwhile
        assert screen.query_one(Curves).snapshot.step == 7
        await back_at(1)
        await pilot.press("greater_than_sign")
        await back_at(2)
        await pilot.press("end")
        assert lanes.snapshot.groups_step >= 7
        assert "seen from" not in frames.text(app)


async def test_an_answer_of_an_earlier_step_opens_on_rollouts(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    record(path, run_events(steps=6), name="otter")
    feed = StoreFeed(path, "otter")
    assert feed.caught_up.wait(PATIENCE)
    app = Workbench(path, feed=feed, mode="watch")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(app, lambda: app.screen.snapshot.step == 6)  # type: ignore[attr-defined]
        app.screen.query_one(Lanes).focus()
        await pilot.press("less_than_sign", "less_than_sign")
        await until(app, lambda: getattr(app.screen.past, "step", 0) == 5)  # type: ignore[attr-defined]
        await pilot.press("enter")
        await until(app, lambda: "step 5 " in frames.text(app) and "4 Rollouts" in frames.text(app))
