"""Runs from Python without a store: trained, iterated, stopped, resumed, judged."""

import dataclasses
import gc
import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import grpo_engine as grpo
from grpo_engine import events as ev
from grpo_engine.api.run import Run, event_type
from grpo_engine.config import recipes
from grpo_engine.config.parse import merge
from grpo_engine.errors import CheckpointError, ConfigError, EngineError, RewardError
from tests.e2e.training import facts_by_step
from tests.engine.runs import settings
from tests.patience import until


def made_here() -> Callable[..., list[float]]:
    """A function that no other process can import."""

    def variety(completions: list[str], **_: Any) -> list[float]:
        return [len(set(text)) / 12 for text in completions]

    return variety


variety = made_here()


def short(world: Path, **changes: Any) -> dict[str, Any]:
    """Keywords of a run of four steps with a function of this file."""
    tree = settings(world).model_dump(mode="json", exclude_unset=True)
    if "rewards" not in changes:  # the task's function for what is right would start a process
        tree["evaluation"]["accuracy"] = "variety >= 0.5"
    return merge({**tree, "rewards": {"functions": [variety]}}, changes)


def train(world: Path, **changes: Any) -> Run:
    return grpo.train(record=False, progress=False, **short(world, **changes))


def facts(events: list[ev.Event]) -> Any:
    return facts_by_step([ev.to_json(event) for event in events])


def test_a_run_is_trained_with_a_function_and_can_be_asked_afterwards(world: Path) -> None:
    run = train(world)
    assert run.status == "completed"
    assert sorted(run.metrics["reward"]) == [1, 2, 3, 4]
    assert run.metrics["rewards/variety/mean"] == run.metrics["reward"]
    groups = run.rollouts()
    assert (groups.step, len(groups), len(groups[0].rollouts)) == (4, 2, 4)
    mean = sum(row["reward"] for row in groups.rows()) / 8
    assert mean == pytest.approx(run.metrics["reward"][4])
    with pytest.raises(EngineError, match="only the rollouts of step 4 are here, not those of 3"):
        run.rollouts(step=3)
    with pytest.raises(KeyError, match="no metric 'rewad'; did you mean reward"):
        run.metrics["rewad"]
    assert run.metrics.get("rewad") is None


def test_pandas_tables_have_the_same_numbers(world: Path) -> None:
    run = train(world, steps=2)
    table = run.metrics.to_pandas()
    assert list(table.index) == [1, 2]
    assert table.loc[2, "reward"] == run.metrics["reward"][2]
    rollouts = run.rollouts().to_pandas()
    assert len(rollouts) == 8
    assert rollouts["rewards/variety"].mean() == pytest.approx(run.metrics["reward"][2])


@pytest.mark.slow
def test_iterating_yields_what_training_does_step_by_step(world: Path) -> None:
    whole = list(grpo.iterate(record=False, **short(world)))
    assert isinstance(whole[0], ev.RunStarted)
    assert isinstance(whole[-1], ev.RunFinished)
    seen: list[ev.Event] = []
    train(world, name="again", seed=5).close()
    grpo.train(record=False, progress=False, callbacks=[seen.append], **short(world))
    assert facts(seen) == facts(whole)


def test_a_folder_is_resumed_with_its_functions_given_again(world: Path, tmp_path: Path) -> None:
    run = grpo.iterate(record=False, folder=tmp_path, **short(world))
    for event in run:
        if isinstance(event, ev.StepFinished) and event.step == 2:
            run.stop()
    with pytest.raises(EngineError, match=r"grpo_engine\.resume\(run, rewards=\[…\]\)"):
        grpo.resume(tmp_path, progress=False)
    assert grpo.resume(tmp_path, rewards=[variety], progress=False).status == "completed"
    with pytest.raises(CheckpointError, match="holds no checkpoint to resume from"):
        grpo.resume(world, progress=False)


