"""Watch on the scripted run: its contents at every size and in every theme."""

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.pilot import Pilot

from grpo_engine import events as ev
from grpo_tui.app.feed.narrator import narrate
from grpo_tui.app.feed.replay import ReplayFeed
from grpo_tui.app.feed.snapshot import LogLine, Snapshot, Status
from grpo_tui.app.feed.stored import StoreFeed
from grpo_tui.app.text.comparison import phase_times
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.preferences import Preferences
from grpo_tui.app.tui.screens.rollouts.screen import RolloutsScreen
from grpo_tui.app.tui.screens.watch.panels import AlertsLog, CompletionsPanel, Curves, Groups
from grpo_tui.app.tui.screens.watch.render import (
    reason_line,
    signal_line,
)
from grpo_tui.app.tui.screens.watch.screen import WatchScreen
from grpo_tui.app.tui.screens.watch.state import counted, spent_in
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.values import AlertView
from tests.app import frames
from tests.app.frames import SIZES
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


def workbench(events: object, tmp_path: Path, theme: str = "dark", **more: Any) -> Workbench:
    """The app on Watch with a scripted feed, no store and a fixed clock."""
    preferences = Preferences()
    preferences.remember(theme=theme)
    feed = ScriptFeed(events, at=FIRST_WALL_TIME)  # type: ignore[arg-type]
    return Workbench(
        tmp_path / "none.db",
        feed=feed,
        mode="watch",
        preferences=preferences,
        clock=lambda: FIRST_WALL_TIME,
        **more,
    )


async def settle(pilot: Pilot[int], app: Workbench) -> None:
    """Wait until the screen is shown, and draw one frame."""
    await pilot.pause()
    app.frame_now()
    await pilot.pause()


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


async def test_when_a_run_ends_its_last_groups_and_phase_times_stay(tmp_path: Path) -> None:
    done = ev.RunFinished(step=24, reason="completed", summary={})
    app = workbench([*SHORT.events(), *evaluated(24, 512), done], tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app)
        frames.check(app)
        text = frames.text(app)
        assert "answers to prompt 1" in text
        assert "completed" in text
        # 2.1 to 2.3 s less 1.2, .1, .2 and .6 are in no phase
        assert re.search(r"generate 1\.2s .*update \.6s  other \.[012]s", text)


async def test_the_phase_times_of_an_ended_run_are_the_means_of_its_report(tmp_path: Path) -> None:
    """Slow for three steps and then fast: a smoothed time would forget the first ones."""
    seconds = [9.0, 9.0, 9.0, *[1.0] * 21]

    def timed(event: ev.Event) -> ev.Event:
        if not isinstance(event, ev.StepFinished):
            return event
        took = {"time/generate": seconds[event.step - 1], "step_time": seconds[event.step - 1] + 1}
        return replace(event, metrics={**event.metrics, **took})

    done = ev.RunFinished(step=24, reason="completed", summary={})
    events = [*map(timed, SHORT.events()), done]
    app = workbench(events, tmp_path)
    record(tmp_path / "grpo.db", iter(events))
    with closing(StoreReader(tmp_path / "grpo.db")) as reader:
        means = phase_times([reader.run(1).summary])
    assert means["generate"] == pytest.approx(2.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app)
        assert app.session is not None
        snapshot = app.session.state.snapshot()
        assert spent_in(snapshot) == pytest.approx(means)
        assert snapshot.step_seconds == pytest.approx(3.0)
        assert "mean step  generate 2.0s" in frames.text(app)
        assert "3 s/step" in frames.text(app)


@given(
    width=st.integers(16, 60),
    right=st.sampled_from(["all wrong", "all right"]),
    score=st.floats(-100, 100, allow_nan=False).map(lambda value: f"{value:g}"),
)
def test_a_group_that_is_all_wrong_and_scored_is_never_called_wrong_alone(
    width: int, right: str, score: str
) -> None:
    ((text, _),) = reason_line(f"{right}, all scored {score}", width)
    assert len(text) <= width
    assert "all scored" in text


def rows_of(app: Workbench, which: str) -> list[str]:
    """The lines of a panel, its title first."""
    region = app.screen.query_one(which).region
    lines = frames.frame(app)[region.y : region.bottom]
    return [line[region.x : region.right] for line in lines]


async def test_the_groups_scored_last_can_be_read_while_the_next_step_is_sampled(
    tmp_path: Path,
) -> None:
    events = [*SHORT.sampling()]
    app = workbench(events, tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app)
        last = [e.group for e in events if isinstance(e, ev.GroupScored) and e.step == 24]
        groups, answers = app.screen.query_one(Groups), app.screen.query_one(CompletionsPanel)
        assert groups.snapshot.groups == tuple(last)
        assert "step 24" in rows_of(app, "#groups")[0]
        assert "step 25" in rows_of(app, "#answers")[0]
        assert "▸" not in "".join(rows_of(app, "#groups"))  # none of them is on screen
        # with the focus on the groups, the answers are theirs
        groups.focus()
        await settle(pilot, app)
        assert answers.group == last[0]
        assert "1▸" in "".join(rows_of(app, "#groups")).replace(" ", "")
        assert "step 24" in rows_of(app, "#answers")[0]
        frames.check(app)
        app.screen.query_one(Curves).focus()
        await settle(pilot, app)
        assert "step 25" in rows_of(app, "#answers")[0]


