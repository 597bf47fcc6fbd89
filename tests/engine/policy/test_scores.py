"""Every fast scoring path gives the values and gradients of the plain path."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from grpo_engine.config.settings import ModelConfig
from grpo_engine.policy.batch import make_batch, micro_batches
from grpo_engine.policy.forward import token_scores
from grpo_engine.policy.head import constant_scores
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.switches import FastPaths
from tests.engine.conftest import MakePolicy
from tests.engine.policy.helpers import (
    Ids,
    largest_difference,
    made_up_rows,
    move_weights,
    weighted_loss,
)
from tests.engine.tiny import GEMMA2, MAMBA, write_model

ROWS = made_up_rows([(7, (3, 5, 1)), (4, (9, 2, 4)), (1, (3, 3))])
PLAIN = FastPaths.plain()
FAST = {
    "all of them": FastPaths(head_chunk=7),
    "layers by MLX": FastPaths(head_chunk=7, compiled_passes=False),
    "prompts first": FastPaths(head_chunk=7, packed=False),
    "selective head": replace(PLAIN, selective_head=True),
    "shared prefix": replace(PLAIN, selective_head=True, shared_prefix=True),
    "fused head": replace(PLAIN, selective_head=True, fused_head=True),
    "chunked head": replace(PLAIN, selective_head=True, head_chunk=3),
    "buckets": FastPaths(bucket=8),
    "fast gate": replace(PLAIN, selective_head=True, fast_gate=True),
    "fast attention": replace(PLAIN, selective_head=True, shared_prefix=True, fast_attention=True),
    "packed": replace(
        PLAIN, selective_head=True, shared_prefix=True, fast_attention=True, packed=True
    ),
}


@pytest.mark.parametrize("checkpointed", ["off", "on"])
@pytest.mark.parametrize("tuning", ["lora", "dora", "full"])
def test_fast_paths_give_the_plain_values_and_gradients(
    make_policy: MakePolicy, tuning: str, checkpointed: str
) -> None:
    plain = make_policy(tuning=tuning, fast=PLAIN)
    move_weights(plain)
    expected, expected_gradient = weighted_loss(plain, ROWS)
    policy = make_policy(tuning=tuning, grad_checkpoint=checkpointed)
    move_weights(policy)
    for name, fast in FAST.items():
        policy.fast = fast
        value, gradient = weighted_loss(policy, ROWS)
        assert value == pytest.approx(expected, abs=1e-3), name
        assert largest_difference(gradient, expected_gradient) < 1e-4, name


@pytest.mark.parametrize("shape", [
    [(6, (5, 5, 5))],  # nothing to pad
    [(6, (5, 5)), (6, (5, 5))],
    [(6, (4, 4)), (3, (4,)), (1, (2, 0))],  # another number of rows each; an empty answer
    [(2, (1, 1))],
])  # fmt: skip
def test_prompts_and_answers_run_as_one_sequence_without_padding(
    make_policy: MakePolicy, monkeypatch: pytest.MonkeyPatch, shape: Any
) -> None:
    rows = made_up_rows(shape)
    rows[0] = replace(rows[0], forced=(1,) if len(rows[0].ids) > 4 else ())
    policy = make_policy(fast=PLAIN)
    move_weights(policy)
    expected, expected_gradient = weighted_loss(policy, rows, rows_at_most=99)
    policy.fast = FastPaths()
    assert policy.parts is not None
    run, seen = policy.parts.hidden, []

    def hidden(ids: mx.array, cache: list[Any] | None = None) -> mx.array:
        seen.append(ids.shape)
        return run(ids, cache)

    monkeypatch.setattr(policy.parts, "hidden", hidden)
    value, gradient = weighted_loss(policy, rows, rows_at_most=99)
    assert seen == [(1, sum(prompt - 1 + sum(answers) for prompt, answers in shape))]
    assert value == pytest.approx(expected, abs=1e-3)
    assert largest_difference(gradient, expected_gradient) < 1e-4


def test_constants_by_numpy_equal_those_by_mlx() -> None:
    hidden = mx.random.normal((5, 8), key=mx.random.key(1))
    head = mx.random.normal((8, 5000), key=mx.random.key(2))
    tokens = mx.array([0, 4999, 17, 4095, 4096])

    def times(states: mx.array) -> mx.array:
        return states @ head

    for temperature, size in ((1.0, 1), (0.6, 1), (1.0, 1000)):  # e^1000 is no float32
        states = size * hidden
        given, expected = (
            constant_scores(times, states, tokens, temperature, entropy=False, fast=fast).logprobs
            for fast in (True, False)
        )
        assert mx.allclose(given, expected, rtol=1e-6, atol=1e-5)


def test_entropy_and_values_have_the_plain_gradients_too(make_policy: MakePolicy) -> None:
    policy = make_policy(critic=True, fast=FAST["selective head"])
    move_weights(policy)
    policy.load_critic({"weight": mx.ones(32) * 0.1, "bias": mx.ones(1)})
    expected, expected_gradient = weighted_loss(policy, ROWS, entropy=True, values=True)
    assert "critic.weight" in expected_gradient
    for name, fast in FAST.items():
        policy.fast = fast
        value, gradient = weighted_loss(policy, ROWS, entropy=True, values=True)
        assert value == pytest.approx(expected, abs=1e-3), name
        assert largest_difference(gradient, expected_gradient) < 1e-4, name


@pytest.mark.parametrize("checkpointed", ["off", "on"])
def test_a_quantised_base_trains_through_a_shared_prefix(tmp_path: Path, checkpointed: str) -> None:
    from mlx_lm import convert

    source = write_model(tmp_path / "whole", hidden_size=64, intermediate_size=128)
    convert(str(source), str(tmp_path / "packed"), quantize=True, q_group_size=32, q_bits=8)
    config = ModelConfig(
        path=str(tmp_path / "packed"), quantized="keep", grad_checkpoint=checkpointed
    )
    policy = load_policy(config, seed=0)
    move_weights(policy)
    value, gradient = weighted_loss(policy, ROWS)
    policy.fast = PLAIN
    expected, expected_gradient = weighted_loss(policy, ROWS)
    assert value == pytest.approx(expected, abs=1e-3)
    assert largest_difference(gradient, expected_gradient) < 1e-4


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
        {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 8},
        {"tie_word_embeddings": False},
        {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
        {
            "model_type": "granite", "architectures": ["GraniteForCausalLM"],
            "logits_scaling": 3.0, "attention_multiplier": 0.3, "embedding_multiplier": 2.0,
            "residual_multiplier": 0.7, "attention_bias": False, "mlp_bias": False,
        },
        {
            "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "head_dim": 8,
            "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1,
            "mlp_only_layers": [], "moe_intermediate_size": 32, "norm_topk_prob": True,
        },
    ],
    ids=["qwen2", "qwen3", "untied", "windows", "scaled logits", "experts"],
)  # fmt: skip
def test_other_models_take_the_fast_paths_as_well(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = write_model(tmp_path / "model", scale=1.0, **changes)
    policy = load_policy(ModelConfig(path=str(folder)), seed=0)
    assert policy.notes == ()
    move_weights(policy)
    value, gradient = weighted_loss(policy, ROWS)
    policy.fast = PLAIN
    expected, expected_gradient = weighted_loss(policy, ROWS)
    assert value == pytest.approx(expected, abs=1e-3)
    assert largest_difference(gradient, expected_gradient) < 1e-4


@pytest.mark.parametrize("changes", [MAMBA, GEMMA2], ids=["mamba", "gemma2"])
def test_a_model_that_shares_no_prefix_takes_the_plain_path_and_says_so(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    folder = write_model(tmp_path / "model", scale=1.0, **changes)
    policy = load_policy(ModelConfig(path=str(folder)), seed=0)
    assert any("prompts run per row" in note for note in policy.notes)
    move_weights(policy, 0.05)
    value, gradient = weighted_loss(policy, ROWS)
    policy.fast = PLAIN
    expected, expected_gradient = weighted_loss(policy, ROWS)
    assert value == pytest.approx(expected, abs=1e-3)
    assert largest_difference(gradient, expected_gradient) < 1e-4


def test_constants_equal_what_is_differentiated(make_policy: MakePolicy) -> None:
    policy = make_policy()
    move_weights(policy)
    (batch,) = micro_batches(ROWS, rows_at_most=99)
    kept = token_scores(policy, batch, temperature=0.7, gradient=False, entropy=True)
    live = token_scores(policy, batch, temperature=0.7, entropy=True)
    assert kept.entropy is not None
    assert live.entropy is not None
    assert mx.allclose(kept.logprobs, live.logprobs, atol=1e-5)
    assert mx.allclose(kept.entropy, live.entropy, atol=1e-5)


def test_micro_batches_sum_to_the_whole(make_policy: MakePolicy) -> None:
    policy = make_policy()
    move_weights(policy)
    expected, expected_gradient = weighted_loss(policy, ROWS, rows_at_most=99)
    for rows in (1, 2, 3):
        value, gradient = weighted_loss(policy, ROWS, rows_at_most=rows)
        assert value == pytest.approx(expected, abs=1e-3)
        assert largest_difference(gradient, expected_gradient) < 1e-4


def test_a_micro_batch_is_whole_groups_or_a_slice_of_one() -> None:
    batches = micro_batches(ROWS, rows_at_most=2)
    assert sorted(row for batch in batches for row in batch.rows) == list(range(len(ROWS)))
    assert [[len(ids) for ids in batch.completions] for batch in batches] == [
        [9, 4], [5, 3], [3, 3], [2], [1],
    ]  # fmt: skip
    assert all(len(batch.prompts) == 1 for batch in batches)
    two = micro_batches(ROWS, rows_at_most=6)
    assert [batch.rows for batch in two] == [(3, 5, 4, 1, 0, 2), (6, 7)]


def test_padding_and_forced_tokens_have_no_score_and_no_gradient(make_policy: MakePolicy) -> None:
    policy = make_policy()
    rows = [Ids((1, 2, 3), (4, 5, 6)), Ids((1, 2, 3), (7,)), Ids((1, 2, 3), (8, 9), forced=(1,))]
    batch = make_batch(rows, range(3))
    assert batch.mask.tolist() == [[1, 1, 1], [1, 0, 0], [1, 0, 0]]
    scored = token_scores(policy, batch, temperature=1.0, gradient=False).logprobs
    assert mx.array_equal(scored != 0, batch.mask == 1)


def test_the_temperature_is_in_the_log_probabilities(make_policy: MakePolicy) -> None:
    policy = make_policy()
    prompt, ids = (5, 6, 7), (8, 9)
    batch = make_batch([Ids(prompt, ids)], [0])
    found = token_scores(policy, batch, temperature=0.5, gradient=False).logprobs
    logits = policy.model(mx.array([[*prompt, *ids]]))[0].astype(mx.float32) / 0.5
    expected = [
        float((logits[place] - mx.logsumexp(logits[place]))[token])
        for place, token in ((2, 8), (3, 9))
    ]
    assert np.array(found)[0].tolist() == pytest.approx(expected, abs=1e-4)