@pytest.mark.slow
def test_a_complete_run_continues_only_for_more_steps(world: Path) -> None:
    run = train(world, steps=1)
    with pytest.raises(CheckpointError, match=r"complete at step 1; .*resume\(run, steps=N\)"):
        grpo.resume(run, progress=False)
    with pytest.raises(CheckpointError, match="complete at step 1"):
        grpo.resume(run, steps=1, progress=False)
    longer = grpo.resume(run, steps=2, progress=False)
    assert (longer.status, sorted(longer.metrics["reward"])) == ("completed", [2])
    with pytest.raises(CheckpointError, match="complete at step 2"):
        grpo.resume(run.folder, rewards=[variety], progress=False)


@pytest.mark.slow
def test_a_run_that_met_its_condition_is_complete(world: Path) -> None:
    run = train(world, stop_when="reward > -1")
    assert (run.status, sorted(run.metrics["reward"])) == ("completed", [1])
    with pytest.raises(CheckpointError, match="complete at step 1"):
        grpo.resume(run, progress=False)
    with pytest.raises(CheckpointError, match="a step N after 4"):
        grpo.resume(run, steps=4, progress=False)  # its condition would still hold
    assert sorted(grpo.resume(run, steps=5, progress=False).metrics["reward"]) == [2]


def test_a_run_is_not_resumed_to_a_step_that_it_is_past(world: Path) -> None:
    run = grpo.iterate(record=False, **short(world))
    for event in run:
        if isinstance(event, ev.StepFinished) and event.step == 2:
            run.stop()
    with pytest.raises(CheckpointError, match="give 3 or more"):
        grpo.resume(run, steps=1, progress=False)


def test_a_loop_that_is_left_ends_the_run_and_its_reward_process(world: Path) -> None:
    before = threading.active_count()
    run = grpo.iterate(record=False, **short(world, rewards={"functions": ["format_all"]}))
    for event in run:
        if isinstance(event, ev.StepFinished):
            break
    run.close()
    assert run.status == "aborted"
    assert list(run) == []
    until(lambda: threading.active_count() <= before)


@pytest.mark.slow
def test_the_folder_of_an_unrecorded_run_goes_with_it(world: Path, tmp_path: Path) -> None:
    run = train(world, steps=1)
    folder = run.folder
    assert folder.is_dir()
    del run
    gc.collect()
    assert not folder.exists()
    grpo.train(record=False, progress=False, folder=tmp_path / "kept", **short(world, steps=1))
    gc.collect()
    assert (tmp_path / "kept").is_dir()


