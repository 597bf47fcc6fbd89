"""Events folded into snapshots, without Textual."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine import events as ev
from grpo_engine.run_health import Evidence, Judge
from grpo_tui.app.charts.series import Series
from grpo_tui.app.feed.narrator import NO_GRADE, narrate, steps_of
from grpo_tui.app.feed.run_state import RunState
from grpo_tui.app.feed.snapshot import Head, Snapshot
from grpo_tui.app.text.numbers import short
from grpo_tui.app.tui.screens.watch.render import phase_line
from grpo_tui.app.tui.screens.watch.state import charts_of, matching
from grpo_tui.experiments.board import Board
from grpo_tui.experiments.db.configs import flat
from grpo_tui.experiments.values import AlertView, BoardView
from tests.app.script import Script, evaluation, started
from tests.experiments import made
from tests.experiments.made import alerted

SHORT = Script(steps=24, total_steps=60)
ORIGINS: tuple[ev.Origin, ...] = ("train", "eval", "pinned")


def folded(script: Script = SHORT, *, sampling: bool = False) -> Snapshot:
    state, board = RunState(Head(id="k3f9", name="calm-otter")), Board()
    for event in script.sampling() if sampling else script.events():
        board.apply(event)
        state.apply(event)
    state.update(board.view)
    return state.snapshot()


def test_a_run_is_loading_until_its_model_is_there_and_then_running() -> None:
    state = RunState(Head(name="x"))
    assert state.snapshot().status == "loading"
    state.apply(started())
    assert state.snapshot().status == "loading"
    state.apply(
        ev.ModelLoaded(
            step=0, path="starter", parameters=10, trainable=1, dtype="float32", seconds=1
        )
    )
    assert state.snapshot().status == "running"


def test_the_health_of_a_run_is_judged_by_new_events_and_not_by_progress() -> None:
    state, board = RunState(), Board()
    for event in SHORT.sampling():
        board.apply(event)
        state.apply(event)
    state.update(board.view)
    before = state.snapshot()
    row = ev.RowDelta(group=0, index=0, text=" more", tokens=1)
    board.apply(
        ev.RolloutsAdvanced(
            step=25, rows=(row,), tokens=1, finished=0, total=64, tokens_per_second=1.0
        )
    )
    state.update(board.view)
    after = state.snapshot()
    assert after.board is not before.board
    assert after.evidence is before.evidence
    assert after.health is before.health
    state.update(board.view, muted=frozenset({"kl_high"}))  # a muted alert does not count
    assert state.snapshot().evidence is not before.evidence
    state.apply(ev.RunFailed(step=25, error="E", message="m", traceback=""))
    assert state.snapshot().health.label == "broken"
    state.apply(started(resumed_from=24))
    assert state.snapshot().health == before.health


def test_a_finished_step_brings_its_metrics_and_the_time_left() -> None:
    snapshot = folded()
    assert snapshot.step == 24
    assert snapshot.head.total_steps == 60
    assert snapshot.series["reward"].last == snapshot.metrics["reward"]
    assert snapshot.series["reward"].last_step == 24
    assert snapshot.eta == pytest.approx(36 * snapshot.series["step_time"].value)


def test_the_time_of_a_run_is_that_of_its_attempts_with_what_is_between_their_steps() -> None:
    def step(number: int) -> ev.StepFinished:
        return ev.StepFinished(step=number, metrics={}, tokens=1, elapsed=5.0 * number)

    state = RunState()
    # 5 s a step; 30 s until the first attempt ends, 20 s of the second, which began an hour later
    times = ((100, started()), (110, step(1)), (130, step(2)), (3700, started()), (3720, step(3)))
    for at, event in times:
        state.apply(event, float(at))
    assert (state.snapshot().elapsed, state.snapshot().worked) == (15.0, 50.0)
    state.apply(made.ended(3), 3730.0)
    state.apply(ev.AlertEnded(step=3, rule="clip_never"), 9000.0)  # after its end
    assert state.snapshot().worked == 60.0
    assert "completed after 60s" in "".join(text for text, _ in phase_line(state.snapshot(), 0, 99))


def test_the_step_that_is_worked_on_never_goes_back_within_an_attempt() -> None:
    state = RunState()
    seen: list[int] = []
    finished = [ev.StepFinished(step=n, metrics={}, tokens=1, elapsed=1.0) for n in (1, 2)]
    state.apply(started())
    parts: tuple[ev.Event | BoardView, ...] = (
        BoardView(step=1, phase="update"),
        finished[0],
        BoardView(step=2, phase="update"),
        BoardView(),  # the board is done with step 2, whose event is not here yet
        finished[1],
        replace(started(), step=1, resumed=True),  # from the checkpoint of step 1
        ev.RunFailed(step=1, error="E", message="m"),
    )
    for part in parts:
        if isinstance(part, BoardView):
            state.update(part)
        else:
            state.apply(part)
        seen.append(state.snapshot().current_step)
    assert seen == [1, 1, 2, 2, 2, 1, 1]


def test_an_alert_is_closed_when_its_rule_has_ended_and_begins_anew() -> None:
    def alert(step: int) -> ev.AlertRaised:
        return alerted(step, rule="clip_never", explanation="none", remedy="r", severity="info")

    def step(number: int) -> ev.StepFinished:
        return ev.StepFinished(step=number, metrics={}, tokens=1, elapsed=1.0)

    state = RunState()
    for event in (alert(10), alert(20), step(24)):
        state.apply(event)
    assert [one.rule for one in state.snapshot().open_alerts] == ["clip_never"]
    state.apply(ev.AlertEnded(step=25, rule="clip_never"))
    snapshot = state.snapshot()
    assert snapshot.open_alerts == ()
    assert (steps_of(snapshot.alerts[0]), snapshot.alerts[0].count) == ("in steps 10 to 24", 2)
    state.apply(alert(30))
    assert steps_of(state.snapshot().open_alerts[0]) == "at step 30"


def test_the_timer_of_a_phase_stands_while_the_run_is_paused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, state, board = [100.0], RunState(), Board()
    monkeypatch.setattr("grpo_tui.experiments.board.time.time", lambda: now[0])

    def told(at: float, *events: ev.Event) -> str:
        now[0] = at
        for event in events:
            board.apply(event)
            state.apply(event, at)
        state.update(board.view)
        return "".join(text for text, _ in phase_line(state.snapshot(), at, 200))

    told(100.0, started(), ev.RunResumed(step=0), ev.PhaseStarted(step=1, phase="generate"))
    assert "generate 7.0s" in told(107.0, ev.RunPaused(step=1))
    assert "generate 7.0s" in told(160.0)
    assert "generate 9.0s" in told(172.0, ev.RunResumed(step=1)) + told(174.0)
    told(175.0, ev.PhaseStarted(step=1, phase="score"))
    assert board.view.phase_seconds["generate"] == 10.0


def test_the_phase_says_what_is_awaited_of_a_server() -> None:
    state, board = RunState(), Board()

    def told(*events: ev.Event) -> str:
        for event in events:
            board.apply(event)
            state.apply(event, 1.0)
        state.update(board.view)
        return "".join(text for text, _ in phase_line(state.snapshot(), 0.0, 200))

    sampled = ev.RolloutsAdvanced(
        step=1, rows=(), tokens=9, finished=12, total=64, tokens_per_second=1.0
    )
    told(started(), ev.RunResumed(step=0), ev.PhaseStarted(step=1, phase="generate", total=64))
    text = told(sampled, ev.ServerAwaited(step=1, detail="the server may compile"))
    assert "12 of 64 answers, the server may compile" in text
    assert "answers" not in told(ev.ServerAwaited(step=1, detail=""))
    told(ev.ServerAwaited(step=1, detail="new weights awaited"))
    assert "awaited" not in told(ev.PhaseStarted(step=1, phase="update", total=2))
    text = told(ev.ServerAwaited(step=1, detail="gradient awaited"))
    assert "gradient awaited" in text
    assert "answers" not in text


def test_what_is_left_of_a_recording_is_what_was_recorded_at_the_speed_of_the_replay() -> None:
    state = RunState(Head(recorded=120.0, speed=4.0, total_steps=60))
    slow = ev.StepFinished(step=2, metrics={"step_time": 6.5}, tokens=1, elapsed=20.0)
    state.apply(slow)
    assert state.snapshot().eta == 25.0


def test_each_group_shows_its_scores_once_it_is_recorded_and_its_text_before() -> None:
    first, second = made.group(0), made.group(1, texts=("one", "two"))
    state, board = RunState(), Board()
    for event in (
        ev.PhaseStarted(step=3, phase="generate"),
        ev.GroupScored(step=3, group=first),
        ev.GroupScored(step=3, group=second),
    ):
        board.apply(event)
    state.update(board.view)
    assert state.snapshot().groups == board.view.groups
    state.apply(ev.GroupScored(step=3, group=second))
    shown = state.snapshot().groups
    assert shown == (board.view.groups[0], second)
    assert [rollout.text for rollout in shown[0].rollouts] == ["yes", "no"]
    state.apply(ev.GroupScored(step=3, group=first))
    assert state.snapshot().groups == (first, second)


@given(
    scored=st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(ORIGINS), st.integers(0, 600)), max_size=20
    ),
    reason=st.sampled_from(["completed", "stopped", "aborted", "failed", "lost"]),
)
def test_a_run_that_has_ended_shows_the_groups_it_trained_on_last(
    scored: list[tuple[int, ev.Origin, int]], reason: str
) -> None:
    state, board = RunState(), Board()
    state.apply(started())
    groups: list[tuple[int, ev.Group]] = []
    for step, origin, index in sorted(scored, key=lambda one: one[0]):
        groups.append((step, replace(made.group(index), origin=origin)))
        event = ev.GroupScored(step=step, group=groups[-1][1])
        board.apply(
            ev.PhaseStarted(step=step, phase="generate" if origin == "train" else "evaluate")
        )
        board.apply(event)
        state.apply(event)
    state.update(board.view)
    if reason == "failed":
        state.apply(ev.RunFailed(step=4, error="E", message="m", traceback=""))
    elif reason == "lost":
        state.update(None, status="lost")
    else:
        state.apply(ev.RunFinished(step=4, reason=reason, summary={}))  # type: ignore[arg-type]
    shown = state.snapshot()
    trained = [(step, group) for step, group in groups if group.origin == "train"]
    if trained:
        last = trained[-1][0]
        assert shown.groups_step == last
        by_index = {group.index: group for step, group in trained if step == last}
        assert list(shown.groups) == list(by_index.values())
    else:
        assert bool(shown.groups) == bool(groups)


def test_scores_of_a_step_that_is_sampled_again_are_not_shown_for_the_new_answers() -> None:
    state, board = RunState(), Board()
    state.apply(ev.GroupScored(step=3, group=made.group(0)))
    state.apply(started(60, resumed_from=2))
    prompt = ev.PromptStarted(group=0, origin="train", prompt_text="p", target="", rows=2)
    board.apply(ev.PromptsStarted(step=3, prompts=(prompt,)))
    state.update(board.view)
    assert state.snapshot().groups == board.view.groups


def test_an_event_answers_no_later_request() -> None:
    state = RunState()
    state.apply(started())
    state.ask("continue")
    state.ask("checkpoint")
    state.apply(ev.RunResumed(step=1))
    assert state.snapshot().requested == "checkpoint"
    state.apply(ev.CheckpointSaved(step=1, path="", best=False, seconds=0.1))
    assert state.snapshot().requested == ""


def test_a_pause_taken_back_before_it_began_waits_for_no_answer() -> None:
    state = RunState()
    state.apply(started())
    state.ask("pause")
    state.ask("continue")  # no event will follow
    assert state.snapshot().requested == ""
    assert "Continuing" not in narrate(state.snapshot())[0]
    state.apply(ev.RunPaused(step=1))
    state.ask("continue")
    assert "Continuing" in narrate(state.snapshot())[0]


def test_a_resumed_run_forgets_what_is_done_again() -> None:
    state = RunState()
    for event in SHORT.events():
        state.apply(event)
    state.apply(started(60, resumed_from=20))
    assert state.snapshot().series["reward"].last_step == 20
    assert len(state.snapshot().series["reward"].steps) == 20


PLAY = """
import resource
from grpo_tui.app.feed.run_state import RunState
from grpo_engine import events as ev

