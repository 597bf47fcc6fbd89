"""A run that was interrupted anywhere and resumed equals an uninterrupted one, bit for bit."""

import itertools
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from grpo_engine import trainer
from grpo_engine.config import mismatch
from grpo_engine.config.settings import AlgorithmConfig, CheckpointConfig, RunConfig
from grpo_engine.control import Control
from grpo_engine.events import (
    Event,
    GroupScored,
    NoteWritten,
    PassFinished,
    RunFailed,
    RunStarted,
    StepFinished,
    TokensScored,
)
from grpo_engine.rollouts.noise import NOISE
from grpo_engine.run import checkpoint
from grpo_engine.run.persist import OTHER_NOISE, OTHER_REFILLS
from tests.engine.maths.custom_choices import written
from tests.engine.policy.helpers import CHOSEN_AND_GRAPH
from tests.engine.runs import cut_off, events_of, notes, of, settings, timeless

CASES: dict[str, dict[str, Any]] = {
    "grpo": {"recipe": "grpo", "passes": 2, "minibatches": 2},
    "functions": {"recipe": "grpo", "passes": 2, **written("grpo")},
    "dapo": {"recipe": "dapo", "refill_rounds": 2},
    "grpo-iterative": {"recipe": "grpo-iterative", "ref_refresh_every": 2},
    "grpo-sequence": {"recipe": "grpo-sequence", "sampler_sync_every": 4},
    "ppo": {"recipe": "ppo", "passes": 2},
    "sft": {"recipe": "sft"},
    "entropy": {"recipe": "grpo", "entropy_bonus": 0.01, "entropy_target": 3.0},
    "bfloat16 lora": {"recipe": "grpo", "passes": 2},
    "bfloat16 full": {"recipe": "grpo-iterative", "ref_refresh_every": 2},
    "float16 full": {"recipe": "grpo"},
}
QUICK = ("grpo", "dapo", "ppo", "bfloat16 lora")


def some_slow(names: Iterable[str]) -> list[Any]:
    """Leave some cases to the slow tests."""
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


def config_of(world: Path, name: str, compute: str = "auto") -> RunConfig:
    changes: dict[str, Any] = {
        "model": {"compute": compute},
        "steps": 5,
        "algorithm": CASES[name],
        "checkpoint": {"every": 3},
        "rollout": {"prompts": 2, "group_size": 4, "max_new_tokens": 8},
    }
    if name == "sft":
        changes["task"] = {"columns": {"completion": "answer"}, "options": {"chat": False}}
    if name == "dapo":  # few distinct scores, so that groups are refilled
        changes["rewards"] = {"functions": [f"{world}/rewards.py:accuracy"]}
    if " " in name:
        dtype, tuning = name.split()
        changes["model"] |= {"dtype": dtype, "tuning": tuning}
    return settings(world, **changes)


def facts(events: list[Event], after: int) -> list[Any]:
    """What must be equal: answers, token numbers, updates, and metrics except times and memory."""
    found: list[Any] = []
    for event in events:
        if event.step <= after:
            continue
        if isinstance(event, StepFinished):
            found.append((event.step, event.tokens, timeless(event.metrics)))
        elif isinstance(event, GroupScored | TokensScored | PassFinished):
            found.append(event)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("compute", CHOSEN_AND_GRAPH)