@pytest.mark.slow
def test_an_interrupt_stops_after_the_step_and_a_second_one_now(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = signal.getsignal(signal.SIGINT)

    def interrupt(event: ev.StepFinished) -> None:
        if event.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    run = grpo.train(record=False, callbacks=[interrupt], **short(world))
    assert (run.status, sorted(run.metrics["reward"])) == ("stopped", [1, 2])
    assert grpo.resume(run, progress=False, record=False).status == "completed"
    assert "interrupt again to stop now" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is handler

    def twice(event: ev.StepFinished) -> None:
        interrupt(event)
        interrupt(event)

    run = grpo.train(record=False, progress=False, callbacks=[twice], **short(world, steps=40))
    assert (run.status, max(run.metrics["reward"])) == ("aborted", 2)


def test_a_third_interrupt_leaves_a_function_that_hangs(world: Path) -> None:
    def hangs(completions: list[str], **_: Any) -> list[float]:
        for _number in range(3):
            os.kill(os.getpid(), signal.SIGINT)
        return [0.0] * len(completions)

    with pytest.raises(KeyboardInterrupt):
        grpo.train(record=False, progress=False, **short(world, rewards={"functions": [hangs]}))


def test_a_callback_gets_the_events_of_its_parameters_type(world: Path) -> None:
    steps: list[int] = []
    ends: list[str] = []

    class Ends:
        def __call__(self, event: ev.RunFinished | ev.RunFailed) -> None:
            ends.append(type(event).__name__)

    def step(event: ev.StepFinished) -> None:
        steps.append(event.step)

    grpo.train(record=False, progress=False, callbacks=[step, Ends()], **short(world, steps=2))
    assert (steps, ends) == ([1, 2], ["RunFinished"])
    assert event_type(print) is object
    assert event_type(lambda _: None) is object
    assert event_type(Ends().__call__) == ev.RunFinished | ev.RunFailed


def test_an_error_of_a_callback_ends_the_run_and_is_raised(world: Path) -> None:
    def fails(_: ev.StepFinished) -> None:
        raise LookupError("no more")

    run = grpo.iterate(record=False, callbacks=[fails], **short(world))
    with pytest.raises(LookupError, match="no more"):
        run.finish()
    assert run.status == "failed"


def test_an_error_of_a_run_is_raised_in_its_own_class(world: Path) -> None:
    def broken(**_: Any) -> list[float]:
        raise ValueError("not today")

    with pytest.raises(RewardError, match="not today"):
        train(world, rewards={"functions": [broken]})
    with pytest.raises(ConfigError, match=r"did you mean rollout\.prompts"):
        grpo.train({"rollout.promts": 3}, record=False)


def test_rows_and_a_function_for_them_are_trained_on(world: Path) -> None:
    seen: set[str] = set()

    def column(completions: list[str], level: list[str], **_: Any) -> list[float]:
        seen.update(level)
        return variety(completions)

    rows = [{"prompt": f"say {n}", "level": f"L{n % 2}"} for n in range(12)]
    changes = short(world, steps=2, rewards={"functions": [column]})
    run = grpo.train(record=False, progress=False, **{**changes, "task": rows})
    assert (run.status, seen) == ("completed", {"L0", "L1"})


@pytest.mark.slow
def test_a_run_is_evaluated_and_its_policy_answers(world: Path) -> None:
    run = train(world, steps=2)
    found = run.evaluate({"evaluation.problems": 3, "evaluation.samples": 2})
    assert {mode: (one.problems, one.samples) for mode, one in found.items()} == {
        "greedy": (3, 1),
        "sampled": (3, 2),
    }
    again = grpo.evaluate(run.folder, record=False, rewards=[variety], evaluation={"problems": 3})
    assert again["greedy"].metrics == found["greedy"].metrics
    policy = run.policy
    assert policy is run.policy
    answer = policy.generate("say 3", max_new_tokens=5)
    assert answer == policy.generate("say 3", max_new_tokens=5)
    with pytest.raises(EngineError, match="1 or more, got -1"):
        policy.sample("say 3", -1)
    several = policy.sample("say 3", 3, max_new_tokens=5, seed=1)
    assert len(several) == 3
    assert several != policy.sample("say 3", 3, max_new_tokens=5, seed=2)


def test_a_model_is_loaded_by_name_and_speaks_its_chat_template(world: Path) -> None:
    policy = grpo.load_policy("starter")
    # it has half learned sums: the form is right, the number nearly
    assert re.fullmatch(r"(?s).*so \d+", policy.generate("12 + 30 =", max_new_tokens=40))
    plain = grpo.load_policy(world / "model", lora_rank=4)
    assert plain.config.model.lora_rank == 4
    assert isinstance(plain.generate([{"role": "user", "content": "a"}], max_new_tokens=3), str)


def test_another_thread_is_refused(world: Path) -> None:
    train(world, steps=1)
    caught: list[Exception] = []

    def elsewhere(call: Callable[[], Any]) -> None:
        try:
            call()
        except EngineError as error:
            caught.append(error)

    thread = threading.Thread(target=elsewhere, args=(lambda: train(world, steps=1),), name="cell")
    thread.start()
    thread.join()
    assert "this is 'cell': MLX belongs to one thread" in str(caught[0])


def test_a_recipe_of_a_package_brings_its_functions(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = grpo.recipe("dr-grpo", signal=lambda rewards_PG: rewards_PG - rewards_PG.mean())
    packaged = dataclasses.replace(how, name="gentle")
    monkeypatch.setitem(recipes.RECIPES, "gentle", packaged)
    run = train(world, algorithm={"recipe": "gentle"}, steps=1)
    assert run.config.algorithm.signal is None
    assert run.status == "completed"
