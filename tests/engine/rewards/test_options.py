"""Which function of a run the keys of `rewards.options` mean."""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.errors import ConfigError
from grpo_engine.events import RunFailed, RunFinished
from grpo_engine.rewards.specs import specs_of
from grpo_engine.run.user_objects import UserObjects
from grpo_engine.setup.parts import check_reward_options, load_tasks
from tests.engine.runs import events_of, settings, write_world

GIVEN = {"bonus": 2}


def options_of(tmp_path: Path, functions: list[str], options: Any) -> dict[str, Any]:
    """The options that the functions of a run get."""
    rewards = {"functions": functions, "options": options}
    tasks = load_tasks(settings(write_world(tmp_path), rewards=rewards), UserObjects())
    return {spec.name: spec.options for spec in specs_of(tasks[0].config, tasks[0].task)}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("a.py:near", {"a.py:near": GIVEN, "length": {}}),
        ("near", {"a.py:near": GIVEN, "length": {}}),
        ("length", {"a.py:near": {}, "length": GIVEN}),
    ],
)
def test_a_key_is_a_functions_name_with_or_without_its_file(
    tmp_path: Path, key: str, expected: Any
) -> None:
    assert options_of(tmp_path, ["a.py:near", "length"], {key: GIVEN}) == expected


def test_a_whole_name_comes_before_a_short_one(tmp_path: Path) -> None:
    functions = ["a.py:length", "length"]
    assert options_of(tmp_path, functions, {"length": GIVEN}) == {
        "a.py:length": {},
        "length": GIVEN,
    }


@pytest.mark.parametrize("key", ["lenght", "near"])
def test_a_key_that_means_no_function_or_two_is_refused(tmp_path: Path, key: str) -> None:
    functions = ["a.py:near", "b.py:near", "length"]
    rewards = {"functions": functions, "options": {key: GIVEN}}
    config = settings(write_world(tmp_path), rewards=rewards)
    with pytest.raises(ConfigError, match=r"a\.py:near, b\.py:near, length") as caught:
        check_reward_options(config, load_tasks(config, UserObjects()))
    assert repr(key) in str(caught.value)


def test_a_run_of_before_that_has_options_without_an_effect_is_resumed(tmp_path: Path) -> None:
    world = write_world(tmp_path)
    config = settings(world, steps=1)
    assert isinstance(events_of(config, tmp_path / "run")[-1], RunFinished)
    rewards = config.rewards.model_copy(update={"options": {"nosuch": GIVEN}})
    config = config.model_copy(update={"rewards": rewards, "steps": 2})
    assert isinstance(events_of(config, tmp_path / "new")[-1], RunFailed)
    state = next((tmp_path / "run/checkpoints").glob("step-*/state.json"))
    data = json.loads(state.read_text())
    data["config"]["rewards"]["options"] = {"nosuch": GIVEN}
    state.write_text(json.dumps(data))
    end = events_of(config, tmp_path / "run", resume=True)[-1]
    assert isinstance(end, RunFinished)
    assert end.step == 2


def test_options_may_be_of_a_further_task(tmp_path: Path) -> None:
    further = {"name": "countdown", "weight": 1.0, "rewards": {"exact_answer": 1.0}}
    config = settings(
        write_world(tmp_path),
        task={"others": {"countdown": further}},
        rewards={"functions": ["length"], "options": {"exact_answer": GIVEN}},
    )
    tasks = load_tasks(config, UserObjects())
    check_reward_options(config, tasks)
    first, second = (specs_of(t.config, t.task) for t in tasks)
    assert [spec.options for spec in (*first, *second)] == [{}, GIVEN]