@pytest.mark.parametrize("name", some_slow(name for name in CASES if " " not in name))
def test_a_resumed_run_equals_the_unbroken_one(
    world: Path, tmp_path: Path, name: str, compute: str
) -> None:
    assert_resumes(config_of(world, name, compute), tmp_path, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", some_slow(name for name in CASES if " " in name))
def test_a_resumed_run_in_16_bits_equals_the_unbroken_one(
    world: Path, tmp_path: Path, name: str
) -> None:
    assert_resumes(config_of(world, name), tmp_path, name)


def assert_resumes(config: RunConfig, tmp_path: Path, name: str) -> None:
    unbroken = events_of(config, tmp_path / "whole")
    assert not isinstance(unbroken[-1], RunFailed), unbroken[-1]
    in_step_four = sum(event.step == 4 for event in unbroken)
    cut = random.Random(name).randrange(in_step_four // 2)
    events = trainer.run(config, Control(), folder=tmp_path / "cut")
    for event in events:
        cut -= event.step == 4
        if cut < 0:
            break
    events.close()  # type: ignore[attr-defined]
    resumed = events_of(config, tmp_path / "cut", resume=True)
    assert isinstance(resumed[0], RunStarted)
    assert resumed[0].step == 3
    assert facts(resumed, 3) == facts(unbroken, 3)


@pytest.mark.slow
def test_dapo_case_does_refill(world: Path, tmp_path: Path) -> None:
    events = events_of(config_of(world, "dapo"), tmp_path)
    refilled = [e.metrics["groups/refilled"] for e in of(StepFinished, events)]
    assert sum(refilled) > 0


@pytest.mark.slow
def test_a_run_cut_before_its_first_checkpoint_starts_anew(world: Path, tmp_path: Path) -> None:
    config = config_of(world, "grpo")
    cut_off(config, tmp_path / "cut", lambda event: event.step == 2)
    resumed = events_of(config, tmp_path / "cut", resume=True)
    assert facts(resumed, 0) == facts(events_of(config, tmp_path / "whole"), 0)


@pytest.mark.slow
def test_a_finished_run_has_nothing_to_resume(world: Path, tmp_path: Path) -> None:
    config = config_of(world, "grpo")
    events_of(config, tmp_path)
    again = events_of(config, tmp_path, resume=True)
    assert of(StepFinished, again) == []
    assert type(again[-1]).__name__ == "RunFinished"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"), [("grpo", [OTHER_NOISE]), ("dapo", [OTHER_NOISE, OTHER_REFILLS])]
)
def test_a_checkpoint_with_other_noise_says_so_when_it_is_resumed(
    world: Path, tmp_path: Path, name: str, said: list[str]
) -> None:
    config = config_of(world, name)
    cut_off(config, tmp_path, lambda event: event.step == 4)
    file = checkpoint.folder(tmp_path, 3) / checkpoint.STATE
    state = json.loads(file.read_text())
    assert state.pop("noise") == NOISE == 3

    def told() -> list[str]:
        resumed = trainer.run(config, Control(), folder=tmp_path, resume=True)
        early = itertools.takewhile(lambda event: event.step <= 3, resumed)
        found = notes(early)
        resumed.close()  # type: ignore[attr-defined]
        return [text for text in found if "the version that wrote this checkpoint" in text]

    assert told() == []
    file.write_text(json.dumps({**state, "noise": 2}))  # continues with the same noise
    assert told() == []
    file.write_text(json.dumps(state))  # as the first versions wrote it
    assert told() == said


@pytest.mark.slow
def test_a_resumed_run_keeps_removed_settings_or_says_that_it_cannot(
    world: Path, tmp_path: Path
) -> None:
    options = {"signal_eps": 0.1}
    config = config_of(world, "grpo").model_copy(
        update={
            "algorithm": AlgorithmConfig(options=options),
            "steps": 2,
            "checkpoint": CheckpointConfig(every=1),
        }
    )
    events = trainer.run(config, Control(), folder=tmp_path)
    list(itertools.takewhile(lambda event: event.step < 2, events))
    events.close()  # type: ignore[attr-defined]
    file = checkpoint.folder(tmp_path, 1) / checkpoint.STATE
    state = json.loads(file.read_text())
    algorithm = {"recipe": "grpo", "drop_at_bound": True, "stop_kl": None, **options}
    file.write_text(json.dumps(state | {"config": {**state["config"], "algorithm": algorithm}}))
    resumed = [*trainer.run(config, Control(), folder=tmp_path, resume=True)]
    said = [one.text for one in of(NoteWritten, resumed) if "no effect" in one.text]
    assert len(said) == 1
    assert said[0].startswith("algorithm.drop_at_bound True has no effect")
    assert type(resumed[-1]).__name__ == "RunFinished"


@pytest.mark.slow
def test_a_run_that_began_without_correction_is_resumed_without_it(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(world, "bfloat16 lora").model_copy(update={"steps": 4})
    with monkeypatch.context() as earlier:
        earlier.setattr(mismatch, "can_agree", lambda *_, **__: True)
        events = trainer.run(config, Control(), folder=tmp_path)
        for event in events:
            if event.step == 4:
                break
        events.close()  # type: ignore[attr-defined]
    resumed = events_of(config, tmp_path, resume=True)
    (finished,) = of(StepFinished, resumed)
    assert not any("importance_sampling_ratio" in name for name in finished.metrics)


@pytest.mark.slow
def test_a_checkpoint_that_several_processes_computed_is_resumed_equal_to_tolerance(
    world: Path, tmp_path: Path
) -> None:
    config = config_of(world, "grpo")
    cut_off(config, tmp_path, lambda event: event.step == 4)
    file = checkpoint.folder(tmp_path, 3) / checkpoint.STATE
    state = json.loads(file.read_text())
    assert "workers" not in state
    state["config"]["run"] = {"workers": 2}
    state["workers"] = 2
    file.write_text(json.dumps(state))
    resumed = events_of(config, tmp_path, resume=True)
    assert not isinstance(resumed[-1], RunFailed), resumed[-1]
    (note,) = [e.text for e in of(NoteWritten, resumed) if "processes" in e.text]
    assert note.startswith("the number of processes that compute was 2 and is 1: ")
    assert "to float tolerance, not to the bit" in note
