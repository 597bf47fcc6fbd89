"""Watch on the scripted run: its contents at every size and in every theme."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.pilot import Pilot

from grpo_engine import events as ev
from grpo_tui.app.feed.feed import Session
from grpo_tui.app.feed.narrator import narrate
from grpo_tui.app.feed.replay import ReplayFeed
from grpo_tui.app.feed.snapshot import LogLine, Snapshot, Status
from grpo_tui.app.feed.stored import StoreFeed
from grpo_tui.app.text.comparison import phase_times
from grpo_tui.app.text.safe_text import cell_len
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.messages import RunOpened
from grpo_tui.app.tui.preferences import Preferences
from grpo_tui.app.tui.screens.watch.panels import (
    AlertsLog,
    CompletionsPanel,
    Curves,
    Groups,
    PhaseBar,
)
from grpo_tui.app.tui.screens.watch.render import phase_line, reason_line
from grpo_tui.app.tui.screens.watch.state import (
    WatchState,
    by_severity,
    charts_of,
    counted,
    log_entries,
    spent_in,
)
from grpo_tui.app.tui.widgets.panel import plain_text
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.values import AlertView, BoardGroup, BoardRollout, BoardView
from tests.app import frames
from tests.app.rest import until
from tests.app.script import FIRST_WALL_TIME, Script, ScriptFeed, scored, started
from tests.app.stored import record, run_events
from tests.app.walk import painted, walk
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


def state_of(events: Iterable[ev.Event], **more: Any) -> WatchState:
    """What Watch shows after some events."""
    return WatchState(snapshot=Session(ScriptFeed(events, at=FIRST_WALL_TIME)).pull(), **more)


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


def test_when_a_run_ends_its_last_groups_and_phase_times_stay() -> None:
    done = ev.RunFinished(step=24, reason="completed", summary={})
    state = state_of([*SHORT.events(), *evaluated(24, 512), done])
    assert "answers to prompt 1" in painted(CompletionsPanel, view=state)
    text = painted(PhaseBar, 120, view=state)
    assert "completed" in text
    # 2.1 to 2.3 s less 1.2, .1, .2 and .6 are in no phase
    assert re.search(r"generate 1\.2s .*update \.6s  other \.[012]s", text)


def test_sampled_answers_to_held_out_problems_take_the_place_of_greedy_ones() -> None:
    def held_out(index: int, temperature: float) -> ev.GroupScored:
        group = scored(0, index, (index % 2, 2), [("2", True, False)]).group
        sampling = {"temperature": temperature}
        return ev.GroupScored(step=0, group=replace(group, origin="eval", sampling=sampling))

    between = ev.PhaseStarted(step=0, phase="evaluate", total=2, detail="sampled")
    state = state_of([started(), *(held_out(i, float(i > 1)) for i in range(4)), between])
    assert painted(Groups, view=state).startswith("held-out, sampled")
    assert [group.index for group in state.snapshot.groups] == [2, 3]


def test_the_phase_times_of_an_ended_run_are_the_means_of_its_report(tmp_path: Path) -> None:
    """Slow for three steps and then fast: a smoothed time would forget the first ones."""
    seconds = [9.0, 9.0, 9.0, *[1.0] * 21]

    def timed(event: ev.Event) -> ev.Event:
        if not isinstance(event, ev.StepFinished):
            return event
        took = {"time/generate": seconds[event.step - 1], "step_time": seconds[event.step - 1] + 1}
        return replace(event, metrics={**event.metrics, **took})

    done = ev.RunFinished(step=24, reason="completed", summary={})
    events = [*map(timed, SHORT.events()), done]
    record(tmp_path / "grpo.db", iter(events))
    with StoreReader(tmp_path / "grpo.db") as reader:
        means = phase_times([reader.run(1).summary])
    state = state_of(events)
    assert means["generate"] == pytest.approx(2.0)
    assert spent_in(state.snapshot) == pytest.approx(means)
    assert state.snapshot.step_seconds == pytest.approx(3.0)
    text = painted(PhaseBar, 120, view=state)
    assert "mean step  generate 2.0s" in text
    assert "3 s/step" in text


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


def test_the_last_step_says_that_held_out_answers_follow() -> None:
    config = {"evaluation": {"before_and_after": True}}
    head = replace(state_of(SHORT.sampling()).snapshot.head, total_steps=6, config=config)
    last = Snapshot(head=head, status="running", step=5, current_step=6, eta=27.0)

    def numbers(snapshot: Snapshot) -> str:
        return "".join(text for text, _ in phase_line(snapshot, 0.0, 99)).strip()

    assert numbers(last).endswith("27s left, then held-out answers")
    assert numbers(replace(last, current_step=5, step=4)).endswith("27s left")
    without = replace(head, config={"evaluation": {"before_and_after": False}})
    assert numbers(replace(last, head=without)).endswith("27s left")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_time_that_is_left_stays_at_every_width(width: int) -> None:
    state = state_of(SHORT.sampling())
    text = painted(PhaseBar, width, view=state).rstrip()
    assert text.endswith("79s left")
    assert "generate ━" in text
    assert cell_len(text.splitlines()[-1]) < width


def rows_of(app: Workbench, which: str) -> list[str]:
    """The lines of a panel, its title first."""
    region = app.screen.query_one(which).region
    lines = frames.frame(app)[region.y : region.bottom]
    return [line[region.x : region.right] for line in lines]


async def test_the_groups_scored_last_can_be_read_while_the_next_step_is_sampled(
    tmp_path: Path,
) -> None:
    events = [*SHORT.sampling()]
    async with walk(workbench(events, tmp_path)) as on:
        await settle(on.pilot, on.app)
        last = [e.group for e in events if isinstance(e, ev.GroupScored) and e.step == 24]
        groups, answers = on.screen.query_one(Groups), on.screen.query_one(CompletionsPanel)
        assert groups.snapshot.groups == tuple(last)
        assert "step 24" in rows_of(on.app, "#groups")[0]
        assert "step 25" in rows_of(on.app, "#answers")[0]
        assert "▸" not in "".join(rows_of(on.app, "#groups"))  # none of them is on screen
        # with the focus on the groups, the answers are theirs
        groups.focus()
        await settle(on.pilot, on.app)
        assert answers.group == last[0]
        assert "1▸" in "".join(rows_of(on.app, "#groups")).replace(" ", "")
        assert "step 24" in rows_of(on.app, "#answers")[0]
        frames.check(on.app)
        on.screen.query_one(Curves).focus()
        await settle(on.pilot, on.app)
        assert "step 25" in rows_of(on.app, "#answers")[0]


def test_the_new_groups_show_as_soon_as_one_has_scores() -> None:
    events = [*SHORT.sampling()]
    first = next(e for e in reversed(events) if isinstance(e, ev.PromptsStarted)).prompts[0]
    numbers = tuple(int(part) for part in re.findall(r"\d+", first.prompt_text))
    group = scored(25, 0, numbers, [("x", True, False), ("y", False, False)] * 4)  # type: ignore[arg-type]
    _, note, _, row, *rows = painted(Groups, 30, view=state_of([*events, group])).splitlines()
    assert "step 25" in note
    assert "▲ ▼ ▲ ▼ ▲ ▼ ▲ ▼" in row
    assert "·" in "".join(rows)


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


def test_a_log_with_a_warning_is_not_called_quiet() -> None:
    warned = LogLine(at=None, step=3, severity="warning", text="reward thinking scored .1 for all")
    told = replace(warned, severity="info")
    assert counted(Snapshot(status="running", log=(told, warned))) == (
        "no alerts · 1 warning in the log"
    )


def test_the_marked_line_of_the_log_is_read_whole_and_the_sentence_without_a_traceback() -> None:
    message = "reward shape on completion 0: " + "it is no number, " * 6 + "see the end"
    failed = ev.RunFailed(step=24, error="RewardError", message=f"{message}\nTraceback (most …")
    state = state_of([*SHORT.events(), failed])
    assert "Traceback" not in narrate(state.snapshot)[0]
    assert "see the end" in painted(AlertsLog, 78, 20, view=state, has_focus=True)


ALERT = ev.AlertRaised(
    step=24,
    rule="most_truncated",
    severity="warning",
    remedy="Raise rollout.max_new_tokens, or reward shorter answers. " * 2,
    explanation="61% of the answers were cut. " * 3,
)


async def test_an_alert_is_counted_at_the_top_and_told_in_full(tmp_path: Path) -> None:
    app = workbench([*SHORT.events(), ALERT], tmp_path)
    async with walk(app) as on:
        await on.see("▲1  flat  step 24/60")
        assert on.lines[2].startswith(" ▸ ▲ Last 10 steps: ")
        log = rows_of(app, "#alerts")[1:-1]
        words = " ".join("".join(line[12:-1] for line in log[:3]).split())
        assert words.startswith("61% of the answers were cut. 61% of")
        assert "open ▲" in log[0]  # in place of a time, for newer lines of the log are below
        assert words.endswith("or reward shorter answers.")
        assert "alert at step 8, closed: 5 of 8 prompts" in log[3]
        panel = on.screen.query_one("#alerts")
        panel.focus()
        await on.press("down", "down", "down")
        assert "▌" in "".join(rows_of(app, "#alerts"))
        await on.pilot.click(panel, offset=(20, 1))
        frames.check(app)


def test_a_closed_alert_stands_with_its_step_and_in_full_under_the_cursor() -> None:
    past = replace(ALERT, step=4, explanation="Reward rose, " * 12 + "by form.")
    state = state_of([*SHORT.events(), replace(past, step=3), past])
    entries = [*reversed(log_entries(state.snapshot))]
    index = next(n for n, entry in enumerate(entries) if getattr(entry, "rule", "") == ALERT.rule)
    below = entries[index + 1]
    assert isinstance(below, LogLine)
    assert below.step <= 4
    text = " ".join(painted(AlertsLog, 118, view=state, cursor=index, has_focus=True).split())
    assert text.startswith("no alerts")
    assert "alert in steps 3 to 4, closed: Reward rose, " in text
    assert "by form." in text


async def test_the_search_line_hides_no_frame(tmp_path: Path) -> None:
    async with walk(workbench(SHORT.events(), tmp_path)) as on:
        await on.press("slash", *"kl")
        assert on.lines[-2].startswith(" / kl")
        assert on.lines[-3].startswith("╰")
        await on.press("enter", "escape")
        assert on.lines[-2].startswith("╰")


@pytest.mark.parametrize("added", [(), ("completions/max_length",)])
async def test_down_reaches_every_row_of_a_grid_of_charts(
    added: tuple[str, ...], tmp_path: Path
) -> None:
    async with walk(workbench(SHORT.events(), tmp_path), (200, 60)) as on:
        await on.see("reward")
        curves = on.screen.query_one(Curves)
        curves.focus()
        curves.added = added
        await on.pilot.pause()
        assert curves.columns(curves.count()) == 2
        seen: list[int] = []
        while curves.selected not in seen:
            seen.append(curves.selected)
            await on.press("down")
        assert all({i, i + 1} & set(seen) for i in range(0, curves.count(), 2))


def with_constant_entropy(events: Iterable[ev.Event]) -> Iterator[ev.Event]:
    for event in events:
        if isinstance(event, ev.StepFinished):
            event = replace(event, metrics={**event.metrics, "entropy": 1.5})
        yield event


async def test_charts_keep_their_places_while_one_looks_and_no_longer(tmp_path: Path) -> None:
    # entropy counts as constant from its tenth value on, and constant charts come last
    events = list(with_constant_entropy(Script(steps=12, total_steps=60).events()))
    sixth = next(n for n, event in enumerate(events) if event.step == 6)
    async with walk(workbench(events[:sixth], tmp_path), (120, 40)) as on:
        await on.see("reward")
        curves = on.screen.query_one(Curves)
        before = [chart.title for chart in curves.charts]
        curves.go_to("entropy")
        session = on.app.session
        assert session is not None
        for event in events[sixth:]:
            session.state.apply(event)
        await on.see("step 12")
        assert [chart.title for chart in curves.charts] == before
        await on.over("question_mark")
        assert [chart.title for chart in curves.charts] == before
        await on.press("1", "3")
        assert curves.charts == charts_of(curves.snapshot)
        assert [chart.title for chart in curves.charts] != before
        assert curves.metric == "entropy"


def keys_of(app: Workbench) -> set[str | None]:
    return {active.binding.id for active in app.screen.active_bindings.values()}


@pytest.mark.slow
async def test_a_replay_has_keys_for_speed_and_position_and_none_that_do_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.db"
    record(path, run_events(steps=4), name="otter")
    feed = ReplayFeed(path, "otter", clock=lambda: 0.0)
    async with walk(Workbench(path, feed=feed, mode="watch")) as on:
        await on.until(lambda: ". pause  " in on.lines[-1])

        def is_at(step: int) -> bool:
            return bool(on.screen.snapshot.step == step)

        for keys, step in ((">>", 2), ("}", 4), ("<", 3)):
            await on.press(*keys)
            await until(on.app, partial(is_at, step))
        await on.press("equals_sign", "equals_sign")
        assert feed.speed == 4
        await on.see("×4")
        keys_there = keys_of(on.app)
        assert {"watch.back", "watch.faster", "run.pause"} <= keys_there
        assert not {"run.stop", "run.checkpoint"} & keys_there


async def test_a_run_that_is_not_replayed_has_no_keys_of_a_replay(tmp_path: Path) -> None:
    async with walk(workbench(SHORT.events(), tmp_path)) as on:
        await on.see("reward")
        keys = keys_of(on.app)
        assert "watch.faster" not in keys
        assert {"run.stop", "run.checkpoint"} <= keys


@pytest.mark.slow
async def test_earlier_steps_are_looked_at_while_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    record(path, run_events(steps=6), name="otter")
    with StoreReader(path) as reader:
        prompts = {
            step: reader.groups(1, step=step, origin="train")[0].prompt_text for step in range(1, 7)
        }
    feed = ScriptFeed(run_events(steps=9), name="otter", slice_size=1)
    async with walk(Workbench(path, feed=feed, mode="watch")) as on:
        screen = on.screen
        await on.until(lambda: screen.snapshot.groups_step == 6)
        lanes, groups = screen.query_one(CompletionsPanel), screen.query_one("#groups", Groups)

        async def back_at(step: int, *keys: str) -> None:
            await on.pilot.press(*keys)
            await on.until(lambda: screen.view.past is not None and screen.view.past.step == step)
            assert lanes.snapshot.groups[0].prompt_text == prompts[step]
            assert groups.snapshot.groups_step == step
            assert f"Step {step}, seen from step" in on.text
            frames.check(on.app)

        await back_at(5, "<")
        await back_at(4, "<")
        await back_at(1, "{")
        await on.until(lambda: screen.snapshot.step == 7)  # it goes on meanwhile
        assert screen.query_one(Curves).snapshot.step == 7
        await back_at(1)
        await back_at(2, ">")
        await back_at(5, "at", "5", "enter")
        await on.pilot.press("at", "x", "enter")
        assert on.told == "“x” is not such a number."
        await on.pilot.press("escape")
        assert lanes.snapshot.groups_step >= 7
        assert "seen from" not in on.text


def stored_run(tmp_path: Path) -> Workbench:
    """The workbench on Watch, on a run of six steps that has ended."""
    path = tmp_path / "runs.db"
    record(path, run_events(steps=6), name="otter")
    feed = StoreFeed(path, "otter")
    assert feed.caught_up.wait(PATIENCE)
    return Workbench(path, feed=feed, mode="watch")


@pytest.mark.slow
async def test_an_answer_of_an_earlier_step_opens_on_rollouts_which_leads_back(
    tmp_path: Path,
) -> None:
    async with walk(stored_run(tmp_path)) as on:

        async def at(mode: str, step: int = 0, group: int = 0) -> None:
            await on.until(lambda: on.screen.mode == mode)
            await on.until(lambda: not step or on.view.cursor[:2] == (step, group))

        await on.until(lambda: on.screen.snapshot.step == 6)
        await on.press("4")
        await at("rollouts", 6)
        await on.press("3", "less_than_sign")
        await on.until(lambda: getattr(on.screen.view, "past", None) is not None)
        on.screen.query_one(CompletionsPanel).focus()
        await on.press("n", "enter")
        await at("rollouts", 5, 1)
        await on.press("escape")  # back to where it was opened
        await at("watch")
        await on.press("4")  # a screen of its own
        await at("rollouts")
        await on.press("escape")
        await at("watch")


@pytest.mark.parametrize(("width", "height"), [(60, 22), (120, 30), (200, 40)])
async def test_answers_keep_their_place_while_they_are_sampled(
    tmp_path: Path, width: int, height: int
) -> None:
    """Their rows move while the first one wraps, and never again."""
    words = "seventeen and twenty-five are both numbers, so first add the tens, then the ones, "

    def state(lengths: Sequence[int]) -> WatchState:
        rollouts = tuple(
            BoardRollout(index=index, text=(words * 3)[:length])
            for index, length in enumerate(lengths)
        )
        group = BoardGroup(index=0, prompt_text="17 + 25 = ?", rollouts=rollouts)
        board = BoardView(phase="generate", step=25, groups=(group,))
        return WatchState(snapshot=Snapshot(groups=(group,), board=board, status="running"))

    async with walk(workbench([started(60)], tmp_path), (width, height)) as on:
        panel = on.screen.query_one(CompletionsPanel)
        places = set()
        for lengths in ((240, 1, 1, 1), (240, 60, 3, 9), (240, 200, 120, 20), (0, 8, 240, 240)):
            panel.set_reactive(CompletionsPanel.view, state(lengths))
            lines = plain_text(panel.paint(width, height)).splitlines()
            row = re.compile(r"^[▌ ] ?([abcd]) ")
            places.add(tuple(at for at, line in enumerate(lines) if row.match(line)))
        assert len(places) == 1
        assert len(places.pop()) == 4


def test_alerts_begin_with_the_one_that_a_sentence_names_then_the_worst_and_newest() -> None:
    def alert(rule: str, severity: Any, step: int) -> AlertView:
        return AlertView(
            rule=rule,
            severity=severity,
            step=step,
            first_step=1,
            count=1,
            explanation="",
            remedy="",
        )

    alerts = [
        alert("slow", "warning", 9),
        alert("no_signal", "warning", 20),
        alert("collapse", "error", 3),
        alert("format_hacking", "warning", 5),
    ]
    order = [item.rule for item in by_severity(alerts)]
    assert order == ["format_hacking", "collapse", "no_signal", "slow"]


async def test_a_search_of_charts_ends_with_the_run_that_it_was_typed_for(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    for name in ("first", "second"):
        record(store, run_events(steps=3), name=name)
    async with walk(Workbench(store, preferences=Preferences())) as on:
        on.app.post_message(RunOpened("first"))
        await on.until(lambda: "✓ first" in on.lines[0] and "completed" in on.text)
        await on.press("slash", *"loss", "enter")
        await on.until(lambda: "esc all charts" in on.lines[-1])
        on.app.post_message(RunOpened("second"))
        await on.until(lambda: "✓ second" in on.lines[0])
        await on.until(lambda: on.screen.query_one(Curves).filter == "")
        assert "all charts" not in on.lines[-1]