async def test_the_new_groups_show_as_soon_as_one_has_scores(tmp_path: Path) -> None:
    events = [*SHORT.sampling()]
    first = next(e for e in reversed(events) if isinstance(e, ev.PromptsStarted)).prompts[0]
    numbers = tuple(int(part) for part in re.findall(r"\d+", first.prompt_text))
    group = scored(25, 0, numbers, [("x", True, False), ("y", False, False)] * 4)  # type: ignore[arg-type]
    app = workbench([*events, group], tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app)
        rows = rows_of(app, "#groups")
        assert "step 25" in rows[0]
        assert "▲ ▼ ▲ ▼ ▲ ▼ ▲ ▼" in rows[2]
        assert "·" in "".join(rows[3:])


@pytest.mark.parametrize(
    ("status", "note"),
    [
        ("running", "no alerts"),
        ("failed", "run failed"),
        ("lost", "run lost"),
        ("completed", "no alerts"),
    ],
)
def test_a_run_that_failed_is_not_called_quiet(status: Status, note: str) -> None:
    assert counted(Snapshot(status=status)) == note


async def test_the_marked_line_of_the_log_is_read_whole_and_the_sentence_without_a_traceback(
    tmp_path: Path,
) -> None:
    message = "reward shape on completion 0: " + "it is no number, " * 6 + "see the end"
    failed = ev.RunFailed(step=24, error="RewardError", message=f"{message}\nTraceback (most …")
    app = workbench([*SHORT.events(), failed], tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        assert "Traceback" not in narrate(app.screen.snapshot)[0]  # type: ignore[attr-defined]
        app.screen.query_one(AlertsLog).focus()
        await pilot.press("z")
        await settle(pilot, app)
        assert "see the end" in frames.text(app)
        frames.check(app)


async def test_an_alert_is_counted_at_the_top_and_told_in_full(tmp_path: Path) -> None:
    remedy = "Raise rollout.max_new_tokens, or reward shorter answers. " * 2
    alert = ev.AlertRaised(
        step=24,
        rule="most_truncated",
        severity="warning",
        remedy=remedy,
        explanation="61% of the answers were cut. " * 3,
    )
    app = workbench([*SHORT.events(), alert], tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app)
        top, _, sentence, more = frames.frame(app)[:4]
        assert "▲1  step 24/60" in top
        assert "▲ Last 10 steps: " in sentence + more
        log = rows_of(app, "#alerts")[1:-1]
        words = " ".join("".join(line[12:-1] for line in log[:3]).split())
        assert words.startswith("61% of the answers were cut. 61% of")
        assert "open ▲" in log[0]  # in place of a time, for newer lines of the log are below
        assert words.endswith("or reward shorter answers.")
        assert "alert at step 8, closed: 5 of 8 prompts" in log[3]
        panel = app.screen.query_one("#alerts")
        panel.focus()
        await pilot.press("down", "down", "down")
        assert "▌" in "".join(rows_of(app, "#alerts"))
        await pilot.click(panel, offset=(20, 1))
        frames.check(app)
    past = replace(alert, step=4, explanation="Reward rose, " * 12 + "by form.")
    app = workbench([*SHORT.events(), replace(past, step=3), past], tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app)
        panel = app.screen.query_one("#alerts", AlertsLog)
        assert panel.note.startswith("no alerts")
        panel.focus()
        place = next(
            n
            for n, one in enumerate(panel.entries)
            if isinstance(one, AlertView) and one.rule == alert.rule
        )
        below = panel.entries[place + 1]
        assert isinstance(below, LogLine)
        assert below.step <= 4
        panel.cursor = place
        await settle(pilot, app)
        words = " ".join(" ".join(row[2:-2] for row in rows_of(app, "#alerts")).split())
        assert "alert in steps 3 to 4, closed: Reward rose, " in words
        assert "by form." in words


@pytest.mark.parametrize("added", [(), ("completions/max_length",)])
async def test_down_reaches_every_row_of_a_grid_of_charts(
    added: tuple[str, ...], tmp_path: Path
) -> None:
    app = workbench(SHORT.events(), tmp_path)
    async with app.run_test(size=(200, 60)) as pilot:
        await settle(pilot, app)
        curves = app.screen.query_one(Curves)
        curves.focus()
        curves.added = added
        await settle(pilot, app)
        assert curves.columns(curves.count()) == 2
        seen: list[int] = []
        while curves.selected not in seen:
            seen.append(curves.selected)
            await pilot.press("down")
        count = curves.count()
        assert all({i, i + 1} & set(seen) for i in range(0, count, 2))


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

        await until(app, lambda: ". pause  " in frames.frame(app)[-1])
        await pilot.press("greater_than_sign", "greater_than_sign")
        await at(2)
        await pilot.press("right_curly_bracket")
        await at(4)
        await pilot.press("less_than_sign")
        await at(3)
        await pilot.press("equals_sign", "equals_sign")
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


@pytest.mark.slow
async def test_earlier_steps_are_looked_at_while_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    record(path, run_events(steps=6), name="otter")
    reader = StoreReader(path)
    prompts = {
        step: reader.groups(1, step=step, origin="train")[0].prompt_text for step in range(1, 7)
    }
    reader.close()
    feed = ScriptFeed(run_events(steps=9), name="otter", slice_size=1)
    app = Workbench(path, feed=feed, mode="watch")
    async with app.run_test(size=(120, 40)) as pilot:
        screen = app.screen
        assert isinstance(screen, WatchScreen)
        await until(app, lambda: screen.snapshot.groups_step == 6, app.frame_now)
        lanes, groups = screen.query_one(CompletionsPanel), screen.query_one("#groups", Groups)

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
        await pilot.press("at", "5", "enter")
        await back_at(5)
        await pilot.press("at", "x", "enter")
        assert app.notices[-1].text == "“x” is not such a number."
        await pilot.press("escape")
        assert lanes.snapshot.groups_step >= 7
        assert "seen from" not in frames.text(app)


def test_the_signal_of_a_step_without_scores_is_not_that_of_the_step_before() -> None:
    def line(snapshot: Snapshot) -> str:
        return "".join(text for text, _ in signal_line(snapshot, 40)).rstrip()

    history = ((3, 0.75), (4, 0.5))
    assert line(Snapshot(signal=history, groups_step=5)).endswith(" –")
    assert line(Snapshot(signal=history, groups_step=4)).endswith(" 50%")


async def test_steps_back_add_up_while_one_is_being_read(tmp_path: Path) -> None:
    app = watched(tmp_path, steps=6)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = app.screen
        assert isinstance(screen, WatchScreen)
        await until(app, lambda: screen.snapshot.step == 6)
        for _ in range(4):
            screen.action_step(-1)
        await until(app, lambda: screen.past is not None)
        assert screen.past is not None
        assert screen.past.step == 2
        assert screen.query_one(Groups).snapshot.signal == screen.past.signal  # of its own step
        screen.action_step(-1)
        await pilot.press("escape")
        await settle(pilot, app)
        assert screen.past is None


def watched(tmp_path: Path, steps: int) -> Workbench:
    """The workbench on Watch, on a run that has ended."""
    path = tmp_path / "runs.db"
    record(path, run_events(steps=steps), name="otter")
    feed = StoreFeed(path, "otter")
    assert feed.caught_up.wait(PATIENCE)
    return Workbench(path, feed=feed, mode="watch")


async def test_an_answer_of_an_earlier_step_opens_on_rollouts(tmp_path: Path) -> None:
    app = watched(tmp_path, steps=6)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(app, lambda: app.screen.snapshot.step == 6)  # type: ignore[attr-defined]
        app.screen.query_one(CompletionsPanel).focus()
        await pilot.press("less_than_sign")
        await until(app, lambda: getattr(app.screen.past, "step", 0) == 5)  # type: ignore[attr-defined]
        await pilot.press("enter")
        await until(app, lambda: "step 5 " in frames.text(app) and "4 Rollouts" in frames.text(app))
        await until(app, lambda: "answer" in frames.text(app))
        await pilot.press("escape")  # back to where it was opened
        await until(app, lambda: isinstance(app.screen, WatchScreen))
        await pilot.press("4")  # a screen of its own
        await until(app, lambda: app.screen.mode == "rollouts")  # type: ignore[attr-defined]
        await pilot.press("escape")
        await until(app, lambda: app.screen.mode == "watch")  # type: ignore[attr-defined]


async def test_an_answer_of_an_earlier_step_is_opened(tmp_path: Path) -> None:
    app = watched(tmp_path, steps=6)
    async with app.run_test(size=(120, 40)) as pilot:

        def rollouts_at(step: int) -> bool:
            screen = app.screen
            shown = isinstance(screen, RolloutsScreen) and screen.view.group
            return bool(shown) and shown.step == step  # type: ignore[union-attr]

        await until(app, lambda: app.screen.snapshot.step == 6)  # type: ignore[attr-defined]
        await pilot.press("4")
        await until(app, lambda: rollouts_at(6))
        await pilot.press("3", "less_than_sign")
        await until(app, lambda: getattr(app.screen, "past", None) is not None)
        app.screen.query_one(CompletionsPanel).focus()
        await pilot.press("n", "enter")
        await until(app, lambda: rollouts_at(5))
        assert app.screen.view.group_at == 1  # type: ignore[attr-defined]
