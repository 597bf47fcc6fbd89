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
from grpo_engine.policy import memory
from grpo_engine.policy.batch import micro_batches
from grpo_engine.policy.forward import token_scores
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.memory import (
    MemoryEstimate,
    Sizes,
    choose_micro_rows,
    estimate_memory,
)
from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts.decode import sample_groups
from grpo_engine.rollouts.prompts import RenderedPrompt
from grpo_engine.rollouts.types import PromptRows, Sampling
from grpo_engine.setup import preflight
from grpo_engine.tasks.base import Example, load_task
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


def test_no_more_rows_are_chosen_than_help_on_a_cpu(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen(prompt_tokens: int, new_tokens: int) -> int:
        return choose_micro_rows(policy, rows=4096, prompt_tokens=prompt_tokens,
                                 new_tokens=new_tokens, budget=10**12)  # fmt: skip

    hidden = Sizes.of(policy).hidden
    assert chosen(8, 64) == 2**19 // hidden // 64
    assert chosen(8, 2**19) == 1
    assert chosen(4000, 64) == 500  # 8 x 4,000 tokens of answers for each time that it runs
    monkeypatch.setattr(memory, "on_cpu", lambda: False)
    assert chosen(8, 64) == 4096


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
    policy.pass_bytes = 0
    in_mlx = measured(lambda: mx.eval(nn.value_and_grad(policy.module, loss)()))
    assert in_mlx + policy.pass_bytes == pytest.approx(found.update + trained, rel=0.4)
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
        preflight.check_memory(settings(world), policy, preflight.Lengths(8, 12), 4)
    assert "10000.0 GB" in str(refused.value)


def test_a_dialogue_is_estimated_with_its_replies(world: Path) -> None:
    """Prompts of 8 tokens, as `say 12: `, and 12 of the model in at most 3 turns.

    Two replies of 64 tokens follow them: 12 + 2 * 64 = 140. A limit of 100 leaves 100 - 8 = 92, a
    context of 64 leaves 64 - 8 = 56.
    """

    def answer(context: int = 1000, environment: str = "game.py:Game", most: int = 0) -> int:
        config = settings(
            world, task={"environment": environment, "max_turns": 3}, rollout={"max_context": most}
        )

        def render(example: Example) -> RenderedPrompt:
            return RenderedPrompt(ids=(1,) * 8, text=str(example.prompt), prompt=example.prompt)

        found = preflight.longest(config, load_task(config.task), context, render)
        assert found.prompt == 8
        return found.answer

    assert answer(environment="") == 12
    assert answer() == 140
    assert answer(most=100) == 92
    assert answer(context=64) == 56
    assert answer(context=64, most=100) == 56


def test_a_dialogue_that_does_not_fit_is_told_to_limit_its_context(world: Path) -> None:
    """Half of the 140 tokens after the prompt of 8: 8 + 70."""
    estimate = MemoryEstimate(weights=1, optimizer=1, sampling=5, update=10)
    said = preflight.remedy(settings(world), estimate, 4, preflight.Lengths(8, 140))
    assert "or rollout.max_context=78." in said
    said = preflight.remedy(settings(world), estimate, 4, preflight.Lengths(8, 12))
    assert "or rollout.max_new_tokens=6." in said
