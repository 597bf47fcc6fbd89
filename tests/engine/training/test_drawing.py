"""Which problems a run draws: from several tasks, left out by pass rate, by a curriculum."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine import trainer
from grpo_engine.config.parse import problems
from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.errors import DataError
from grpo_engine.events import (
    EvaluationFinished,
    Event,
    NoteWritten,
    RunFailed,
    StepFinished,
)
from grpo_engine.metrics import is_metric, spec
from grpo_engine.run import checkpoint
from grpo_engine.run.session import EngineRun, Progress, TaskPart
from grpo_engine.tasks.base import Example, Task
from grpo_engine.training.drawing import Drawing, chance, read_rates
from tests.engine.runs import events_of, failure, groups_of, mixture, of, settings, write_world
from tests.engine.training.test_resume import facts


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_world(tmp_path_factory.mktemp("world"))
    mixture(folder)
    return folder


def two_tasks(world: Path, weight: float, **changes: Any) -> RunConfig:
    """The usual run, and a second task whose `letters` has another weight."""
    rewards = {f"{world}/rewards.py:letters": 0.25}
    other = {
        "name": f"{world}/other.jsonl",
        "weight": weight,
        "rewards": rewards,
        "held_out_size": 3,
        "accuracy": "letters >= 0.5",
    }
    task = {**changes.pop("task", {}), "others": {"other": other}}
    return settings(world, task=task, **changes)


def groups(events: Sequence[Event]) -> list[Any]:
    return list(groups_of(events))


def metrics(events: Sequence[Event]) -> list[Any]:
    return [event.metrics for event in of(StepFinished, events)]


# -- several tasks --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_task_of_weight_0_changes_nothing(world: Path, tmp_path: Path) -> None:
    alone = events_of(settings(world), tmp_path / "alone")
    both = events_of(two_tasks(world, 0), tmp_path / "both")
    assert facts(both, 0) == facts(alone, 0) != []
    states = [
        checkpoint.load(tmp_path / name, 4).state["progress"] | {"elapsed": 0}
        for name in ("alone", "both")
    ]
    assert states[0] == states[1]


def drawn(
    *parts: tuple[str, float, Sequence[Example]],
    count: int,
    rates: dict[str, tuple[float, float]] | None = None,
    **task: Any,
) -> list[Example]:
    """The first problems that a run of these tasks draws."""
    run = SimpleNamespace(
        config=RunConfig.model_validate({"task": task}),
        progress=Progress(rates=rates or {}),
        parts=[
            TaskPart(
                label=label,
                weight=weight,
                further=label != "a",
                scorer=cast(Any, None),
                task=Task(name=label, train=train, shuffle=False),
                render=cast(Any, SimpleNamespace(config=SimpleNamespace(bad_rows="refuse"))),
            )
            for label, weight, train in parts
        ],
    )
    return Drawing(cast(EngineRun, run)).take(count)


def example(key: str) -> Example:
    return Example(key=key, prompt=key)


def test_prompts_are_shared_out_by_weight() -> None:
    # weights 1 and 1/2 over 2n + 1: a 1, b .5 -> a; a .33, b .5 -> b; a .33, b .17 -> a;
    # a .2, b .17 -> a; a .14, b .17 -> b; a .14, b .1 -> a
    found = drawn(("a", 1, [example("1")]), ("b", 0.5, [example("1")]), count=6)
    assert [one.key for one in found] == ["1", "b/1", "1", "1", "b/1", "1"]
    assert [one.task for one in found] == ["", "b", "", "", "b", ""]


@given(weights=st.lists(st.floats(0.1, 10), min_size=1, max_size=4), count=st.integers(1, 60))
def test_no_task_is_ever_far_from_its_share(weights: list[float], count: int) -> None:
    labels = "abcd"[: len(weights)]
    found = drawn(
        *((label, weight, [example(label)]) for label, weight in zip(labels, weights, strict=True)),
        count=count,
    )
    counts = Counter(one.task or "a" for one in found)
    for label, weight in zip(labels, weights, strict=True):
        assert abs(counts[label] - count * weight / sum(weights)) < len(weights)


def test_each_task_has_its_own_rewards_curves_and_evaluation(world: Path, tmp_path: Path) -> None:
    evaluation = {"before_and_after": True, "problems": 4, "pinned": 1}
    events = events_of(two_tasks(world, 1, steps=2, evaluation=evaluation), tmp_path)
    assert not isinstance(events[-1], RunFailed), events[-1]
    for step in (1, 2):
        own, other = [g for g in groups(events) if g in _of_step(events, step)]
        assert not own.example_key.startswith("other/")
        assert other.example_key.startswith("other/")
        names = [[(one.name, one.weight) for one in g.rollouts[0].rewards] for g in (own, other)]
        assert names == [[("letters", 1), ("accuracy", 1)], [("letters", 0.25)]]
        found = metrics(events)[step - 1]
        assert found["task/other/reward"] == pytest.approx(other.reward_mean)
        assert found[f"task/{world}/problems.jsonl/reward"] == pytest.approx(own.reward_mean)
        assert found["reward"] == pytest.approx((own.reward_mean + other.reward_mean) / 2)
        every = [r.rewards[0].value for g in (own, other) for r in g.rollouts]
        assert found["rewards/letters/mean"] == pytest.approx(sum(every) / len(every))
        assert found["task/other/groups"] == 1
    keys = [group.example_key for group in groups(events)]
    assert len(set(keys)) == len(keys) == 4  # no task begins again from its first problem
    last = of(EvaluationFinished, events)[-1]
    right = [(row.example_key.startswith("other/"), row.correct) for row in last.rows]
    assert Counter(is_other for is_other, _ in right) == {False: 4, True: 3}
    own_right, other_right = (
        [count or 0 for is_other, count in right if is_other == wanted] for wanted in (False, True)
    )
    assert last.metrics["eval/task/other/accuracy"] == pytest.approx(sum(other_right) / 3)
    assert last.metrics["eval/accuracy"] == pytest.approx(sum(own_right + other_right) / 7)
    for name in (*found, *last.metrics):
        if "task/" in name:
            assert is_metric(name) or "/rewards/" in name, name
            assert "newer engine" not in spec(name).help


def _of_step(events: Sequence[Event], step: int) -> list[Any]:
    return groups([event for event in events if event.step == step])


def test_a_task_with_an_environment_is_trained_alone(world: Path, tmp_path: Path) -> None:
    config = settings(world, task={"others": {"guess": 1}})
    assert "task guess has tools or an environment" in failure(config, tmp_path).message


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"others": {"arithmetic": 1}}, "give it another label"),
        ({"others": {"gsm8k": -1}}, "must be a number ≥ 0"),
        ({"others": {"gsm8k": {"weigth": 1}}}, "no setting 'task.others.gsm8k.weigth'"),
        ({"pass_rate_range": {"lowest": 0.1}}, "only if task.pass_rates names a file"),
    ],
)
def test_settings_that_make_no_sense_are_refused(task: dict[str, Any], said: str) -> None:
    assert any(said in str(problem) for problem in problems({"task": task}))


# -- curriculum and filter ------------------------------------------------------------------


def test_the_chances_are_those_of_the_formula() -> None:
    # never tried: p = 1/2. Right in 2 of 2: p = 3/4. In 0 of 8: p = 1/10
    assert [chance("hardest", 0, 0), chance("half", 0, 0)] == [0.5, 1]
    assert [chance("hardest", 2, 2), chance("half", 2, 2)] == [0.25, 0.75]
    assert [chance("hardest", 0, 8), chance("half", 0, 8)] == pytest.approx([0.9, 0.36])


def write_rates(path: Path, rates: dict[str, float], answers: int = 8) -> str:
    path.write_text(json.dumps([{"answers": answers, "pass_rates": rates}]))
    return str(path)


@pytest.mark.slow
def test_problems_are_left_out_by_their_given_pass_rate(world: Path, tmp_path: Path) -> None:
    first = {group.example_key for group in groups(events_of(settings(world), tmp_path / "first"))}
    easy, hard, fine = sorted(first)[:3]
    file = write_rates(tmp_path / "rates.json", {easy: 1, hard: 0, fine: 0.5, "unknown": 0.2})
    task = {"pass_rates": file, "pass_rate_range": {"lowest": 0.1, "highest": 0.9}}
    events = events_of(settings(world, task=task), tmp_path / "second")
    keys = {group.example_key for group in groups(events)}
    assert {easy, hard}.isdisjoint(keys)
    assert fine in keys
    (note,) = [e.text for e in of(NoteWritten, events) if file in e.text]
    assert "4 problems have a pass rate" in note
    assert "2 of them are left out" in note
    assert sum(one.get("prompts/passed_over", 0) for one in metrics(events)) == 2


def test_a_run_without_a_problem_left_says_so(world: Path, tmp_path: Path) -> None:
    file = write_rates(tmp_path / "rates.json", {f"train-{n}": 1 for n in range(40)})
    config = settings(world, task={"pass_rates": file, "pass_rate_range": {"highest": 0.9}})
    assert "all 34 tried are left out" in failure(config, tmp_path / "run").message


@pytest.mark.slow
def test_a_curriculum_follows_the_runs_own_answers(world: Path, tmp_path: Path) -> None:
    config = settings(world, steps=20, task={"curriculum": "hardest", "train_size": 6})
    events = events_of(config, tmp_path)
    rates: dict[str, tuple[int, int]] = {}
    for group in groups(events):
        right = [one.rewards[1].value for one in group.rollouts]
        rates[group.example_key] = int(sum(right)), len(right)
    kept = checkpoint.load(tmp_path, 20).state["progress"]["rates"]
    assert {key: tuple(counts) for key, counts in kept.items()} == rates
    # each of 40 draws is passed over with a probability of 1/6 or more: none is with .07 %
    assert sum(step.get("prompts/passed_over", 0) for step in metrics(events)) > 0


def test_harder_problems_are_drawn_oftener() -> None:
    train = [example(str(n)) for n in range(4)]
    rates: dict[str, tuple[float, float]] = {"0": (0, 8), "1": (8, 8), "2": (4, 8)}
    problems = drawn(("a", 1, train), count=4000, rates=rates, curriculum="hardest")
    counts = Counter(problem.key for problem in problems)
    # chances .9, .1, .5 and .5 of the untried, of 2 together
    for key, share in {"0": 0.45, "1": 0.05, "2": 0.25, "3": 0.25}.items():
        assert counts[key] / 4000 == pytest.approx(share, abs=0.03)


LONG = """
from grpo_engine.tasks.base import Example, Generated, Task

