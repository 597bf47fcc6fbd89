"""Architectures of mlx-lm train exactly, or are refused in a sentence."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.models import SAMPLE, architectures, in_a_process, tiny_config, try_architecture
from grpo_engine.config.settings import ModelConfig
from grpo_engine.errors import ModelError
from grpo_engine.policy.load import load_policy
from tests.engine.tiny import write_config, write_model

EXPERTS: dict[str, Any] = {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "head_dim": 8,
    "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "moe_intermediate_size": 32, "norm_topk_prob": True,
}  # fmt: skip


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


def test_experts_in_16_bits_are_refused_on_a_processor(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", **EXPERTS)
    with pytest.raises(
        ModelError, match=r"qwen3_moe does not train here .* model.dtype to float32"
    ):
        load_policy(ModelConfig(path=str(folder), dtype="bfloat16"), seed=0)


def test_a_model_for_metal_only_is_refused(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "model", tiny_config("bitnet"), scale=1.0)
    with pytest.raises(ModelError, match=r"bitnet does not train here .* Apple silicon only"):
        load_policy(ModelConfig(path=str(folder), tuning="full"), seed=0)
    with pytest.raises(ModelError, match="no linear layers that LoRA could adapt"):
        load_policy(ModelConfig(path=str(folder)), seed=0)


def test_a_missing_package_of_a_model_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    config = (folder / "config.json").read_text().replace('"llama"', '"olmo"')
    (folder / "config.json").write_text(config)
    with pytest.raises(ModelError, match="To run olmo install ai2-olmo"):
        load_policy(ModelConfig(path=str(folder)), seed=0)


def test_a_model_whose_backward_pass_crashes_is_refused(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "model", tiny_config("phi3small"), scale=1.0)
    with pytest.raises(ModelError, match="phi3small does not train: its backward pass"):
        load_policy(ModelConfig(path=str(folder)), seed=0)


def test_a_dense_model_may_have_0_experts(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", num_local_experts=0)
    assert load_policy(ModelConfig(path=str(folder)), seed=0).parts is not None


def test_no_adapter_is_put_on_a_layer_whose_weights_the_model_reads_itself(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "model", tiny_config("gemma3n"), scale=1.0)
    policy = load_policy(ModelConfig(path=str(folder)), seed=0)
    names = " ".join(policy.snapshot())
    assert "altup.modality_router.lora_a" in names
    assert "altup.prediction_coefs.lora_a" not in names
