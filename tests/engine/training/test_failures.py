"""Answers on which a reward function fails: out of their group, of means, and counted."""

import json
from collections.abc import Iterator, Sequence
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.config.recipes import RECIPES, recipe
from grpo_engine.config.settings import RunConfig
from grpo_engine.events import (
    CheckpointSaved,
    EvaluationFinished,
    Event,
    Group,
    GroupScored,
    NoteWritten,
    RewardValue,
    RunFailed,
    StepFinished,
    total_reward,
)
from grpo_engine.rewards.right import Right
from grpo_engine.rewards.scoring import Scores
from grpo_engine.training.advantages import advantages_read_tokens, step_advantages
from grpo_engine.training.samples import OldScores, gather
from grpo_engine.training.sampling import alike_in
from tests.engine.rewards.judges import serving, write_rubric
from tests.engine.runs import completed, events_of, groups_of, of, settings
from tests.engine.training.builders import sampled, trajectory

FAILED = "failed"
Cell = float | str | None  # a score, FAILED, or None where the function does not apply
WEIGHTS = (1.0, 2.0)  # of the functions f and judge


def value_of(name: str, cell: Cell, weight: float) -> RewardValue:
    failed = cell == FAILED
    value = None if failed or cell is None else float(cell)
    return RewardValue(name=name, value=value, weight=weight, failed=failed)


def scores_of(rows: Sequence[tuple[Cell, Cell]]) -> Scores:
    return Scores(rewards=tuple(tuple(map(value_of, ("f", "judge"), row, WEIGHTS)) for row in rows))


def advantages_of(name: str, groups: Sequence[Sequence[tuple[Cell, Cell]]]) -> list[float]:
    chosen = recipe(name, beta=0.0)
    sampled_groups = [
        sampled(index, [trajectory(index, n) for n in range(len(rows))], scores_of(rows))
        for index, rows in enumerate(groups)
        if rows
    ]
    samples = gather(sampled_groups, chosen)
    values: Any = step_advantages(samples, OldScores(), chosen, 1).values.tolist()
    return list(values)


# -- by hand ------------------------------------------------------------------------------------


def test_an_answer_with_a_failed_function_is_out_of_its_group() -> None:
    rows: list[tuple[Cell, Cell]] = [(1, 1), (0, 0), (1, FAILED), (0.5, None)]
    # r = f + 2 judge where both apply: 3, 0, none, .5; the last is f alone, as judge does not apply
    assert scores_of(rows).totals() == [3, 0, None, 0.5]
    # mean 3.5/3 = 1.16667; deviations 1.83333, -1.16667, -.66667; their squares sum to 5.16667;
    # std sqrt(5.16667/2) = 1.60728
    expected = [1.83333 / 1.60738, -1.16667 / 1.60738, 0, -0.66667 / 1.60738]
    assert advantages_of("grpo", [rows]) == pytest.approx(expected, abs=1e-4)


def test_a_failure_that_counts_as_zero_is_a_score() -> None:
    zero = RewardValue(name="judge", value=0.0, weight=2.0, failed=True)
    row = (RewardValue(name="f", value=1.0, weight=1.0), zero)
    assert Scores(rewards=(row,)).totals() == [1.0]


def test_answers_that_the_accuracy_function_failed_on_are_neither_right_nor_wrong() -> None:
    right = Right("f")
    # right, wrong, not judged, and one that it does not apply to, which is not right
    assert right.count(scores_of([(1, 1), (0, 1), (FAILED, 1), (None, 1)])) == (1, 3)
    assert right.count(scores_of([(FAILED, 1), (FAILED, 0)])) is None
    # a judge's failure is not one of the function that says what is right
    assert right.count(scores_of([(1, FAILED), (0, FAILED)])) == (1, 2)


def test_a_refill_does_not_keep_a_group_for_an_answer_that_is_left_out() -> None:
    rows: list[tuple[Cell, Cell]] = [(1, 1), (1, 1), (0, FAILED)]
    assert alike_in(scores_of(rows), "accuracy", "f") == "f"
    assert alike_in(scores_of([*rows, (0, 1)]), "accuracy", "f") == ""


CELLS = st.sampled_from([0.0, 0.25, 1.0, None, FAILED])
ROWS = st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=5)
# those whose advantages are made of rewards alone
BY_REWARDS = [
    name
    for name, row in RECIPES.items()
    if not advantages_read_tokens(recipe(name, beta=0.0))
    and row.signal != "process"
    and row.reads_rewards
]


