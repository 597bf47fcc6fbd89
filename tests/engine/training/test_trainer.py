"""Whole runs on a tiny model: every recipe trains, and its events are correct."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from grpo_engine import trainer
from grpo_engine.config.recipes import RECIPES
from grpo_engine.control import Control
from grpo_engine.events import (
    AlertRaised,
    CheckpointSaved,
    EvaluationFinished,
    GroupScored,
    ModelLoaded,
    PassFinished,
    PhaseAdvanced,
    PhaseStarted,
    RunFailed,
    RunFinished,
    StepFinished,
    StepSkipped,
    TokensScored,
)
from tests.engine.policy.helpers import CHOSEN_AND_GRAPH
from tests.engine.runs import events_of, failure, groups_of, of, settings
from tests.engine.tiny import write_model


def recipe_settings(world: Path, name: str) -> dict[str, object]:
    changes: dict[str, object] = {"steps": 2, "algorithm": {"recipe": name}}
    if name == "grpo-process":
        changes["rewards"] = {"functions": [f"{world}/rewards.py:steps"]}
    if name == "distill":
        changes["teacher"] = {"path": str(write_model(world / "teacher", seed=9))}
    if name == "grpo-iterative":
        changes["algorithm"] = {"recipe": name, "ref_refresh_every": 1}
    if name == "sft":
        changes["task"] = {"columns": {"completion": "answer"}, "options": {"chat": False}}
    return changes


@pytest.mark.parametrize("compute", CHOSEN_AND_GRAPH)
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_trains(world: Path, tmp_path: Path, name: str, compute: str) -> None:
    config = settings(world, model={"compute": compute}, **recipe_settings(world, name))
    events = events_of(config, tmp_path)
    end = events[-1]
    assert isinstance(end, RunFinished), end
    assert (end.reason, end.step) == ("completed", 2)
    steps = of(StepFinished, events)
    assert [event.step for event in steps] == [1, 2]
    assert all(math.isfinite(value) for event in steps for value in event.metrics.values())
    updates = [event for event in of(PassFinished, events) if event.learning_rate]
    assert {event.step for event in updates if event.grad_norm} == {1, 2}
    recipe = RECIPES[name]
    most = recipe.passes * recipe.minibatches
    assert 2 <= len(updates) <= 2 * most
    assert any(token for group in of(TokensScored, events) for token in _moved(group))


def test_a_bonus_that_follows_the_entropy_waits_for_the_first_measurement(
    world: Path, tmp_path: Path
) -> None:
    chosen = {"entropy_bonus": 0.1, "entropy_target": 50.0}  # which no entropy here is above
    events = events_of(settings(world, steps=2, algorithm=chosen), tmp_path)
    first, second = (event.metrics for event in of(StepFinished, events))
    assert "entropy_bonus" not in first
    assert second["entropy_bonus"] == pytest.approx(0.105)  # a step of .005 up


def _moved(group: TokensScored) -> Iterator[bool]:
    for numbers in group.numbers:
        yield from (a != b for a, b in zip(numbers.old, numbers.after, strict=False))


def test_events_carry_ids_text_and_log_probabilities_of_every_answer(
    world: Path, tmp_path: Path
) -> None:
    events = events_of(settings(world, steps=2), tmp_path)
    model = of(ModelLoaded, events)[0]
    assert 0 < model.trainable < model.parameters
    groups = groups_of(events)
    assert [(len(g.rollouts), g.index) for g in groups] == [(4, 0), (4, 1)] * 2
    for group in groups:
        for answer in group.rollouts:
            assert len(answer.ids) == len(answer.sampler_logprobs) > 0
            assert all(value <= 0 for value in answer.sampler_logprobs)
            assert [reward.name for reward in answer.rewards] == ["letters", "accuracy"]
            assert answer.reward == pytest.approx(sum(r.value or 0 for r in answer.rewards))
    scored = {(e.step, e.group): e for e in of(TokensScored, events) if e.origin == "train"}
    for event in of(GroupScored, events):
        if event.group.origin != "train":
            continue
        numbers = scored[event.step, event.group.index].numbers
        for answer, own in zip(event.group.rollouts, numbers, strict=True):
            assert own.old == pytest.approx(answer.sampler_logprobs, abs=1e-3)
            assert own.passes == (own.old,)  # one pass over fresh answers: ratio 1
            assert len(own.reference) == len(own.entropy) == len(answer.ids)


def test_the_progress_of_an_update_goes_once_from_its_first_pass_to_its_last(
    world: Path, tmp_path: Path
) -> None:
    two = {"recipe": "grpo", "passes": 2, "minibatches": 2}
    events = events_of(settings(world, steps=1, algorithm=two), tmp_path)
    made = [one.done / one.total for one in of(PhaseAdvanced, events) if one.phase == "update"]
    assert made == sorted(set(made))
    assert (len(made) >= 4, made[-1]) == (True, 1.0)


@pytest.mark.parametrize(
    ("algorithm", "order"),
    [
        (
            {"recipe": "grpo", "beta": 0.04, "passes": 1},
            "generate score GroupScored logprobs update PassFinished TokensScored StepFinished",
        ),
        (  # a critic computes advantages from its token values
            {"recipe": "ppo", "passes": 1, "minibatches": 1},
            "generate score logprobs GroupScored update PassFinished TokensScored StepFinished",
        ),
    ],
    ids=["grpo", "ppo"],
)
def test_a_step_comes_in_the_order_of_the_algorithm(
    world: Path, tmp_path: Path, algorithm: dict[str, object], order: str
) -> None:
    config = settings(world, steps=2, algorithm=algorithm, evaluation={"pinned": 0})
    kinds = [
        event.phase if isinstance(event, PhaseStarted) else type(event).__name__
        for event in events_of(config, tmp_path)
        if event.step == 1
        and isinstance(
            event, PhaseStarted | GroupScored | PassFinished | TokensScored | StepFinished
        )
    ]
    assert [kind for kind, _ in itertools.groupby(kinds)] == order.split()


def test_a_reference_that_is_refreshed_after_each_step_is_the_policy_of_the_next(
    world: Path, tmp_path: Path
) -> None:
    refreshed = {"recipe": "grpo-iterative", "passes": 1, "ref_refresh_every": 1, "ref_mix": 1.0}
    events = events_of(settings(world, steps=3, algorithm=refreshed), tmp_path)
    kls = [event.metrics["kl"] for event in of(StepFinished, events)]
    assert kls == pytest.approx([0, 0, 0], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("tuning", "dtype"), [("lora", "bfloat16"), ("full", "float32")])
def test_kl_is_measured_at_beta_0_on_request_and_changes_nothing_else(
    world: Path, tmp_path: Path, tuning: str, dtype: str
) -> None:
    ends, kls = [], []
    for kl in (False, True):
        config = settings(
            world,
            steps=2,
            algorithm={"recipe": "dr-grpo"},
            record={"kl": kl},
            model={"tuning": tuning, "dtype": dtype},
        )
        events = events_of(config, tmp_path / str(kl))
        steps = of(StepFinished, events)
        ends.append([event.metrics["loss"] for event in steps])
        kls.append([event.metrics.get("kl", -1.0) for event in steps])
        rows = [row for e in of(TokensScored, events) if e.origin == "train" for row in e.numbers]
        assert all(bool(row.reference) == kl for row in rows)
    assert ends[0] == ends[1]
    assert kls[0] == [-1, -1]
    assert kls[1][0] == pytest.approx(0, abs=1e-6)  # the reference is the policy of the start
    assert kls[1][1] > 1e-6


def test_a_sampler_that_lags_follows_the_policy_every_second_step(
    world: Path, tmp_path: Path
) -> None:
    lagging = {"recipe": "grpo", "passes": 1, "sampler_sync_every": 2}
    events = events_of(settings(world, algorithm=lagging, evaluation={"pinned": 0}), tmp_path)
    gaps = {  # from the sampler's weights to the policy's, before the update
        event.step: max(
            abs(new - old)
            for row in event.numbers
            for new, old in zip(row.passes[0], row.old, strict=True)
        )
        for event in of(TokensScored, events)
    }
    assert {step: gap > 1e-3 for step, gap in gaps.items()} == {
        1: False,
        2: True,
        3: False,
        4: True,
    }


def test_micro_batches_do_not_change_the_update(world: Path, tmp_path: Path) -> None:
    found = []
    for rows in (1, 3):
        changes = {"steps": 1, "algorithm": {"weight": "per_token"}}
        config = settings(world, **changes, optimizer={"learning_rate": 1e-3, "micro_rows": rows})
        events = events_of(config, tmp_path / str(rows))
        found.append(of(PassFinished, events)[0])
    assert [f.grad_norm for f in found] == pytest.approx([found[0].grad_norm] * 2, rel=1e-4)
    assert [f.loss for f in found] == pytest.approx([found[0].loss] * 2, abs=1e-6)


EQUAL = "def same(completions, **_):\n    return [1.0 for _ in completions]\n"


def test_groups_without_signal_skip_the_update_and_say_so(world: Path, tmp_path: Path) -> None:
    (world / "same.py").write_text(EQUAL)
    rewards = {"functions": [f"{world}/same.py:same"]}
    events = events_of(
        settings(world, steps=1, rewards=rewards, algorithm={"recipe": "dr-grpo"}), tmp_path
    )
    assert "no group had a signal" in of(StepSkipped, events)[0].reason
    assert of(PassFinished, events) == []
    metrics = of(StepFinished, events)[0].metrics
    assert (metrics["groups/skipped"], metrics["frac_reward_zero_std"]) == (2, 1)
    with_leash = events_of(settings(world, steps=1, rewards=rewards), tmp_path / "leash")
    assert of(StepSkipped, with_leash) == []
    assert len(of(PassFinished, with_leash)) == 1


def test_refills_replace_groups_without_variance_and_give_up_in_time(
    world: Path, tmp_path: Path
) -> None:
    (world / "same.py").write_text(EQUAL)
    rewards = {"functions": [f"{world}/same.py:same"]}
    algorithm = {"recipe": "dapo", "refill_rounds": 2, "overlong_buffer": 0.0}
    events = events_of(settings(world, steps=1, rewards=rewards, algorithm=algorithm), tmp_path)
    groups = groups_of(events)
    assert [(g.index, g.refill) for g in groups] == [
        (0, 0),
        (1, 0),
        (2, 1),
        (3, 1),
        (4, 2),
        (5, 2),
    ]
    assert len({g.example_key for g in groups}) == 6
    assert all("replaced" in g.no_signal for g in groups)
    assert of(StepFinished, events)[0].metrics["groups/refilled"] == 6
    assert "refills_exhausted" in [alert.rule for alert in of(AlertRaised, events)]


HALF = """
def half(prompts, completions, **_):
    return [1.0 if int(prompt.split()[1][:-1]) % 2 else 0.5 + len(set(text)) / 100
            for prompt, text in zip(prompts, completions)]
