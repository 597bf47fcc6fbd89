"""The verdict on a run, from facts as they are recorded of sick and healthy runs."""

from collections.abc import Sequence

import pytest

from grpo_engine.alerts.change import MetricChange
from grpo_engine.run_health import Health, Judge, RunFacts, Word, evaluations, health

BY_ANSWER = Judge(function="numeric_answer")
SAID = "The model is rewarded for something other than right answers."


def facts(
    *accuracies: float,
    alerts: Sequence[str] = (),
    step: int = 60,
    active: bool = False,
    answers: int = 128,
    judge: Judge = BY_ANSWER,
    training: MetricChange | None = None,
    lately: MetricChange | None = None,
    error: str = "",
) -> RunFacts:
    """A run with held-out accuracies at equal distances, the last one at its end."""
    apart = step // max(1, len(accuracies) - 1)
    points = [(apart * index, value) for index, value in enumerate(accuracies)]
    return RunFacts(
        step=step,
        active=active,
        error=error,
        alerts=dict.fromkeys(alerts, SAID),
        held_out=evaluations(points, answers),
        judge=judge,
        training=training,
        lately=lately,
    )


ROSE = MetricChange(before=0.3, after=0.5, error=0.02)
STAYED = MetricChange(before=0.3, after=0.33, error=0.02)
# Numbers and alerts at the end of runs of `benchmarks.alerts`, and of runs that have just begun.
CASES: tuple[tuple[str, RunFacts, Word], ...] = (
    ("healthy", facts(0.30, 0.60, 0.88), "learning"),
    # .80 to .88 of 128 answers each is chance: .08 < 2 sqrt(.8*.2/128 + .88*.12/128) = .091
    ("on its plateau", facts(0.30, 0.80, 0.88), "learned"),
    ("on its plateau, by training too", facts(0.30, 0.80, 0.88, lately=STAYED), "learned"),
    ("rises in training alone", facts(0.30, 0.80, 0.88, lately=ROSE), "learning"),
    (
        "rises in training alone, and the alert says so",
        facts(0.30, 0.80, 0.80, lately=ROSE, alerts=("held_out_flat",)),
        "learned",
    ),
    # the last two together, .84 of 256, rose from .75: .09 > 2 sqrt(.75*.25/128 + .84*.16/256)
    ("rises slowly", facts(0.30, 0.50, 0.75, 0.82, 0.86), "learning"),
    ("measured at the ends, and flat in training", facts(0.30, 0.88, lately=STAYED), "learned"),
    ("measured at the ends alone", facts(0.30, 0.88), "learning"),
    ("early", facts(0.30, 0.80, 0.84, step=18, active=True), "learning"),
    ("length alone", facts(0.30, 0.01, alerts=("format_hacking", "no_signal")), "hacked?"),
    ("repeated tags", facts(0.30, 0.0, alerts=("kl_above_limit", "format_hacking")), "hacked?"),
    ("KL explosion", facts(0.30, 0.06, alerts=("format_hacking", "reward_fell")), "broken"),
    ("rate x 30", facts(0.30, 0.0, alerts=("kl_above_limit", "held_out_fell")), "broken"),
    ("falls after its best", facts(0.30, 0.88, 0.45), "broken"),
    ("falls below its start", facts(0.30, 0.14), "broken"),
    ("failing reward", facts(0.30, 0.60, alerts=("reward_exception",)), "broken"),
    ("failed", facts(0.30, 0.60, error="out of memory"), "broken"),
    ("far from its reference", facts(0.30, 0.60, alerts=("kl_above_limit",)), "unstable"),
    ("rate / 1000", facts(0.30, 0.30, alerts=("clip_never",)), "flat"),
    ("beta 50", facts(0.30, 0.30, alerts=("nothing_learned",)), "flat"),
    ("a gain within noise", facts(0.30, 0.38), "flat"),
    ("the same gain on many problems", facts(0.30, 0.38, answers=2000), "learning"),
    ("right from the start", facts(0.97, 0.98), "flat"),
    ("slow machine", facts(0.30, 0.60, alerts=("busy_machine", "reward_slow")), "learning"),
    ("own reward", facts(0.30, 0.90, judge=Judge(shared="startswith")), "unjudged"),
    (
        "own reward, before training",
        facts(0.30, step=0, active=True, judge=Judge(shared="mine")),
        "too early",
    ),
    ("own reward fell", facts(0.90, 0.30, judge=Judge(shared="mine")), "broken"),
    ("not measured", facts(), "unjudged"),
    ("begun", facts(0.30, step=0, active=True), "too early"),
    ("few steps", facts(0.30, step=12, active=True), "too early"),
    ("few steps and already better", facts(0.30, 0.60, step=12, active=True), "learning"),
    (
        "measured before training only",
        facts(0.30, step=40, active=True, training=ROSE, lately=ROSE),
        "learning",
    ),
    (
        "measured before training only, and on its plateau",
        facts(0.30, step=40, active=True, training=ROSE, lately=STAYED),
        "learned",
    ),
    ("no gain so far", facts(0.30, step=40, active=True, training=STAYED), "flat"),
)


