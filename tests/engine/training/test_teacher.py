"""On-policy distillation: a teacher scores what the policy sampled, and that pushes each token."""

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_lm import convert

from grpo_engine import trainer
from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.events import (
    Event,
    NoteWritten,
    RunFailed,
    StepFinished,
)
from grpo_engine.policy.embedded import EMBEDDED
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.memory import Lengths
from grpo_engine.policy.trees import flatten
from grpo_engine.run import checkpoint
from grpo_engine.setup.preflight import estimated, plan_memory
from grpo_engine.setup.teacher import load_teacher
from tests.engine.runs import cut_off, events_of, failure, groups_of, of, settings, write_world
from tests.engine.tiny import write_model
from tests.engine.training.test_resume import facts


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_world(tmp_path_factory.mktemp("world"))
    write_model(folder / "teacher", seed=9, hidden_size=64, num_hidden_layers=3)
    # the starter, a little surer of itself
    shutil.copytree(EMBEDDED["starter"], folder / "sure")
    file = folder / "sure" / "model.safetensors"
    weights: dict[str, mx.array] = mx.load(str(file))  # type: ignore[assignment]
    mx.eval(weights)
    mx.save_safetensors(
        str(file), {name: 1.1 * value for name, value in weights.items()}, {"format": "mlx"}
    )
    convert(str(folder / "sure"), str(folder / "packed"), quantize=True, q_group_size=32, q_bits=4)
    return folder


def distilling(world: Path, teacher: str = "teacher", **changes: Any) -> RunConfig:
    tree = {"algorithm": {"recipe": "distill"}, "teacher": {"path": str(world / teacher)}}
    return settings(world, **tree | changes)


def of_steps(events: list[Event]) -> list[dict[str, float]]:
    assert not isinstance(events[-1], RunFailed), events[-1]
    return [dict(event.metrics) for event in of(StepFinished, events)]


def test_a_teacher_and_its_weight_need_each_other(world: Path, tmp_path: Path) -> None:
    for tree in ({"algorithm": {"recipe": "distill"}}, {"teacher": {"path": "starter"}}):
        assert "a teacher needs both" in failure(settings(world, **tree), tmp_path).message


# -- a step against plain autodiff ------------------------------------------------------------


def logprobs_of(model: Any, prompt: tuple[int, ...], ids: tuple[int, ...], heat: float) -> mx.array:
    """Of each token of an answer, from the whole model's logits."""
    logits = model(mx.array([[*prompt, *ids]])).astype(mx.float32)[0, len(prompt) - 1 : -1] / heat
    scores = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return mx.take_along_axis(scores, mx.array(ids)[:, None], axis=-1)[:, 0]


CASES = {
    "float32": ("sure", {"dtype": "float32"}, 1e-5),
    "bfloat16": ("sure", {"dtype": "bfloat16"}, 2e-2),
    "quantised": ("packed", {"quantized": "keep"}, 1e-5),
    "dequantised": ("packed", {"quantized": "dequantize"}, 1e-5),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "weight", ["per_token", pytest.param("per_sequence", marks=pytest.mark.slow)]
)
def test_the_gradient_is_that_of_the_estimate_by_plain_autodiff(
    world: Path, tmp_path: Path, case: str, weight: str
) -> None:
    teacher, model, tolerance = CASES[case]
    rate, heat = 1.0, 1.3  # so large a step that the weights' rounding is small beside it
    config = distilling(
        world,
        teacher,
        steps=1,
        model={"path": "starter", **model},
        algorithm={
            "recipe": "distill",
            "weight": weight,
            "importance_cap": 0.0,
            "passes": 1,
            "minibatches": 1,
        },
        optimizer={
            "name": "sgd",
            "learning_rate": rate,
            "max_grad_norm": 0.0,
            "micro_rows": 3,
            "options": {"beta1": 0.0},
        },
        rollout={"prompts": 2, "group_size": 4, "max_new_tokens": 12, "temperature": heat},
    )
    events = events_of(config, tmp_path)
    (metrics,) = of_steps(events)
    groups = groups_of(events)
    answers = [(group.prompt_ids, answer.ids) for group in groups for answer in group.rollouts]
    policy = load_policy(config.model, seed=config.seed)
    taught = load_teacher(config, policy)
    assert (case == "quantised") == any(".scales" in n for n in flatten(taught.model.parameters()))
    gaps = [
        logprobs_of(taught.model, *answer, heat) - logprobs_of(policy.model, *answer, heat)
        for answer in answers
    ]
    tokens = sum(len(ids) for _, ids in answers)
    per_token = weight == "per_token"

    def loss(model: Any) -> mx.array:
        total = mx.array(0.0)
        for gap, answer in zip(gaps, answers, strict=True):
            divisor = tokens if per_token else len(answer[1]) * len(answers)
            total = total - (gap * logprobs_of(model, *answer, heat)).sum() / divisor
        return total

    gradient = flatten(nn.value_and_grad(policy.model, loss)(policy.model)[1])
    before = policy.snapshot()
    after = checkpoint.load(tmp_path, 1).tensors("trained")
    largest = max(float(mx.abs(array).max()) for array in gradient.values())
    assert largest > 0.01
    for name, expected in gradient.items():
        found = (before[name] - after[name]) / rate
        if name.endswith("lora_b"):  # which begins at 0, so that nothing is rounded away
            np.testing.assert_allclose(found, expected, atol=tolerance * largest)
    kl = -float(sum(gap.sum() for gap in gaps)) / tokens
    assert metrics["teacher/kl"] == pytest.approx(kl, rel=max(tolerance, 1e-4))


