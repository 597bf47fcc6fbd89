"""Architectures of mlx-lm train exactly, or are refused in a sentence."""

import json
import threading
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from benchmarks.models import SAMPLE, architectures, in_a_process, tiny_config, try_architecture
from grpo_engine.config.settings import ModelConfig
from grpo_engine.errors import ModelError
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.source import FAULTS, load_parts, opening
from grpo_engine.policy.structure import agrees
from grpo_engine.rollouts.batches import batch_for
from tests.engine.policy.helpers import (
    largest_difference,
    made_up_rows,
    move_weights,
    weighted_loss,
)
from tests.engine.tiny import write_config, write_model

EXPERTS: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}


GRANITE: dict[str, Any] = {
    "model_type": "granite",
    "architectures": ["GraniteForCausalLM"],
    "logits_scaling": 3.0,
    "attention_multiplier": 0.3,
    "embedding_multiplier": 2.0,
    "residual_multiplier": 0.7,
    "attention_bias": False,
    "mlp_bias": False,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_an_architecture_trains_as_the_plain_model_does(name: str) -> None:
    result = try_architecture(name, ["LoRA"])
    assert not result.errors
    assert result.trains
    assert result.decoding in ("graph", "kernels")


@pytest.mark.soak
@pytest.mark.parametrize("name", architectures())
def test_each_architecture_trains_or_is_refused_in_a_sentence(name: str) -> None:
    result = in_a_process(name)
    assert result.trains or result.errors["LoRA"].startswith("refused: ")


REPAIRED = {  # and talkie, whose head is a bare array
    "gemma2": "graph",
    "gemma3n": "graph",
    "gpt_bigcode": "graph",
    "longcat_flash_ngram": "graph",
    "plamo3": "graph",
    "recurrent_gemma": "unpadded",
    "talkie": "graph",
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "decoding"), REPAIRED.items())
def test_a_repaired_architecture_trains_and_is_decoded_as_one_batch(
    name: str, decoding: str
) -> None:
    result = try_architecture(name, ["LoRA", "full"])
    assert not result.errors
    assert result.trains
    assert result.is_exact("full")
    assert result.decoding == decoding


@pytest.mark.parametrize(
    "name",
    [
        "afm7",
        "gemma3n",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma4_text", "kimi_k3")),
    ],
)
def test_layers_that_share_arrays_may_be_recomputed(name: str, tmp_path: Path) -> None:
    folder = write_config(tmp_path / "model", tiny_config(name), scale=1.0)
    rows = made_up_rows([(9, (6, 3))])
    results = []
    for checkpoint in ("off", "on"):
        config = ModelConfig(path=str(folder), grad_checkpoint=checkpoint)
        policy = load_policy(config, seed=0)
        move_weights(policy, 0.02)
        results.append(weighted_loss(policy, rows))
    (loss, gradient), (expected, expected_gradient) = results
    assert loss == pytest.approx(expected, abs=1e-4)
    assert largest_difference(gradient, expected_gradient) < 1e-4


def test_blocks_of_keys_are_those_of_a_row_alone(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "model", tiny_config("minimax_m3_vl"), scale=1.0)
    policy = load_policy(ModelConfig(path=str(folder)), seed=0)
    prompts = [tuple(range(3, 3 + length)) for length in (22, 17)]
    batch = batch_for(policy)
    batch.add(batch.prefill([prompt[:-1] for prompt in prompts]))
    logits = batch.step(mx.array([prompt[-1] for prompt in prompts]))
    expected = mx.stack([policy.model(mx.array([prompt]))[0, -1] for prompt in prompts])
    assert agrees(logits, expected, 1e-4)


def test_an_adapter_of_afm7_is_opened_again_and_switched_off(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "model", tiny_config("afm7"), scale=1.0)
    policy = load_policy(ModelConfig(path=str(folder)), seed=0)
    ids = mx.array([[1, 2, 3]])
    before = policy.model(ids)
    move_weights(policy, 0.1)
    after = policy.model(ids)
    policy.save_adapter(tmp_path / "adapter")
    opened = load_policy(ModelConfig(path=str(folder), adapter=str(tmp_path / "adapter")), seed=0)
    assert not agrees(after, before, 1e-2)
    assert agrees(opened.model(ids), after, 1e-6)
    with policy.as_reference():
        assert agrees(policy.model(ids), before, 1e-6)


def test_experts_in_16_bits_are_refused_on_a_processor_before_weights_are_read(
    tmp_path: Path,
) -> None:
    folder = write_model(tmp_path / "model", **EXPERTS)
    with pytest.raises(
        ModelError, match=r"qwen3_moe does not train here: .* model.dtype to float32"
    ):
        load_parts(ModelConfig(path=str(folder), dtype="bfloat16"), lazy=True)


@pytest.mark.parametrize("name", FAULTS)
def test_a_model_that_cannot_be_trained_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
    with pytest.raises(ModelError, match=rf"{name} does not train: its .*; choose another"):
        load_policy(ModelConfig(path=str(tmp_path)), seed=0)


def test_a_missing_package_of_a_model_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    config = (folder / "config.json").read_text().replace('"llama"', '"olmo"')
    (folder / "config.json").write_text(config)
    with pytest.raises(ModelError, match="To run olmo install ai2-olmo"):
        load_policy(ModelConfig(path=str(folder)), seed=0)


def test_what_another_thread_prints_while_a_model_is_opened_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with opening("models/a"):
        other = threading.Thread(target=print, args=["from another thread"])
        other.start()
        other.join()
        print("from mlx-lm")
    assert capsys.readouterr().out == "from another thread\n"


def test_a_dense_model_may_have_0_experts(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", num_local_experts=0)
    assert load_policy(ModelConfig(path=str(folder)), seed=0).parts is not None


def test_no_adapter_is_put_on_a_layer_whose_weights_the_model_reads_itself(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "model", tiny_config("gemma3n"), scale=1.0)
    policy = load_policy(ModelConfig(path=str(folder)), seed=0)
    names = " ".join(policy.snapshot())
    assert "altup.modality_router.lora_a" in names
    assert "altup.prediction_coefs.lora_a" not in names
