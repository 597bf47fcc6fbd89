"""Scoring gives the values and gradients of the whole model on one row at a time."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from grpo_engine.config.settings import ModelConfig
from grpo_engine.policy.batch import micro_batches
from grpo_engine.policy.load import load_policy
from tests.engine.conftest import MakePolicy
from tests.engine.policy.helpers import (
    COMPUTES,
    assert_equals_oracle,
    largest_difference,
    made_up_rows,
    move_weights,
    packed_model,
    weighted_loss,
)
from tests.engine.policy.oracle import oracle_loss
from tests.engine.policy.test_families import EXPERTS, GRANITE
from tests.engine.tiny import AFM7, MAMBA, write_model

ROWS = made_up_rows([(7, (3, 5, 1)), (4, (9, 2, 4)), (1, (3, 3))])
WAYS: dict[str, dict[str, Any]] = {
    "LoRA": {},
    "last layer": {"lora_layers": 1},
    "DoRA": {"tuning": "dora"},
    "full": {"tuning": "full"},
    "layers recomputed": {"grad_checkpoint": "on"},
    "DoRA, recomputed": {"tuning": "dora", "grad_checkpoint": "on"},
    "full, recomputed": {"tuning": "full", "grad_checkpoint": "on"},
    "prompts per row": {"compute": "rows"},
}


@pytest.mark.parametrize("way", WAYS)
def test_the_graph_has_the_values_and_gradients_of_the_oracle(
    make_policy: MakePolicy, way: str
) -> None:
    policy = make_policy(**{"compute": "graph", **WAYS[way]})
    move_weights(policy)
    policy.head_chunk = 7
    assert_equals_oracle(policy, ROWS)


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize(
    "shape",
    [
        [(6, (5, 5, 5))],  # nothing to pad
        [(6, (5, 5)), (6, (5, 5))],
        [(6, (4, 4)), (3, (4,)), (1, (2, 0))],  # another number of rows each; an empty answer
        [(2, (1, 1))],
        [(1, (1,)), (1, (4, 2))],
    ],
)
def test_prompts_and_answers_of_any_length_have_those_of_the_oracle(
    make_policy: MakePolicy, shape: Any, compute: str
) -> None:
    rows = made_up_rows(shape)
    rows[0] = replace(rows[0], forced=(1,) if len(rows[0].ids) > 4 else ())
    policy = make_policy(compute=compute)
    move_weights(policy)
    assert_equals_oracle(policy, rows, together=[99])


@pytest.mark.parametrize("way", WAYS)
def test_bfloat16_has_those_of_the_oracle_to_its_rounding(
    make_policy: MakePolicy, way: str
) -> None:
    policy = make_policy(dtype="bfloat16", **WAYS[way])
    move_weights(policy, 0.1)
    expected, expected_gradient = oracle_loss(policy, ROWS)
    value, gradient = weighted_loss(policy, ROWS)
    assert value == pytest.approx(expected, rel=0.02)
    assert largest_difference(gradient, expected_gradient) < 0.05


@pytest.mark.parametrize("compute", COMPUTES)
def test_entropy_and_values_have_those_of_the_oracle_too(
    make_policy: MakePolicy, compute: str
) -> None:
    policy = make_policy(critic=True, compute=compute)
    move_weights(policy)
    policy.load_critic({"weight": mx.ones(32) * 0.1, "bias": mx.ones(1)})
    for head_chunk in (7, 64):
        policy.head_chunk = head_chunk
        assert_equals_oracle(policy, ROWS, together=[5], entropy=True, values=True)


@pytest.mark.parametrize("checkpointed", ["off", "on"])
def test_a_quantised_base_trains_through_a_shared_prefix(tmp_path: Path, checkpointed: str) -> None:
    path = str(packed_model(tmp_path))
    config = ModelConfig(path=path, quantized="keep", grad_checkpoint=checkpointed)
    policy = load_policy(config, seed=0)
    move_weights(policy)
    assert_equals_oracle(policy, ROWS)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
        {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 8},
        {"tie_word_embeddings": False},
        {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
        GRANITE,
        EXPERTS,
    ],
    ids=["qwen2", "qwen3", "untied", "windows", "scaled logits", "experts"],
)
def test_other_models_share_prompts_as_well(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = write_model(tmp_path / "model", scale=1.0, **changes)
    policy = load_policy(ModelConfig(path=str(folder)), seed=0)
    assert policy.notes == ()
    move_weights(policy)
    assert_equals_oracle(policy, ROWS)


@pytest.mark.parametrize("changes", [MAMBA, AFM7], ids=["mamba", "afm7"])
def test_a_model_that_shares_no_prompt_says_so(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = write_model(tmp_path / "model", scale=1.0, **changes)
    policy = load_policy(ModelConfig(path=str(folder)), seed=0)
    assert any("prompts run per row" in note for note in policy.notes)
    move_weights(policy, 0.05)
    assert_equals_oracle(policy, ROWS)


def test_a_micro_batch_is_whole_groups_or_a_slice_of_one() -> None:
    batches = micro_batches(ROWS, max_rows=2)
    assert sorted(row for batch in batches for row in batch.rows) == list(range(len(ROWS)))
    assert [[len(ids) for ids in batch.completions] for batch in batches] == [
        [9, 4],
        [5, 3],
        [3, 3],
        [2],
        [1],
    ]
    assert all(len(batch.prompts) == 1 for batch in batches)
    two = micro_batches(ROWS, max_rows=6)
    assert [batch.rows for batch in two] == [(3, 5, 4, 1, 0, 2), (6, 7)]