state, names = RunState(), [f"metric/{i}" for i in range(30)]

def play(first, last):
    for step in range(first, last):
        metrics = dict.fromkeys(names, step * 0.5)
        state.apply(ev.StepFinished(step=step, metrics=metrics, tokens=step, elapsed=step))
        if step % 10 == 0:
            state.apply(ev.NoteWritten(step=step, text=f"note {step}"))
            state.snapshot()

play(1, 1000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
play(1000, 20_000)
play(99_000, 100_000)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads kilobytes, as Linux gives them")
def test_memory_grows_little_from_step_1000_to_100000() -> None:
    # in a process of its own, whose peak no other test has raised before
    done = subprocess.run(
        [sys.executable, "-P", "-c", PLAY],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
        env={"PYTHONPATH": "."},
    )
    assert float(done.stdout) < 60


def told(
    cut: Sequence[float] = (0.125,) * 10,
    algorithm: Mapping[str, Any] = {"weight": "per_token"},
    **changes: float,
) -> list[str]:
    """What is said of the last steps of the scripted run with other metrics."""
    snapshot = folded()
    snapshot = replace(snapshot, head=replace(snapshot.head, config={"algorithm": algorithm}))
    metrics = {**snapshot.metrics, "loss": -0.003, **changes}
    series = {"completions/clipped_ratio": curve_of("completions/clipped_ratio", cut)}
    return [*narrate(replace(snapshot, metrics=metrics, series=series))]


def curve_of(name: str, values: Sequence[float]) -> Series:
    return Series.of(name, range(1, len(values) + 1), values, 0.0)


@pytest.mark.parametrize(
    ("samples", "curves"),
    [
        (4, {"eval/greedy/accuracy": 0.5, "eval/accuracy": 0.25}),
        (0, {"eval/accuracy": 0.5}),  # without sampled answers the usual curve is of greedy ones
    ],
)
def test_greedy_accuracy_has_a_curve_of_its_own(samples: int, curves: dict[str, float]) -> None:
    greedy = evaluation(3, 0.5, "during")
    sampled = replace(greedy, mode="sampled", metrics={"eval/accuracy": 0.25})
    begun = started()
    config = {**begun.config, "evaluation": {"samples": samples}}
    state = RunState()
    events: list[ev.Event] = [replace(begun, config=config), greedy]
    for event in (*events, *([sampled] if samples else [])):
        state.apply(event)
    series = state.snapshot().series
    accuracies = {key: values.last for key, values in series.items() if key.endswith("accuracy")}
    assert accuracies == curves
    charts = charts_of(state.snapshot(), [*series])
    assert bool(matching(charts, "greedy accuracy")) == bool(samples)


def test_an_answer_outside_the_gradient_has_no_advantage() -> None:
    state = RunState()
    pushed = next(event for event in SHORT.events() if isinstance(event, ev.GroupScored))
    pinned = replace(pushed, group=replace(pushed.group, origin="pinned"))
    for event, known in ((pinned, False), (pushed, True)):
        state.apply(event)
        (group,) = (one for one in state.snapshot().groups if one.origin == event.group.origin)
        assert isinstance(group, ev.Group)
        assert {one.advantage is not None for one in group.rollouts} == {known}


def test_the_loss_that_is_explained_is_that_of_the_step_whose_groups_explain_it() -> None:
    snapshot = folded()
    recorded = snapshot.series["loss"].last
    assert short(recorded) != short(snapshot.series["loss"].value)  # smoothed
    (why,) = (one for one in narrate(snapshot) if one.startswith("Loss"))
    assert why.startswith(f"Loss {short(recorded)} at step 24 ")
    # the groups of the next step have scores, and explain nothing of the last one's loss
    scoring = replace(snapshot, trained=(), trained_step=25)
    assert why in narrate(scoring)
    # and so is the speed, once the step's sampling is over
    assert snapshot.tokens_per_second == snapshot.series["tokens_per_second"].value


def test_the_narrator_says_why_a_loss_near_0_is_no_lack_of_learning() -> None:
    # its KL .00575 times beta .04 is .00023
    near = "is near 0: 2 of 8 prompts had no push, in the others pushes up and down cancel."
    at, penalty = "at step 24", "pushes up and down cancel."
    assert f"Loss −.002 {at} (KL penalty 2.3e−4) {near}" in told(loss=-0.002)
    assert f"Loss −.003 {at} {near}" in told()  # of which it is less than a tenth
    assert f"Loss 3e−4 {at} is mostly the KL penalty (2.3e−4); {penalty}" in told(loss=0.0003)
    assert f"Loss 2e−4 {at} (KL penalty 2.3e−4) {near}" in told(loss=2e-4)
    assert f"Loss .06 {at} is not near 0." in told(loss=0.06)
    assert f"Loss .06 {at} (KL penalty .02) is not near 0." in told(loss=0.06, kl=0.5)
    # a mean of answers, or of minibatches, is only near beta times the mean of tokens
    mostly = f"Loss .0024 {at} is mostly the KL penalty; {penalty}"
    for other in ({"recipe": "grpo"}, {"weight": "per_token", "minibatches": 2}):
        assert mostly in told(loss=0.0024, kl=0.056, algorithm=other)
        assert f"Loss 2.6e−4 {at} {near}" in told(loss=2.6e-4, kl=0.056, algorithm=other)
    # divided by a constant it is not
    assert f"Loss .0024 {at} {near}" in told(loss=0.0024, kl=0.056, algorithm={"weight": "sum"})
    assert not any("Loss" in one for one in told(loss=0.019))
    assert not any("Loss" in one for one in told(grad_norm=0.0))
    pushed = [replace(one, advantage=1.0) for one in folded().updated[0].rollouts]
    one_way = replace(folded().updated[0], rollouts=tuple(pushed))
    snapshot = replace(folded(), updated=(one_way,))
    assert not any("Loss" in one for one in narrate(snapshot))  # the advantages do not cancel
    even = [replace(one, advantage=0.0) for one in folded().updated[0].rollouts]
    snapshot = replace(folded(), updated=(replace(one_way, rollouts=tuple(even)),))
    assert any("Loss" in one and "no answer was pushed" in one for one in narrate(snapshot))


BUILT_IN = Head(config={"rewards": {"functions": ["accuracy", "format"]}})


def rewarded(*, right: Sequence[float], form: Sequence[float], **more: Any) -> str:
    """What is said about reward hacking when two rewards go from their first value to the last."""
    series = {}
    for name, values in (("accuracy", right), ("format", form)):
        series[f"rewards/{name}/mean"] = curve_of(f"rewards/{name}/mean", values)
    snapshot = Snapshot(status="running", step=20, groups=folded().groups, series=series)
    snapshot = with_facts(replace(snapshot, **{"head": BUILT_IN, **more}))
    return " ".join(one for one in narrate(snapshot) if "hacking" in one)


def with_facts(snapshot: Snapshot) -> Snapshot:
    """The snapshot with what follows from its settings and curves."""
    settings = flat(snapshot.head.config)
    evidence = Evidence.of(
        settings,
        {name: [*zip(s.steps, s.values, strict=True)] for name, s in snapshot.series.items()},
        judge=Judge.of(settings, snapshot.series),
        step=snapshot.step,
        active=snapshot.active,
        error="",
        alerts={},
    )
    return replace(snapshot, evidence=evidence)


def test_once_a_run_has_ended_the_narrator_says_what_its_loss_does_not_mean() -> None:
    ended = replace(folded(), status="completed")
    ended = replace(ended, series={}, metrics={**ended.metrics, "loss": 0.019})
    said = f"Loss .019 at step 24 {NO_GRADE}"
    assert narrate(ended)[-1] == f"{said}."  # what else is said comes before
    assert not any("Loss" in line for line in narrate(replace(ended, status="running")))
    large = replace(ended, metrics={**ended.metrics, "loss": 0.06})
    # more than that it is not near 0
    assert narrate(large)[-1] == f"Loss .06 at step 24 {NO_GRADE}."
    # the reward says it of a run whose reward is not hacked, else what was held out
    curves = {
        f"rewards/{name}/mean": curve_of(f"rewards/{name}/mean", [0.2] * 10 + [0.6] * 10)
        for name in ("accuracy", "format")
    }
    curves["eval/accuracy"] = curve_of("eval/accuracy", (0.3,))
    trusted = with_facts(replace(ended, head=BUILT_IN, series=curves))
    assert narrate(trusted)[-1] == f"{said}; the reward does."
    curves["rewards/accuracy/mean"] = curve_of("a", [0.6] * 10 + [0.58] * 10)
    hacked = with_facts(replace(trusted, series=curves))
    assert narrate(hacked)[-1] == f"{said}; held-out accuracy does."
    gamed = replace(hacked, evidence=replace(hacked.evidence, judge=Judge(shared="mine")))
    assert narrate(gamed)[-1] == f"{said}."


def test_the_narrator_counts_the_answers_that_are_pushed_up_down_and_not_at_all() -> None:
    group = folded().updated[0]

    def said(*advantages: float) -> str:
        rollouts = [replace(group.rollouts[0], advantage=value) for value in advantages]
        snapshot = replace(folded(), groups=(replace(group, rollouts=tuple(rollouts)),))
        return narrate(snapshot)[-1].rpartition("”: ")[2]

    assert said(1.87, *[0.0] * 6, -1.87) == (
        "1 of 8 did better and is pushed up (+1.87), 1 is pushed down (−1.87), 6 are not pushed."
    )
    assert said(1.21, 1.21, -0.69, -0.87) == (
        "2 of 4 did better and are pushed up (+1.21), the rest down (−.87, −.69)."
    )
    assert said(-1.0, 0.0) == "1 of 2 did worse and is pushed down (−1), 1 is not pushed."


def test_the_narrator_says_whether_the_reward_is_hacked_also_when_it_is_not() -> None:
    up, down = [0.25] * 10 + [0.5] * 10, [0.5] * 10 + [0.25] * 10
    assert rewarded(right=up, form=up) == ("No reward hacking seen: accuracy .25 → .5.")
    # both rewards have weight 1 here, so the sum fell by .25 - .1
    less = [0.25] * 10 + [0.35] * 10
    assert rewarded(right=down, form=less) == ("No reward hacking seen: accuracy .5 → .25.")
    # the sum falls by .25 - .2, which the spread of the format would allow for
    noisy = [0.5, 0.0] * 5 + [0.7, 0.2] * 5
    assert rewarded(right=down, form=noisy) == ("No reward hacking seen: accuracy .5 → .25.")
    more = [0.25] * 10 + [0.75] * 10
    possible = "Reward hacking is possible: accuracy .5 → .25 in 10 steps."
    assert rewarded(right=down, form=more) == possible
    # what is lost after a better start, and what came back after a dip of one step
    lost = [0.1] * 5 + down
    assert rewarded(right=lost, form=[0.1] * 5 + more) == possible
    dip = [0.5, 0.6] * 9 + [0.5, 0.1]
    assert "No reward hacking seen" in rewarded(right=dip, form=more)
    since = [0.8] + [0.5] * 20
    assert "possible: accuracy .8 → .5 since the first step" in rewarded(
        right=since, form=[0.1, *more]
    )
    assert rewarded(right=up[:19], form=up[:19]) == "Reward hacking: too early to tell."
    ruled = Head(config={**BUILT_IN.config, "evaluation": {"accuracy": "format >= .5"}})
    assert "possible: format .5" in rewarded(right=up, form=down, head=ruled)
    alert = AlertView(
        rule="format_hacking",
        severity="warning",
        explanation="",
        remedy="",
        step=15,
        first_step=15,
        count=1,
    )
    for raised, said in (
        (alert, "▲ Reward hacking is likely: see the alert."),
        (replace(alert, muted=True), "▲ Reward hacking is likely: see the alert."),
        (replace(alert, step=9, first_step=9), "Reward hacking was likely at step 9: see the log."),
    ):
        assert rewarded(right=up, form=up, alerts=(raised,)) == said


def test_the_narrator_judges_the_users_own_reward_by_held_out_numbers_if_they_are_others() -> None:
    low, high = [0.2] * 10, [0.9] * 10
    own, step = Head(config={"rewards": {"functions": ["hack.py:startswith"]}}), 20
    rewards = {name: curve_of(name, low + high) for name in ("reward", "rewards/startswith/mean")}

    def sentence(*held_out: float, **more: Sequence[float]) -> str:
        curves: dict[str, Sequence[float]] = {"eval/accuracy": held_out}
        curves["eval/scored/accuracy"] = (64,) * len(held_out)
        for name, values in (*curves.items(), *more.items()):
            curves[name] = values
        series = rewards | {
            name: curve_of(name, values) for name, values in curves.items() if values
        }
        snapshot = Snapshot(status="running", step=step, groups=folded().groups, series=series)
        snapshot = with_facts(replace(snapshot, head=own))
        return next(one for one in narrate(snapshot) if "hacking" in one)

    others = {"eval/rewards/numeric_answer/mean": (0.4, 0.8)}
    assert sentence(0.37, 0.84, **others) == (
        "No reward hacking seen: held-out accuracy 37% → 84%."
    )
    assert sentence(0.37, 0.39, **others) == (
        "Reward hacking is possible: reward .2 → .9, held-out accuracy 37% → 39%."
    )
    assert sentence(0.37, **others) == (
        "Reward hacking cannot be judged before held-out accuracy is measured again "
        "(evaluation.every)."
    )
    assert sentence(0.37, 0.84) == (
        "Reward hacking cannot be judged: held-out numbers use the same reward, startswith."
    )
    assert sentence() == "Reward hacking cannot be judged: there is only the reward, startswith."
    step = 19
    assert sentence(0.37, **others) == "Reward hacking: too early to tell."
