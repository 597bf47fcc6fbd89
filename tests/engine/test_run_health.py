"""The verdict on a run, from facts as they are recorded of sick and healthy runs."""

from collections.abc import Sequence

import pytest

from grpo_engine.alerts.change import Evaluation, MetricChange
from grpo_engine.run_health import (
    Evidence,
    Health,
    Judge,
    Label,
    changes_in_training,
    collapse_of,
    evaluations,
    falls_of,
    health,
)

BY_ANSWER = Judge(function="numeric_answer")
SAID = "The model is rewarded for something other than right answers."


def evidence(
    *accuracies: float,
    alerts: Sequence[str] = (),
    step: int = 60,
    active: bool = False,
    answers: int = 128,
    judge: Judge = BY_ANSWER,
    training: MetricChange | None = None,
    lately: MetricChange | None = None,
    error: str = "",
) -> Evidence:
    """A run with held-out accuracies at equal distances, the last one at its end."""
    apart = step // max(1, len(accuracies) - 1)
    points = [(apart * index, value) for index, value in enumerate(accuracies)]
    return Evidence(
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
CASES: tuple[tuple[str, Evidence, Label], ...] = (
    ("healthy", evidence(0.30, 0.60, 0.88), "learning"),
    # .80 to .88 of 128 answers each is chance: .08 < 2 sqrt(.8*.2/128 + .88*.12/128) = .091
    ("on its plateau", evidence(0.30, 0.80, 0.88), "learned"),
    ("on its plateau, by training too", evidence(0.30, 0.80, 0.88, lately=STAYED), "learned"),
    ("rises in training alone", evidence(0.30, 0.80, 0.88, lately=ROSE), "learning"),
    (
        "rises in training alone, and the alert says so",
        evidence(0.30, 0.80, 0.80, lately=ROSE, alerts=("held_out_flat",)),
        "learned",
    ),
    # the last two together, .84 of 256, rose from .75: .09 > 2 sqrt(.75*.25/128 + .84*.16/256)
    ("rises slowly", evidence(0.30, 0.50, 0.75, 0.82, 0.86), "learning"),
    ("measured at the ends, and flat in training", evidence(0.30, 0.88, lately=STAYED), "learned"),
    ("measured at the ends alone", evidence(0.30, 0.88), "learning"),
    ("early", evidence(0.30, 0.80, 0.84, step=18, active=True), "learning"),
    ("length alone", evidence(0.30, 0.01, alerts=("format_hacking", "no_signal")), "hacked?"),
    ("repeated tags", evidence(0.30, 0.0, alerts=("kl_above_limit", "format_hacking")), "hacked?"),
    ("KL explosion", evidence(0.30, 0.06, alerts=("format_hacking", "reward_fell")), "broken"),
    ("rate x 30", evidence(0.30, 0.0, alerts=("kl_above_limit", "held_out_fell")), "broken"),
    ("falls after its best", evidence(0.30, 0.88, 0.45), "broken"),
    ("falls below its start", evidence(0.30, 0.14), "broken"),
    ("failing reward", evidence(0.30, 0.60, alerts=("reward_exception",)), "broken"),
    ("failed", evidence(0.30, 0.60, error="out of memory"), "broken"),
    ("far from its reference", evidence(0.30, 0.60, alerts=("kl_above_limit",)), "unstable"),
    ("rate / 1000", evidence(0.30, 0.30, alerts=("clip_never",)), "flat"),
    ("beta 50", evidence(0.30, 0.30, alerts=("nothing_learned",)), "flat"),
    ("a gain within noise", evidence(0.30, 0.38), "flat"),
    ("the same gain on many problems", evidence(0.30, 0.38, answers=2000), "learning"),
    ("right from the start", evidence(0.97, 0.98), "flat"),
    ("slow machine", evidence(0.30, 0.60, alerts=("busy_machine", "reward_slow")), "learning"),
    ("own reward", evidence(0.30, 0.90, judge=Judge(shared="startswith")), "unjudged"),
    (
        "own reward, before training",
        evidence(0.30, step=0, active=True, judge=Judge(shared="mine")),
        "too early",
    ),
    ("own reward fell", evidence(0.90, 0.30, judge=Judge(shared="mine")), "broken"),
    ("not measured", evidence(), "unjudged"),
    ("begun", evidence(0.30, step=0, active=True), "too early"),
    ("few steps", evidence(0.30, step=12, active=True), "too early"),
    ("few steps and already better", evidence(0.30, 0.60, step=12, active=True), "learning"),
    (
        "measured before training only",
        evidence(0.30, step=40, active=True, training=ROSE, lately=ROSE),
        "learning",
    ),
    (
        "measured before training only, and on its plateau",
        evidence(0.30, step=40, active=True, training=ROSE, lately=STAYED),
        "slowing",
    ),
    (
        "measured before training only, and ended on its plateau",
        evidence(0.30, step=40, training=ROSE, lately=STAYED),
        "learned",
    ),
    (
        # .08 in the second half of the steps so far is more than half of .12 in the first
        "rises at nearly the same pace, within noise",
        evidence(
            0.30,
            step=40,
            active=True,
            training=ROSE,
            lately=MetricChange(before=0.42, after=0.5, error=0.05),
        ),
        "learning",
    ),
    ("no gain so far", evidence(0.30, step=40, active=True, training=STAYED), "flat"),
)


@pytest.mark.parametrize(("run", "word"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_a_run_has_the_word_that_its_alerts_and_held_out_accuracy_deserve(
    run: Evidence, word: Label
) -> None:
    assert health(run).label == word


def evaluated(
    *accuracies: float, answers: int = 512, rewards: Sequence[float] = (), half: float = 0.02
) -> tuple[Evaluation, ...]:
    """Evaluations every ten steps, with rewards whose 95 % intervals have this half width."""
    ends = (rewards, [mean - half for mean in rewards], [mean + half for mean in rewards])
    points = [[(10 * index, value) for index, value in enumerate(row)] for row in ends]
    return evaluations([(10 * i, share) for i, share in enumerate(accuracies)], answers, *points)


def test_a_fall_since_the_best_is_likely_in_all_kinds_of_answers_or_sure_in_one() -> None:
    # of 512 each, .469 to .393 is .076 > 2 sqrt(.469*.531/512 + .393*.607/512) = .062
    sampled, level = evaluated(0.312, 0.400, 0.469, 0.393), evaluated(0.312, 0.400, 0.469, 0.460)
    [fall] = falls_of(sampled)
    assert (fall.best.step, fall.last.step) == (20, 30)
    assert falls_of(sampled, level) == []
    assert falls_of(level) == []
    # .48 to .295 is .185 > 4 sqrt(.48*.52/512 + .295*.705/512) = .12
    greedy = evaluated(0.119, 0.346, 0.480, 0.295)
    assert len(falls_of(sampled, greedy)) == 2
    [fall] = falls_of(level, greedy)
    assert str(fall) == (
        "Held-out accuracy of greedy answers fell from 48% at step 20 to 30% at step 30"
    )


def test_a_run_whose_right_answers_fall_while_the_held_out_reward_rises_is_hacked() -> None:
    def verdict(*rewards: float, judge: Judge = BY_ANSWER) -> Health:
        held_out = evaluated(0.312, 0.400, 0.469, 0.393, rewards=rewards)
        return health(Evidence(step=30, active=False, held_out=held_out, judge=judge))

    # .045 to .119 is .074 > 2 sqrt(2) .02/1.96 = .029, and .045 to .065 is not
    assert verdict(0.008, 0.018, 0.045, 0.119) == Health(
        label="hacked?",
        reason="Held-out accuracy fell from 47% at step 20 to 39% at step 30 while the held-out "
        "reward rose from .045 to .12: the model is rewarded for something other than right "
        "answers.",
    )
    for rewards in ((), (0.008, 0.018, 0.045, 0.065)):
        assert verdict(*rewards) == Health(
            label="learned",
            reason="Held-out accuracy rose from 31% at step 0 to 39% at step 30, but was 47% at "
            "step 20, a fall that chance does not explain.",
        )
    # where the reward decides which answers are right, nothing is known
    assert verdict(0.0, 0.0, 0.0, 0.9, judge=Judge(shared="mine")).label == "unjudged"


def test_a_collapse_shows_in_the_answers_of_training_after_three_steps() -> None:
    shares = [(1, 0.383), (2, 0.078), (3, 0.023), (4, 0.0)]
    assert collapse_of(shares[:3], 3, 16) is None
    # .034 of 48 after .383 of 16: .349 > 2 sqrt(.396*.604/16 + .053*.947/48) = .25
    change = collapse_of(shares, 4, 16)
    assert change is not None
    verdict = health(Evidence(step=4, active=True, judge=BY_ANSWER, collapse=change))
    assert verdict == Health(
        label="broken",
        reason="Right answers in training fell from 38% in the first step to 3.4% in the steps "
        "since 2: the model gets worse at the task.",
    )
    # held-out answers that were tried at the end decide
    risen, earlier = evaluated(0.3, 0.6), evaluated(0.3, 0.3)
    for held_out, step, word in ((risen, 12, "learning"), (earlier, 17, "broken")):
        run = Evidence(step=step, active=True, held_out=held_out, collapse=change)
        assert health(run).label == word
    assert collapse_of([(1, 0.383), (2, 0.2), (3, 0.25), (4, 0.22)], 4, 16) is None  # chance
    assert collapse_of([(step, value + 2) for step, value in shares], 4, 16) is None  # no share
    assert collapse_of(shares, 4, None) is None
    recovered = [(5, 0.4), (6, 0.4), (7, 0.4), (8, 0.4), (9, 0.4)]
    assert collapse_of(shares + recovered, 9, 16) is None


def test_what_training_says_changes_with_every_ten_steps_only() -> None:
    points = [(step, 0.3 + 0.2 * (step % 3)) for step in range(1, 60)]
    assert len({changes_in_training(points[:step], step) for step in range(50, 60)}) == 1
    assert changes_in_training(points[:19], 19) == (None, None)


def test_a_step_is_named_only_if_something_was_measured_there() -> None:
    both = evidence(0.30, 0.88, lately=STAYED)
    assert health(both).reason == (
        "Held-out accuracy rose from 30% at step 0 to 88% at step 60; in the second half of the "
        "steps, right answers in training went from 30% to 33%, which chance alone can explain."
    )
    once = evidence(0.30, step=44, active=True, training=ROSE, lately=STAYED)
    assert health(once).reason == (
        "Right answers in training rose from 30% in steps 1 to 10 to 50% in steps 31 to 40, but in "
        "the second half of the steps so far only from 30% to 33%, which chance alone can explain. "
        "Held-out accuracy was measured once."
    )
    fell = MetricChange(before=0.5, after=0.3, error=0.02)
    worse = health(evidence(0.30, step=40, training=fell, lately=fell))
    assert worse.label == "broken"
    assert worse.reason.startswith("Right answers in training fell from 50% in steps 1 to 10")


def test_the_reason_has_the_numbers_or_the_alert() -> None:
    assert health(evidence(0.30, 0.88)).reason.startswith(
        "Held-out accuracy rose from 30% at step 0 to 88% at step 60"
    )
    assert health(evidence(0.30, 0.80, 0.88)).reason == (
        "Held-out accuracy rose from 30% at step 0 to 88% at step 60, but since step 30 only from "
        "80% to 88%, which chance alone can explain."
    )
    assert health(evidence(0.30, 0.88, 0.88)).reason == (
        "Held-out accuracy rose from 30% at step 0 to 88% at step 60, but no further since step 30."
    )
    assert health(evidence(0.30, 0.01, alerts=("format_hacking",))).reason == SAID
    assert health(evidence(0.30, 0.30, alerts=("nothing_learned",))).reason.endswith(SAID)
    assert "before training" in health(evidence(0.97, 0.98)).reason
    shared: Health = health(evidence(0.3, 0.9, judge=Judge(shared="startswith")))
    assert shared.reason.startswith(
        "Cannot be judged: the held-out numbers use the same reward, startswith, so they rise also"
    )
    alone = health(evidence(judge=Judge(shared="mine")))  # no held-out problem was tried
    assert alone.reason.startswith("Cannot be judged: there is only the reward, mine, which rises")
    assert health(evidence()).reason.startswith("Cannot be judged: held-out accuracy was never")
    never = health(evidence(step=40, training=ROSE)).reason
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