@given(st.sampled_from(BY_REWARDS), st.lists(ROWS, min_size=1, max_size=3))
def test_in_every_recipe_the_others_get_what_they_would_without_the_failed_answers(
    name: str, groups: list[list[tuple[Cell, Cell]]]
) -> None:
    everyone = advantages_of(name, groups)
    kept = [[row for row in rows if FAILED not in row] for rows in groups]
    flat = [row for rows in groups for row in rows]
    assert [a for a, row in zip(everyone, flat, strict=True) if FAILED in row] == pytest.approx(
        [0.0] * sum(FAILED in row for row in flat)
    )
    others = [a for a, row in zip(everyone, flat, strict=True) if FAILED not in row]
    if others:
        assert others == pytest.approx(advantages_of(name, kept), abs=1e-6)


# -- whole runs ---------------------------------------------------------------------------------

# letters as in the world's rewards, and one that fails where a fault is put
FAULTY = """
import time

def letters(completions, **_):
    return [sum(c.isalpha() for c in text) / 12 for text in completions]

def accuracy(completions, trainer_state, answer, **_):
    step, scores = trainer_state.global_step + 1, []
    for text, number in zip(completions, answer):
        total = sum(map(ord, text))
        {fault}
        scores.append(float(total % 2 == 0))
    return scores
"""

EVALUATED = {
    "every": 1,
    "problems": 6,
    "samples": 3,
    "greedy": False,
    "pinned": 0,
    "before_and_after": True,
}
SPLIT = {
    # every third step's calls, in training and in evaluation
    "timeout": "time.sleep(60 * (step % 3 == 2))",
    # a third of the held-out answers, after the first step, in which it would end the run
    "exception": "if number.startswith('held') and step > 1: assert total % 3",
}