# -- which teacher ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_runs_adapter_is_a_teacher_on_the_model_that_it_names(
    world: Path, tmp_path: Path
) -> None:
    events_of(settings(world, steps=2), tmp_path / "grpo")
    folder = checkpoint.folder(tmp_path / "grpo", 2)
    config = distilling(world, str(folder), steps=1)
    policy = load_policy(config.model, seed=config.seed)
    teacher = load_teacher(config, policy)
    assert teacher.trainable_parameters == 0
    assert teacher.kernels is None
    # before the first update the policy is the base model, which the trained run has left
    (metrics,) = of_steps(events_of(config, tmp_path / "distill"))
    assert 0 < metrics["teacher/kl"] < 1
    bare = load_teacher(distilling(world, "model"), policy)
    assert bare.fingerprint != teacher.fingerprint


@pytest.mark.slow
def test_another_vocabulary_is_named_before_the_first_step(world: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "small", vocab_size=250)
    text = failure(distilling(world, str(tmp_path / "small")), tmp_path / "a").message
    assert "has another vocabulary: it has 250 logits and the policy 261" in text
    # a head with spare rows, as larger models of a family have
    write_model(tmp_path / "padded", vocab_size=320)
    of_steps(events_of(distilling(world, str(tmp_path / "padded"), steps=1), tmp_path / "b"))
    other = write_model(tmp_path / "other")
    tokens = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokens["model"]["vocab"]
    vocabulary["A"], vocabulary["B"] = vocabulary["B"], vocabulary["A"]
    (other / "tokenizer.json").write_text(json.dumps(tokens))
    text = failure(distilling(world, str(other)), tmp_path / "c").message
    first = min(vocabulary["A"], vocabulary["B"])
    assert f"has another vocabulary: only {world / 'model'} has token {first}, 'A'" in text
    assert "choose a teacher of the same family" in text


def test_a_teacher_that_cannot_be_loaded_is_named_by_its_setting(
    world: Path, tmp_path: Path
) -> None:
    text = failure(distilling(world, "nowhere"), tmp_path).message
    assert text.startswith(f"teacher.path: there is no folder {world / 'nowhere'}")


# -- resuming ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_resumes_with_its_teacher_to_the_bit_and_refuses_another(
    world: Path, tmp_path: Path
) -> None:
    shutil.copytree(world / "teacher", tmp_path / "teacher")
    config = distilling(
        world,
        str(tmp_path / "teacher"),
        steps=4,
        algorithm={"recipe": "grpo", "teacher_weight": 0.3, "minibatches": 2},
    )
    unbroken = events_of(config, tmp_path / "whole")
    cut_off(config, tmp_path / "cut", lambda event: event.step == 3)
    shutil.copytree(tmp_path / "cut", tmp_path / "again")
    resumed = events_of(config, tmp_path / "cut", resume=True)
    assert not isinstance(resumed[-1], RunFailed), resumed[-1]
    assert facts(resumed, 2) == facts(unbroken, 2)
    assert not [e for e in of(NoteWritten, resumed) if e.severity == "warning"]
    write_model(tmp_path / "teacher", seed=2, hidden_size=64, num_hidden_layers=3)
    text = failure(config, tmp_path / "again", resume=True).message
    assert text.startswith(f"the content of teacher.path {tmp_path / 'teacher'} was ")
    assert "restore the teacher, or clone the run" in text


def test_an_evaluation_loads_no_teacher(world: Path, tmp_path: Path) -> None:
    config = distilling(world, "nowhere")
    events = list(trainer.evaluate_only(config, Control(), folder=tmp_path))
    assert not isinstance(events[-1], RunFailed), events[-1]


def test_the_memory_of_a_step_counts_the_teacher(world: Path) -> None:
    config = distilling(world)
    policy = load_policy(config.model, seed=0)
    lengths = Lengths(prompt=20, completion=12)
    plan = plan_memory(config, policy, lengths, 10**9)
    alone = estimated(config, policy, lengths, plan)
    policy.teacher = load_teacher(config, policy)
    both = estimated(config, policy, lengths, plan)
    weights = sum(array.nbytes for array in flatten(policy.teacher.model.parameters()).values())
    assert both.teacher == weights > 0
    assert both.peak >= alone.peak + weights
    assert (both.weights, both.optimizer) == (alone.weights, alone.optimizer)
    plan._replace(head_chunk=32).apply(policy)
    assert policy.teacher.head_chunk == 32
