"""Held-out accuracy: measured whatever the rewards are, and absent where nothing says it."""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.events import EvaluationFinished, Event, GroupScored, RunFailed, total_reward
from tests.engine.runs import events_of, of, settings

ONCE = {"before_and_after": True, "problems": 6, "pinned": 1, "samples": 2}


def evaluated(config: Any, folder: Path) -> tuple[list[Event], list[EvaluationFinished]]:
    events = events_of(config, folder)
    assert not isinstance(events[-1], RunFailed), events[-1]
    return events, of(EvaluationFinished, events)


@pytest.mark.slow
def test_the_tasks_own_accuracy_is_measured_beside_other_rewards(
    world: Path, tmp_path: Path
) -> None:
    task = {"name": "countdown", "held_out_size": 6}
    rewards = {"functions": ["format_parts"]}
    events, found = evaluated(
        settings(world, steps=1, task=task, rewards=rewards, evaluation=ONCE), tmp_path
    )
    groups = [event.group for event in of(GroupScored, events)]
    names = {g.origin: [(r.name, r.weight) for r in g.rollouts[0].rewards] for g in groups}
    assert names == {
        "train": [("format_parts", 1)],
        "pinned": [("format_parts", 1)],
        "eval": [("format_parts", 1), ("countdown", 0)],
    }
    for event in found:
        own = [
            g
            for g in groups
            if g.origin == "eval" and (g.sampling["temperature"] == 0) == (event.mode == "greedy")
        ]
        right = {
            g.example_key: sum((r.rewards[1].value or 0) >= 1 for r in g.rollouts) for g in own
        }
        assert event.metrics["eval/accuracy"] == event.metrics["eval/rewards/countdown"]
        assert all(row.correct == right[row.example_key] for row in event.rows)
        assert event.metrics["eval/reward"] == pytest.approx(
            event.metrics["eval/rewards/format_parts"]
        )
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        assert rollout.reward == total_reward([rollout.rewards[0].value], [1.0])


def test_a_measured_function_does_not_make_up_a_reward(world: Path, tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text(
        "def none(completions, **_):\n    return [None] * len(completions)\n"
    )
    config = settings(
        world,
        steps=1,
        task={"name": "countdown", "held_out_size": 6},
        evaluation=ONCE,
        rewards={"functions": [f"{tmp_path}/none.py:none"]},
    )
    events, found = evaluated(config, tmp_path / "run")
    assert all("eval/accuracy" in event.metrics for event in found)
    groups = [event.group for event in of(GroupScored, events)]
    assert {r.reward for group in groups for r in group.rollouts} == {None}


def test_accuracy_is_absent_where_nothing_says_what_is_right(world: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"say {n}: "} for n in range(20)]
    (tmp_path / "plain.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = settings(
        world,
        steps=1,
        task={"name": f"{tmp_path}/plain.jsonl", "held_out_size": 6},
        rewards={"functions": [f"{world}/rewards.py:letters"]},
        evaluation=ONCE,
    )
    _, found = evaluated(config, tmp_path / "run")
    assert {row.correct for event in found for row in event.rows} == {None}
    assert not [name for event in found for name in event.metrics if "accuracy" in name]


def test_a_problem_that_the_function_could_not_judge_does_not_count_as_wrong(
    world: Path, tmp_path: Path
) -> None:
    (tmp_path / "judge.py").write_text(
        "def accuracy(completions, answer, **_):\n"
        "    return [None if int(a) % 2 else 1.0 for a in answer]\n"
    )
    config = settings(
        world, steps=1, rewards={"functions": [f"{tmp_path}/judge.py:accuracy"]}, evaluation=ONCE
    )
    _, found = evaluated(config, tmp_path / "run")
    for event in found:
        assert {row.correct for row in event.rows} == {None, event.samples}
        assert event.metrics["eval/accuracy"] == 1