def faulty(world: Path, folder: Path, fault: str, **changes: Any) -> RunConfig:
    file = folder / "faulty.py"
    file.write_text(FAULTY.format(fault=fault))
    data = folder / "data"
    data.mkdir(exist_ok=True)
    for split, word in (("train", "train"), ("valid", "held")):
        rows = [{"prompt": f"{word} {n}: ", "answer": f"{word}-{n}"} for n in range(12)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (data / f"{split}.jsonl").write_text(text)
    rewards = {
        "functions": [f"{file}:letters", f"{file}:accuracy"],
        "time_limit": 3.0,
        **changes.pop("rewards", {}),
    }
    return settings(
        world,
        task={"name": str(data)},
        rewards=rewards,
        evaluation={**EVALUATED, **changes.pop("evaluation", {})},
        **changes,
    )


def by_hand(groups: Sequence[Group]) -> dict[str, float]:
    """The means of an evaluation from the scores of its answers, failed functions left out."""
    means, shares, answers, judged = [], [], 0, 0
    for group in groups:
        rows = [{r.name: r for r in item.rewards} for item in group.rollouts]
        totals = [
            total_reward([r.value for r in row.values()], [r.weight for r in row.values()])
            for row in rows
            if not any(r.failed for r in row.values())
        ]
        right = [row["accuracy"].value == 1 for row in rows if not row["accuracy"].failed]
        means += [fmean(total or 0.0 for total in totals)] if totals else []
        shares += [fmean(right)] if right else []
        answers, judged = answers + len(totals), judged + len(right)
    return {
        "eval/reward": fmean(means) if means else nan,
        "eval/scored/reward": answers,
        **({"eval/accuracy": fmean(shares), "eval/scored/accuracy": judged} if shares else {}),
    }


def same(left: float, right: float) -> bool:
    return (isnan(left) and isnan(right)) or left == pytest.approx(right)


def evaluations(events: Sequence[Event]) -> Iterator[tuple[EvaluationFinished, dict[str, float]]]:
    """Each evaluation beside what it is by hand."""
    for event in events:
        if isinstance(event, EvaluationFinished):
            yield event, by_hand(groups_of((e for e in events if e.step == event.step), "eval"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPLIT)
def test_evaluations_best_by_and_stop_when_are_of_the_answers_that_have_a_reward(
    world: Path, tmp_path: Path, kind: str
) -> None:
    # after a time-out nothing says which answers are right, so there is no accuracy at all
    judged_by = {"timeout": "eval/accuracy", "exception": "eval/reward"}[kind]
    changes = {"checkpoint": {"every": 0, "best_by": judged_by}, "steps": 5}
    events = completed(faulty(world, tmp_path, SPLIT[kind], **changes), tmp_path / "run")
    failed, values = 0, dict[int, float]()
    for event, expected in evaluations(events):
        for name, value in expected.items():
            assert same(event.metrics[name], value), (event.step, name)
        assert ("eval/accuracy" in event.metrics) == ("eval/accuracy" in expected)
        failed += int(event.metrics.get("eval/failed/accuracy", 0))
        values[event.step] = event.metrics.get(judged_by, nan)
        for row, group in zip(
            event.rows, groups_of((e for e in events if e.step == event.step), "eval"), strict=True
        ):
            judged = [item.rewards[1] for item in group.rollouts if not item.rewards[1].failed]
            right = sum(reward.value == 1 for reward in judged) if judged else None
            assert (row.correct, row.samples) == (right, len(judged) if judged else 3)
    answers = 18 * sum(isinstance(event, EvaluationFinished) for event in events)
    assert 0 < failed < answers / 2
    # the scores of the other function are kept, and the answer has no total
    groups = [e.group for e in of(GroupScored, events)]
    for item in (item for group in groups for item in group.rollouts):
        letters, accuracy = item.rewards
        assert letters.value is not None
        assert (accuracy.value is None) == accuracy.failed == (item.reward is None)
        assert not (accuracy.failed and item.advantage)
    trained = {e.step: e.metrics for e in of(StepFinished, events)}
    counts = [metrics.get("rewards/accuracy/failed", 0) for metrics in trained.values()]
    assert counts == ([0, 8, 0, 0, 8] if kind == "timeout" else [0] * 5)
    known = {step: value for step, value in values.items() if step and not isnan(value)}
    (best,) = [e.step for e in of(CheckpointSaved, events) if e.best][-1:]
    assert best == max(known, key=lambda step: known[step])

    limit = sorted(known.values())[-2]  # the first step that reaches it is where the run ends
    rule = {
        **changes,
        "stop_when": f"{judged_by} >= {limit:.17g}",
        "evaluation": {"before_and_after": False},
    }
    ended = events_of(faulty(world, tmp_path, SPLIT[kind], **rule), tmp_path / "ended")
    assert ended[-1].step == min(step for step in known if known[step] >= limit)


@pytest.mark.slow
def test_failures_count_as_zero_or_end_the_run_if_the_settings_say_so(
    world: Path, tmp_path: Path
) -> None:
    fault = "if step > 1: assert total % 3"
    zero = completed(
        faulty(world, tmp_path, fault, rewards={"on_failure": "zero"}), tmp_path / "zero"
    )
    failed = [
        item for e in of(GroupScored, zero) for item in e.group.rollouts if item.rewards[1].failed
    ]
    assert failed
    for item in failed:
        assert (item.rewards[1].value, item.reward) == (0.0, item.rewards[0].value)
    last = of(EvaluationFinished, zero)[-1]
    assert last.metrics["eval/scored/reward"] == 18
    assert last.metrics["eval/failed/accuracy"] > 0

    stop = faulty(world, tmp_path, fault, rewards={"on_failure": "stop"})
    end = events_of(stop, tmp_path / "stop")[-1]
    assert isinstance(end, RunFailed)
    assert (end.error, end.step) == ("RewardError", 2)
    assert "rewards.on_failure is stop" in end.message
    assert "accuracy" in end.message


@pytest.mark.slow
def test_no_function_that_scored_is_said_to_have_given_none(world: Path, tmp_path: Path) -> None:
    with serving(lambda _: {"error": "overloaded"}) as script:
        rubric = write_rubric(tmp_path / "r.yaml", script.url, retries=0)
        config = settings(
            world,
            steps=3,
            evaluation={"pinned": 0},
            rewards={"functions": [rubric, f"{world}/rewards.py:letters"]},
        )
        events = events_of(config, tmp_path / "run")
    notes = [e.text for e in of(NoteWritten, events) if "no effect" in e.text]
    assert [note.partition(",")[0] for note in notes] == [
        "reward r scored no answer of the first 3 steps"
    ]
    steps = [e.metrics for e in of(StepFinished, events)]
    assert all("rewards/letters/mean" in step and "reward" not in step for step in steps)