@pytest.mark.parametrize(("run", "word"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_a_run_has_the_word_that_its_alerts_and_held_out_accuracy_deserve(
    run: RunFacts, word: Word
) -> None:
    assert health(run).word == word


def test_the_reason_has_the_numbers_or_the_alert() -> None:
    assert health(facts(0.30, 0.88)).reason.startswith(
        "Held-out accuracy rose from 30% at step 0 to 88% at step 60"
    )
    assert health(facts(0.30, 0.80, 0.88)).reason == (
        "Held-out accuracy rose from 30% at step 0 to 88% at step 60, but no further since step 30."
    )
    assert health(facts(0.30, 0.01, alerts=("format_hacking",))).reason == SAID
    assert health(facts(0.30, 0.30, alerts=("nothing_learned",))).reason.endswith(SAID)
    assert "before training" in health(facts(0.97, 0.98)).reason
    shared: Health = health(facts(0.3, 0.9, judge=Judge(shared="startswith")))
    assert shared.reason.startswith(
        "Cannot be judged: the held-out numbers use the same reward, startswith, so they rise also"
    )
    ends = health(facts(0.30, 0.88, lately=STAYED)).reason  # nothing was measured at step 30
    assert ends == (
        "Held-out accuracy rose from 30% at step 0 to 88% at step 60, but right answers in "
        "training rose no further since step 30."
    )
    alone = health(facts(judge=Judge(shared="mine")))  # no held-out problem was tried
    assert alone.reason.startswith("Cannot be judged: there is only the reward, mine, which rises")
    assert health(facts()).reason.startswith("Cannot be judged: held-out accuracy was never")
    never = health(facts(step=40, training=ROSE)).reason
    assert never.endswith("Held-out accuracy was never measured.")


@pytest.mark.parametrize(
    ("rule", "weights", "trained", "measured", "function", "shared"),
    [
        ("", {"numeric_answer": 1.0, "length": 1.0}, "numeric_answer length", "",
         "numeric_answer", ""),
        ("", {}, "numeric_answer", "", "numeric_answer", ""),  # the task's own
        # the user's reward decides, since it is named as an accuracy, or in the settings
        ("", {"my.py:accuracy": 1.0}, "accuracy", "accuracy", "accuracy", "accuracy"),
        ("my.py:startswith >= 1", {"my.py:startswith": 1.0}, "startswith", "startswith",
         "startswith", "startswith"),
        # nothing else says what is right
        ("", {"my.py:startswith": 1.0, "length": 0.0}, "startswith length", "startswith length",
         "", "startswith"),
        # the task's function measures beside it, or one of weight 0 does
        ("", {"my.py:startswith": 1.0}, "startswith", "startswith exact_answer", "", ""),
        ("exact", {"my.py:exact": 0.0, "length": 1.0}, "exact length", "exact length", "exact", ""),
        ("gone", {"numeric_answer": 1.0}, "numeric_answer", "numeric_answer numbers", "", ""),
    ],
)  # fmt: skip
def test_held_out_numbers_count_unless_the_users_reward_alone_decides(
    rule: str, weights: dict[str, float], trained: str, measured: str, function: str, shared: str
) -> None:
    settings = {
        "evaluation.accuracy": rule,
        "rewards.functions": [*weights],
        "rewards.weights": [*weights.values()],
    }
    metrics = [f"rewards/{name}/mean" for name in trained.split()]
    metrics += [f"eval/rewards/{name}" for name in measured.split()]
    judge = Judge.of(settings, metrics)
    assert judge == Judge(function=function, shared=shared)


def test_another_trainer_says_itself_which_held_out_answers_are_right() -> None:
    metrics = ("rewards/mine/mean", "eval/rewards/mine", "eval/accuracy")
    assert Judge.of({"trainer.name": "my loop"}, metrics) == Judge()
    assert Judge.of({"trainer.name": "my loop"}, metrics[:2]) == Judge(shared="mine")
    assert Judge.of({}, metrics) == Judge(shared="mine")
