"""Whole runs with failing rewards: they continue, or end with a clear, resumable error."""

from pathlib import Path

import pytest

from grpo_engine.events import (
    AlertRaised,
    Event,
    GroupScored,
    RunFailed,
    RunFinished,
    StepFinished,
)
from grpo_engine.rewards.client import PATIENCE
from tests.engine.runs import events_of, groups_of, of, settings

FAULT = """
import os
import time

def good(completions, **_):
    return [float(len(set(text))) for text in completions]

def odd(completions, trainer_state, **_):
    scores = [float(len(set(text)) % 3) for text in completions]
    if trainer_state.global_step == 1:
        {fault}
    return scores
"""
LIMIT = 2.0  # seconds for the other functions to finish on a busy machine
FAULTS = {
    "timeout": "time.sleep(60)",
    "crash": "os._exit(3)",
    "exception": "scores[0] = 1 / 0",
    "value": "scores[5] = float('nan')",
    "": "print('x' * 5_000_000)",
}


def faulty_run(
    world: Path, folder: Path, fault: str, *, steps: int = 3, resume: bool = False
) -> list[Event]:
    file = folder / "odd.py"
    file.write_text(FAULT.format(fault=fault))
    rewards = {"functions": [f"{file}:good", f"{file}:odd"], "time_limit": LIMIT}
    config = settings(
        world, steps=steps, rewards=rewards, checkpoint={"every": 1}, evaluation={"pinned": 0}
    )
    return events_of(config, folder / "run", resume=resume)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "fault"), FAULTS.items(), ids=str)
def test_a_fault_in_one_step_is_an_alert_and_the_run_goes_on(
    world: Path, tmp_path: Path, kind: str, fault: str
) -> None:
    events = faulty_run(world, tmp_path, fault)
    assert isinstance(events[-1], RunFinished), events[-1]
    rules = {f"reward_{fault}" for fault in FAULTS}
    alerts = [e for e in of(AlertRaised, events) if e.rule in rules]
    assert [(e.step, e.rule) for e in alerts] == ([(2, f"reward_{kind}")] if kind else [])
    assert all("odd" in e.explanation for e in alerts)
    if kind == "value":  # the second of four answers to the second prompt
        assert "reward odd on completion 5" in alerts[0].explanation
        assert "gave nan with weight 1; a score is" in alerts[0].explanation
        assert "It was answer 2 to prompt 2." in alerts[0].explanation
    means = [e.metrics["rewards/good/mean"] for e in of(StepFinished, events)]
    assert len(means) == 3


@pytest.mark.parametrize("score", ["float('nan')", "1e39"])
def test_a_score_that_float32_cannot_hold_has_failed_with_an_alert_from_the_first_step_on(
    world: Path, tmp_path: Path, score: str
) -> None:
    events = faulty_run(world, tmp_path, f"pass\n    scores[2:4] = [{score}] * 2", steps=2)
    assert isinstance(events[-1], RunFinished), events[-1]
    alerts = [e for e in of(AlertRaised, events) if e.rule == "reward_value"]
    assert [e.step for e in alerts] == [1, 2]
    assert "answer 3 to prompt 1, and 1 more of the step" in alerts[0].explanation
    groups = groups_of(events)
    for step in range(2):
        first, second = groups[2 * step : 2 * step + 2]
        odd = [one.rewards[1].value for one in (*first.rollouts, *second.rollouts)]
        assert [value is None for value in odd] == [place in (2, 3) for place in range(8)]
        assert "finite number" in first.rollouts[2].rewards[1].reason
        assert any(one.advantage for one in first.rollouts)  # the others of the group


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["scores.pop()", "os._exit(3)"])
def test_a_function_that_keeps_failing_ends_the_run_which_goes_on_once_it_is_mended(
    world: Path, tmp_path: Path, fault: str
) -> None:
    broken = f"pass\n    if trainer_state.global_step > 0:\n        {fault}"
    ended = faulty_run(world, tmp_path, broken, steps=8)[-1]
    assert isinstance(ended, RunFailed)
    assert (ended.error, ended.traceback) == ("RewardError", "")
    assert f"reward odd failed completely {PATIENCE} times in a row" in ended.message
    events = faulty_run(world, tmp_path, "pass", steps=8, resume=True)
    assert isinstance(events[-1], RunFinished), events[-1]
    assert [e.step for e in of(StepFinished, events)] == [6, 7, 8]


def test_every_answer_is_scored_with_the_columns_of_its_own_prompt(
    world: Path, tmp_path: Path
) -> None:
    """The prompts of the world are `say N: `, with N as their answer."""
    (tmp_path / "own.py").write_text(
        "def own(prompts, answer, **_):\n"
        "    return [float(f'say {mine}: ' == prompt) * (1 + int(mine))"
        " for prompt, mine in zip(prompts, answer)]\n"
    )
    config = settings(
        world, steps=1, rewards={"functions": [f"{tmp_path}/own.py:own"]}, rollout={"prompts": 3}
    )
    scored = [
        event.group
        for event in of(GroupScored, events_of(config, tmp_path / "run"))
        if event.group.origin == "train"
    ]
    assert len({group.target for group in scored}) == 3
    for group in scored:
        assert [one.reward for one in group.rollouts] == [1.0 + int(group.target)] * 4
