"""`audit` says by its exit status what is wrong with a run, and `wait` when a condition holds."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo_engine import events as ev
from grpo_tui import record as trainer
from grpo_tui.app import exit_codes
from grpo_tui.app.text.findings import OF_RULE
from grpo_tui.app.tui.dialogs.help.topics import ALERTS
from grpo_tui.experiments.record.recorder import Recorder, resume_run
from grpo_tui.experiments.store import ExperimentStore
from tests.app.calls import Cli
from tests.app.stored import STEPS, half_recorded, record, run_events
from tests.experiments.made import (
    ended,
    fallen,
    finished,
    group,
    put_all,
    recorded,
    rollout,
    sql,
    started,
)
from tests.patience import PATIENCE


def alert(step: int, rule: str, severity: ev.Severity) -> ev.AlertRaised:
    return ev.AlertRaised(
        step=step, rule=rule, severity=severity, explanation=f"{rule} holds.", remedy="Do less."
    )


def run_with(path: Path, alerts: Sequence[ev.Event], steps: int = 20) -> None:
    numbers = map(finished, range(1, steps + 1))
    last = () if any(isinstance(item, ev.RunFailed) for item in alerts) else (ended(steps),)
    recorded(path, started(), *numbers, *alerts, *last, name="otter")


@pytest.mark.parametrize(
    ("alerts", "strict", "lenient"),
    [
        ((), exit_codes.OK, exit_codes.OK),
        ((alert(19, "clip_never", "info"),), exit_codes.OK, exit_codes.OK),
        ((alert(19, "no_signal", "warning"),), exit_codes.WARNINGS, exit_codes.OK),
        ((alert(4, "kl_exploding", "error"),), exit_codes.OK, exit_codes.OK),  # it ended long ago
        ((alert(18, "kl_exploding", "error"),), exit_codes.ERRORS, exit_codes.ERRORS),
        (
            (ev.RunFailed(step=20, error="EngineError", message="no memory"),),
            exit_codes.ERRORS,
            exit_codes.ERRORS,
        ),
    ],
)
def test_the_exit_status_is_of_the_worst_problem_that_holds_at_the_end(
    cli: Cli, store: Path, alerts: Sequence[ev.Event], strict: int, lenient: int
) -> None:
    run_with(store, alerts)
    assert cli("audit", "otter").code == strict
    done = cli("audit", "otter", "--fail-on", "error", "--json")
    assert done.code == lenient
    assert len(done.data["findings"]) == len(alerts)
    assert {"entropy", "held-out", "hacking"} <= set(done.data["unmeasured"])


def test_a_muted_problem_counts_no_more_and_each_has_its_steps_and_remedy(
    cli: Cli, store: Path
) -> None:
    run_with(store, [alert(12, "no_signal", "warning"), alert(19, "no_signal", "warning")])
    line = "signal, steps 12–19 (2 times): no_signal holds. Do less."
    assert f"warning  {line}" in cli("audit", "otter").out.splitlines()
    with ExperimentStore(store) as writer:
        writer.mute(1, "no_signal")
    done = cli("audit", "otter")
    assert (done.code, done.out.splitlines()[2]) == (exit_codes.OK, f"past     {line}")


def test_a_hacked_reward_is_shown_by_the_wrong_answers_that_were_paid_most(
    cli: Cli, store: Path
) -> None:
    answers = [("right", 1.0), ("short\x1b[2J", 0.0), ("wrong", 0.0), ("very wrong", 0.0)]
    paid = [
        replace(
            rollout(index, text, score + 0.1 * index),
            rewards=(ev.RewardValue(name="numeric_answer", value=score, weight=1.0, reason=""),),
        )
        for index, (text, score) in enumerate(answers)
    ]
    scored = ev.GroupScored(step=20, group=replace(group(), rollouts=tuple(paid)))
    run_with(store, [scored, alert(20, "format_hacking", "warning")])
    (finding,) = cli("audit", "otter", "--json").data["findings"]
    assert [item["text"] for item in finding["examples"]] == ["very wrong", "wrong", "short\x1b[2J"]
    out = cli("audit", "otter").out
    assert "step 20 answer 1d, reward .3, wrong: “very wrong”" in out
    assert "\x1b" not in out


def test_every_alert_has_a_topic() -> None:
    assert set(ALERTS) <= set(OF_RULE)


def test_wait_returns_at_the_first_step_at_which_the_condition_held(
    cli: Cli, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_tui.app.cli.verbs.wait.RESUMED_S", 0.0)
    run_with(store, ())
    done = cli("wait", "otter", "--until", "step >= 3 kl >= .05", "--json")
    assert (done.code, done.data["step"]) == (exit_codes.OK, 5)
    ended_first = cli("wait", "otter", "--until", "step > 20")
    assert (ended_first.code, ended_first.out) == (exit_codes.FAILED, "")
    assert "--until: there is no metric 'rewrd'" in cli("wait", "otter", "--until", "rewrd > 1").err


def between_looks(monkeypatch: pytest.MonkeyPatch, *happens: Callable[[], object]) -> None:
    """Have things happen while `wait` sleeps, and the last look be right after them."""
    left = iter(happens)
    clock = SimpleNamespace(sleep=lambda _: next(left)(), monotonic=lambda: 0.0)
    monkeypatch.setattr("grpo_tui.app.cli.verbs.wait.time", clock)


def test_wait_waits_for_a_run_that_trains(
    cli: Cli, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, put_rest = half_recorded(store)
    between_looks(monkeypatch, lambda: None, put_rest)
    assert cli("wait", "@last", "--until", f"step >= {STEPS}").code == exit_codes.OK
    recorder.close()


def test_a_run_that_only_trains_is_named_with_what_is_fine(cli: Cli, store: Path) -> None:
    record(store, run_events(steps=2), name="calm-otter")
    lines = cli("audit", "calm-otter").out.splitlines()
    assert lines[0] == "calm-otter: completed, step 2 of 2, flat"
    health = "warning  health, step 2: Held-out accuracy went from 8.0%"
    assert any(line.startswith(health) for line in lines)
    assert any(line.startswith("no data  hacking") for line in lines)  # it is too early to tell


def test_held_out_accuracy_that_was_measured_once_is_not_fine(cli: Cli, store: Path) -> None:
    with trainer.run("once", store=store) as run:
        run.evaluation(0, [trainer.problem("1 + 1", samples=4, correct=3)])
        run.step(1, metrics={"kl": 0.1})
    assert cli("audit", "once").out.splitlines()[-2] == "fine     KL"


def test_held_out_accuracy_that_fell_since_its_best_is_not_fine(cli: Cli, store: Path) -> None:
    recorded(store, *fallen(), name="worse")
    _, hacked, greedy, *rest = cli("audit", "worse").out.splitlines()
    assert hacked.startswith(
        "error    hacking, step 24: Held-out accuracy fell from 60% at step 10"
    )
    assert greedy.startswith("warning  held-out, steps 10–24: Held-out accuracy of greedy answers")
    assert not any("held-out" in line or "hacking" in line for line in rest)
    report = cli("report", "worse").out
    # 200 pairs of which 40 became wrong: p < .001 also for the best of two
    assert "It fell since step 10: from 60 to 40%, −20 points" in report
    assert "**Health: hacked?.**" in report


def test_rules_that_compare_with_usual_values_have_seen_nothing_in_twenty_steps(
    cli: Cli, store: Path
) -> None:
    numbers = [finished(step, grad_norm=4.0 ** (step % 9), entropy=1.0) for step in range(1, 22)]
    recorded(store, started(), *numbers[:20], ended(20), name="short")
    recorded(store, started(), *numbers, ended(21), name="long")
    assert "update" in cli("audit", "short", "--json").data["unmeasured"]
    assert "entropy" in cli("audit", "short", "--json").data["unmeasured"]
    assert "update" in cli("audit", "long", "--json").data["fine"]


def test_what_ended_a_run_is_said_beside_what_its_alerts_say(cli: Cli, store: Path) -> None:
    failed = ev.RunFailed(step=20, error="EngineError", message="no memory")
    run_with(store, [alert(19, "no_signal", "warning"), failed])
    lines = cli("audit", "otter").out.splitlines()
    failure = "The run failed: EngineError: no memory."
    assert lines[0].endswith("failed, step 20 of 10, broken")
    assert lines[1].startswith(f"error    process, step 20: {failure} Correct")
    assert lines[2].startswith("warning  signal")


def test_a_run_whose_process_is_gone_says_so_although_its_reward_is_hacked(
    cli: Cli, store: Path
) -> None:
    recorded(store, started(), finished(1), alert(1, "format_hacking", "warning"))
    sql(
        store,
        "UPDATE run SET status = 'running'",
        "UPDATE attempt SET ended_at = NULL, pid_start = 'gone'",
    )
    rules = {item["rule"] for item in cli("audit", "@last", "--json").data["findings"]}
    assert rules == {"lost", "format_hacking"}


def test_wait_waits_for_a_run_that_had_ended_and_is_resumed(
    cli: Cli, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_with(store, ())  # of 20 steps
    resumed: list[Recorder] = []

    def resume() -> None:
        recorder = resume_run(store, "otter", from_step=20)
        resumed.append(recorder)
        put_all(recorder, started(20), finished(21))
        assert recorder.flush(PATIENCE)

    between_looks(monkeypatch, resume)
    assert cli("wait", "otter", "--until", "step > 20").code == exit_codes.OK
    resumed[0].close()