def build():
    def make(index):
        words = "say it again, " * (index % 3)
        return Example(key=str(index), prompt=f"say {index}: {words}")
    return Task(name="long", train=Generated(make, 90), shuffle=False)
"""


@pytest.mark.slow
def test_too_long_generated_problems_are_counted_and_passed_over(
    world: Path, tmp_path: Path
) -> None:
    (tmp_path / "long.py").write_text(LONG)
    task = {"name": f"{tmp_path}/long.py:build", "max_prompt_tokens": 20}
    assert (
        "more than task.max_prompt_tokens 20"
        in failure(settings(world, task=task), tmp_path / "refused").message
    )
    events = events_of(settings(world, task={**task, "bad_rows": "skip"}), tmp_path / "run")
    assert not isinstance(events[-1], RunFailed), events[-1]
    assert [group.example_key for group in groups(events)] == [str(3 * n) for n in range(8)]
    # of 64, 0, 3, … 63 can be used
    assert any("42 of the first 64" in e.text for e in of(NoteWritten, events))
    # the two before each but the first
    assert [one["prompts/passed_over"] for one in metrics(events)] == [2, 4, 4, 4]


def test_a_curriculum_needs_to_know_what_is_right(world: Path, tmp_path: Path) -> None:
    rewards = {"functions": [f"{world}/rewards.py:letters"]}
    config = settings(world, rewards=rewards, task={"curriculum": "half"})
    assert "set evaluation.accuracy" in failure(config, tmp_path).message


@pytest.mark.parametrize("text", ["", "[]", "[1]", '{"a": "x"}', '{"a": 1.5}', '{"a": null}', "{}"])
def test_a_file_without_pass_rates_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "rates.json").write_text(text)
    with pytest.raises(DataError, match=r"task.pass_rates .*rates.json"):
        read_rates(tmp_path / "rates.json", 8)


def test_bare_rates_count_as_those_of_one_group(tmp_path: Path) -> None:
    (tmp_path / "rates.json").write_text('{"a": 0.25}')
    assert read_rates(tmp_path / "rates.json", 8) == {"a": (2, 8)}


# -- all of it together ---------------------------------------------------------------------


@pytest.mark.slow
def test_a_resumed_mixture_with_filter_curriculum_and_refills_equals_the_unbroken_run(
    world: Path, tmp_path: Path
) -> None:
    config = settings(world, steps=6, **mixture(world))
    unbroken = events_of(config, tmp_path / "whole")
    assert not isinstance(unbroken[-1], RunFailed), unbroken[-1]
    # how many events report progress depends on the time, so not up to the last one
    cut = random.Random(0).randrange(sum(event.step in (3, 4, 5) for event in unbroken) // 2)
    events = trainer.run(config, Control(), folder=tmp_path / "cut")
    for event in events:
        cut -= event.step in (3, 4, 5)
        if cut < 0:
            break
    events.close()  # type: ignore[attr-defined]
    (world / "rates.json").write_text("gone")  # the checkpoint has what was read
    resumed = events_of(config, tmp_path / "cut", resume=True)
    assert resumed[0].step in (2, 4)
    assert facts(resumed, resumed[0].step) == facts(unbroken, resumed[0].step) != []
    assert sum(one["groups/refilled"] for one in metrics(unbroken)) > 0
    assert {g.example_key.startswith("other/") for g in groups(unbroken)} == {True, False}
