"""A step that cannot fit is refused, with numbers and with settings that would help."""

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from grpo_engine.config.settings import ModelConfig
from grpo_engine.errors import MemoryLimitError
from grpo_engine.policy.batch import micro_batches
from grpo_engine.policy.forward import token_scores
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.memory import choose_micro_rows, estimate_memory
from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts.decode import sample_groups
from grpo_engine.rollouts.types import PromptRows, Sampling
from grpo_engine.setup import preflight
from tests.engine.policy.helpers import drain, made_up_rows
from tests.engine.runs import settings, write_world
from tests.engine.tiny import write_model


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def policy(world: Path) -> Policy:
    return load_policy(settings(world).model, seed=0)


def test_more_rows_and_longer_answers_need_more(policy: Policy) -> None:
    small = estimate_memory(policy, rows=8, micro_rows=2, prompt_tokens=8, new_tokens=12)
    rows = estimate_memory(policy, rows=16, micro_rows=4, prompt_tokens=8, new_tokens=12)
    longer = estimate_memory(policy, rows=8, micro_rows=2, prompt_tokens=8, new_tokens=24)
    assert 1.5 * small.update < rows.update < 2 * small.update  # the prompt is processed once
    assert rows.sampling > small.sampling
    assert longer.update > small.update
    assert small.weights == (26_944 + 4_096) * 4  # the model and its adapter in float32
    assert small.optimizer == 4_096 * 4 * 4  # two gradients and two moments of the trained weights


def test_chosen_rows_fit_the_budget(policy: Policy) -> None:
    for budget in (300_000, 1_000_000, 10_000_000):
        rows = choose_micro_rows(policy, rows=64, prompt_tokens=8, new_tokens=12, budget=budget)
        found = estimate_memory(policy, rows=0, micro_rows=rows, prompt_tokens=8, new_tokens=12)
        assert rows == 1 or found.weights + found.optimizer + found.update <= budget
    assert rows == 64


@pytest.fixture(scope="module")
def wider(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose activations are larger than the other memory that MLX holds."""
    return write_model(
        tmp_path_factory.mktemp("models") / "wider", hidden_size=128, intermediate_size=384,
        num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4,
    )  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"shared_prefix": False}, {"grad_checkpoint": True}, {"tuning": "full"},
        {"tuning": "dora"}, {"lora_layers": 3},
    ],
    ids=str,
)  # fmt: skip
def test_the_estimate_is_near_the_measured_peaks(wider: Path, changes: dict[str, Any]) -> None:
    policy = load_policy(ModelConfig(path=str(wider), **changes), seed=0)
    rows = made_up_rows([(60, [48] * 8)])
    (batch,) = micro_batches(rows, rows_at_most=8)

    def loss() -> mx.array:
        return token_scores(policy, batch, temperature=1.0).logprobs.sum()

    found = estimate_memory(policy, rows=8, micro_rows=8, prompt_tokens=60, new_tokens=48)
    trained = 4 * policy.trainable_parameters
    assert measured(lambda: mx.eval(nn.value_and_grad(policy.module, loss)())) == pytest.approx(
        found.update + trained, rel=0.4
    )
    asked = [PromptRows(key="p", group=0, ids=rows[0].prompt_ids, rows=8)]
    sampling = Sampling(max_new_tokens=48, ignore_end=True)
    assert measured(
        lambda: drain(sample_groups(policy, asked, sampling, seed=0, step=0))
    ) == pytest.approx(found.sampling, rel=0.4)


def measured(work: Callable[[], object]) -> int:
    """Peak memory of MLX during some work, in bytes beyond what it held before."""
    gc.collect()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    work()
    return int(mx.get_peak_memory() - before)


@pytest.mark.parametrize(
    ("part", "remedy"),
    [
        ("update", "optimizer.micro_rows=2"),
        ("sampling", "rollout.max_rows=4"),
        ("weights", "model.tuning=lora"),
    ],
)
def test_a_step_that_cannot_fit_is_refused_with_what_would_help(
    world: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch, part: str, remedy: str
) -> None:
    real = estimate_memory(policy, rows=8, micro_rows=4, prompt_tokens=8, new_tokens=12)
    huge = replace(real, **{part: 10**13})
    monkeypatch.setattr(preflight, "estimate_memory", lambda *_, **__: huge)
    with pytest.raises(MemoryLimitError, match=remedy) as refused:
        preflight.check_memory(settings(world), policy, 8, 4)
    assert "10000.0 GB" in str(refused.value)