"""


def test_rewards_of_all_sampled_answers_are_reported_where_groups_were_replaced(
    world: Path, tmp_path: Path
) -> None:
    (world / "half.py").write_text(HALF)
    rewards = {"functions": [f"{world}/half.py:half"], "weights": [2.0]}
    algorithm = {"recipe": "dapo", "refill_rounds": 3, "overlong_buffer": 0.0}
    config = settings(world, steps=4, rewards=rewards, algorithm=algorithm)
    events = events_of(config, tmp_path)
    replaced_in = set()
    for finished in of(StepFinished, events):
        metrics = finished.metrics
        groups = [
            e.group
            for e in of(GroupScored, events)
            if e.step == finished.step and e.group.origin == "train"
        ]
        scores = [c.rewards[0].value or 0.0 for g in groups for c in g.rollouts]
        kept = [c.rewards[0].value or 0.0 for g in groups if not g.no_signal for c in g.rollouts]
        if metrics["groups/refilled"]:
            replaced_in.add(finished.step)
            assert metrics["sampled/rewards/half/mean"] == pytest.approx(fmean(scores))
            assert metrics["sampled/reward"] == pytest.approx(2 * fmean(scores))
            if kept:
                assert metrics["rewards/half/mean"] == pytest.approx(fmean(kept), abs=1e-6)
        else:
            assert not any(key.startswith("sampled/") for key in metrics)
    assert replaced_in


def test_pinned_prompts_are_the_same_and_followed_with_the_same_noise(
    world: Path, tmp_path: Path
) -> None:
    events = events_of(settings(world, optimizer={"learning_rate": 0.0, "micro_rows": 4}), tmp_path)
    pinned = [e for e in of(GroupScored, events) if e.group.origin == "pinned"]
    assert [event.step for event in pinned] == [0, 2, 4]
    assert len({event.group.example_key for event in pinned}) == 1
    ids = [tuple(answer.ids for answer in event.group.rollouts) for event in pinned]
    assert ids[0] == ids[1] == ids[2]
    scored = {e.step: e for e in of(TokensScored, events) if e.origin == "pinned"}
    assert scored[0].numbers[0].after == ()
    assert scored[2].numbers[0].after == scored[2].numbers[0].old  # learning rate 0


def test_a_prompt_can_be_pinned_while_the_run_goes_on(world: Path, tmp_path: Path) -> None:
    control = Control()
    pinned = set()
    for event in trainer.run(settings(world), control, folder=tmp_path):
        if isinstance(event, GroupScored):
            if event.step == 1 and event.group.origin == "train":
                control.pin(event.group.example_key)
            if event.step == 4 and event.group.origin == "pinned":
                pinned.add(event.group.example_key)
    assert len(pinned) == 3


def test_evaluation_before_during_and_after(world: Path, tmp_path: Path) -> None:
    evaluation = {"before_and_after": True, "every": 2, "samples": 3, "problems": 4, "pinned": 0}
    events = events_of(settings(world, evaluation=evaluation), tmp_path)
    found = of(EvaluationFinished, events)
    assert [(e.step, e.moment, e.mode) for e in found] == [
        (0, "before", "greedy"),
        (0, "before", "sampled"),
        (2, "during", "greedy"),
        (2, "during", "sampled"),
        (4, "after", "greedy"),
        (4, "after", "sampled"),
    ]
    sampled = found[1]
    assert (sampled.problems, sampled.samples) == (4, 3)
    right = sum(row.correct or 0 for row in sampled.rows)
    assert sampled.metrics["eval/accuracy"] == pytest.approx(right / 12)
    assert {"eval/pass@2", "eval/pass@3", "eval/accuracy_low", "eval/rewards/letters"} <= set(
        sampled.metrics
    )
    trained = {e.group.example_key for e in of(GroupScored, events) if e.group.origin == "train"}
    held_out = {row.example_key for row in sampled.rows}
    assert not trained & held_out
    assert of(CheckpointSaved, events)[-1].step == 4


@pytest.mark.parametrize("moment", ["RolloutsAdvanced", "PassFinished", "PhaseStarted"])
def test_stop_now_drops_the_step_and_writes_nothing(
    world: Path, tmp_path: Path, moment: str
) -> None:
    control, seen = Control(), []
    for event in trainer.run(settings(world), control, folder=tmp_path):
        if type(event).__name__ == moment and event.step == 3:
            control.ask("stop_now")
        seen.append(event)
    end = seen[-1]
    assert isinstance(end, RunFinished)
    assert (end.reason, end.step) == ("aborted", 2)  # the last step that was finished
    assert [event.step for event in of(StepFinished, seen)] == [1, 2]
    assert [event.step for event in of(CheckpointSaved, seen)] == [2]


@pytest.mark.parametrize("step", [1, 2])
def test_stop_now_between_steps_writes_no_checkpoint(
    world: Path, tmp_path: Path, step: int
) -> None:
    control, seen = Control(), []
    for event in trainer.run(settings(world), control, folder=tmp_path):
        if isinstance(event, StepFinished) and event.step == step:
            control.ask("stop_now")
        seen.append(event)
    end = seen[-1]
    assert isinstance(end, RunFinished)
    assert (end.reason, end.step) == ("aborted", step)
    assert of(CheckpointSaved, seen) == []


def test_a_gradient_that_is_not_finite_is_left_out_and_its_group_named(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlx.core as mx

    from grpo_engine.policy.batch import TokenBatch
    from grpo_engine.policy.forward import TokenScores, token_scores
    from grpo_engine.run import local

    def poisoned(policy: Any, batch: TokenBatch, **named: Any) -> TokenScores:
        new = token_scores(policy, batch, **named)
        if not named.get("gradient", True):
            return new
        of_group_1 = mx.array(batch.rows) >= 4  # of two groups of four
        factor = mx.where(of_group_1, mx.inf, 0.0)[:, None]
        return replace(new, logprobs=new.logprobs + new.logprobs * factor)

    monkeypatch.setattr(local, "token_scores", poisoned)
    events = events_of(settings(world, steps=5), tmp_path)
    alerts = [alert for alert in of(AlertRaised, events) if alert.rule == "not_finite"]
    assert [alert.group for alert in alerts] == [1, 1, 1]
    end = events[-1]
    assert isinstance(end, RunFailed)
    assert end.error == "NotFiniteError"
    assert end.step == 3
    assert len(of(StepSkipped, events)) == 3


def test_a_folder_that_holds_a_run_is_not_trained_over(world: Path, tmp_path: Path) -> None:
    config = settings(world, steps=1, checkpoint={"every": 1})
    events_of(config, tmp_path)
    end = events_of(config, tmp_path)[-1]
    assert isinstance(end, RunFailed)
    assert (end.error, str(tmp_path) in end.message) == ("CheckpointError", True)


def test_a_run_keeps_its_settings_when_it_is_resumed(world: Path, tmp_path: Path) -> None:
    for event in trainer.run(settings(world), Control(), folder=tmp_path):
        if isinstance(event, CheckpointSaved):
            break
    assert "seed 5 -> 6" in failure(settings(world, seed=6), tmp_path, resume=True).message
