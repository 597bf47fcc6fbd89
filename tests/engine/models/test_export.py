"""A model written for another program and opened again is the one that was trained."""

import json
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGUFReader
from mlx_lm.models import qwen2
from mlx_lm.utils import load_model

from grpo_engine.config.settings import ModelConfig
from grpo_engine.errors import ModelError
from grpo_engine.models import export as exports
from grpo_engine.models.export import BOUNDS, TARGETS, export
from grpo_engine.models.gguf import architectures
from grpo_engine.policy import adapters
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.trees import flatten

ROWS = mx.array([[1, 5, 9, 40, 41, 42, 7, 8]])


def trained(folder: Path, tuning: str, *, layers: int = -1, path: str = "starter") -> ModelConfig:
    """An adapter, or a whole model, whose weights differ from the starter's."""
    config = ModelConfig(path=path, tuning=tuning, lora_layers=layers, lora_rank=4)
    policy = load_policy(config, seed=3)
    moved = {
        name: value + 0.05 * mx.random.normal(value.shape, key=mx.random.key(place))
        for place, (name, value) in enumerate(sorted(policy.snapshot().items()))
    }
    policy.load_trainable(moved)
    policy.save_adapter(folder)
    if tuning == "full":
        return config.model_copy(update={"path": str(folder)})
    return config.model_copy(update={"adapter": str(folder)})


def logits(config: ModelConfig) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    return np.array(load_policy(config, seed=0).model(ROWS))


@pytest.mark.parametrize("tuning", ["lora", "dora", "full"])
@pytest.mark.parametrize("to", ["mlx", "hf", "gguf"])
def test_the_whole_model_is_the_trained_one(tmp_path: Path, tuning: str, to: str) -> None:
    config = trained(tmp_path / "trained", tuning, layers=2)
    made = export(config, tmp_path / "out", to, "float32", "# a card")  # type: ignore[arg-type]
    assert made.difference < BOUNDS["float32"]
    assert (tmp_path / "out" / "README.md").read_text() == "# a card"
    if to != "gguf":
        found = np.array(load_model(tmp_path / "out")[0](ROWS))
        assert np.abs(found - logits(config)).max() < 1e-3
        # and not the model it began with
        assert np.abs(found - logits(ModelConfig())).max() > 0.1


@pytest.mark.parametrize(
    ("to", "format_"), [(to, one) for to, formats in TARGETS.items() for one in formats[1:]]
)
def test_rounding_stays_within_its_bound_and_does_happen(
    tmp_path: Path, to: str, format_: str
) -> None:
    config = trained(tmp_path / "trained", "lora")
    made = export(config, tmp_path / "out", to, format_)  # type: ignore[arg-type]
    assert 1e-5 < made.difference < BOUNDS[format_]  # type: ignore[index]


@pytest.mark.parametrize(("tuning", "layers"), [("lora", -1), ("lora", 2), ("dora", 2)])
def test_an_adapter_for_peft_has_its_names_shapes_and_scale(
    tmp_path: Path, tuning: str, layers: int
) -> None:
    config = trained(tmp_path / "trained", tuning, layers=layers)
    made = export(config, tmp_path / "out", "peft", "float32")
    assert made.difference < BOUNDS["float32"]
    settings = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], settings["use_dora"]) == (
        4,
        8.0,
        tuning == "dora",
    )
    assert settings["layers_to_transform"] == (None if layers < 0 else [1, 2])
    arrays: dict[str, mx.array] = mx.load(str(tmp_path / "out" / exports.PEFT_FILE))  # type: ignore[assignment]
    prefix = "base_model.model.model.layers.2.mlp.up_proj"
    assert arrays[f"{prefix}.lora_A.weight"].shape == (4, 128)
    assert arrays[f"{prefix}.lora_B.weight"].shape == (128, 4)
    assert (f"{prefix}.lora_magnitude_vector" in arrays) == (tuning == "dora")


def test_a_quantised_base_is_dequantised_before_the_adapter_is_added(tmp_path: Path) -> None:
    from mlx_lm.convert import convert

    packed = tmp_path / "packed"
    starter = load_policy(ModelConfig(), seed=0).folder
    convert(str(starter), mlx_path=str(packed), quantize=True, q_bits=8, q_group_size=64)
    config = trained(tmp_path / "trained", "lora", path=str(packed))
    made = export(config, tmp_path / "out", "hf", "float32")
    assert made.difference < BOUNDS["float32"]
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "quantization" not in settings
    assert settings["torch_dtype"] == "float32"


def test_a_gguf_file_says_what_it_holds_to_another_reader(tmp_path: Path) -> None:
    export(trained(tmp_path / "trained", "lora"), tmp_path / "named", "gguf", "q8_0")
    reader = GGUFReader(tmp_path / "named" / "named.gguf")
    known = {name: field.contents() for name, field in reader.fields.items()}
    assert known["general.architecture"] == "llama"
    assert (known["llama.block_count"], known["llama.attention.head_count"]) == (3, 2)
    assert known["tokenizer.ggml.pre"] == "smollm"
    assert (known["tokenizer.ggml.eos_token_id"], known["tokenizer.ggml.eot_token_id"]) == (3, 0)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert kinds["blk.0.attn_q.weight"] == "Q8_0"
    assert kinds["blk.0.attn_norm.weight"] == "F32"


def test_the_biases_and_the_own_head_of_a_qwen2_model_are_written(tmp_path: Path) -> None:
    starter = load_policy(ModelConfig(), seed=0).folder
    base = tmp_path / "qwen"
    base.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(starter / name, base / name)
    settings = json.loads((starter / "config.json").read_text()) | {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "tie_word_embeddings": False,
        "num_key_value_heads": 1,
    }
    (base / "config.json").write_text(json.dumps(settings))
    arguments = qwen2.ModelArgs.from_dict(settings)
    weights = {
        name: 0.1 * mx.random.normal(value.shape, key=mx.random.key(place))
        for place, (name, value) in enumerate(flatten(qwen2.Model(arguments).parameters()).items())
    }
    assert {"lm_head.weight", "model.layers.0.self_attn.k_proj.bias"} <= weights.keys()
    mx.save_safetensors(str(base / "model.safetensors"), weights, {"format": "mlx"})
    config = trained(tmp_path / "trained", "lora", path=str(base))
    made = export(config, tmp_path / "out", "gguf", "float32")
    assert made.difference < BOUNDS["float32"]
    reader = GGUFReader(tmp_path / "out" / "out.gguf")
    assert reader.fields["general.architecture"].contents() == "qwen2"
    assert {"output.weight", "blk.0.attn_k.bias"} <= {tensor.name for tensor in reader.tensors}


def test_pairing_rotary_halves_is_undone_by_reading() -> None:
    # three heads of four rows: halves (0 1)(2 3) become pairs (0 2)(1 3)
    array = np.arange(12, dtype=np.float32)[:, None]
    paired = architectures.interleaved(array, 3)
    assert paired.ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11]


def test_llama_3s_rotary_factors_are_those_that_reading_finds_again() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    factors = architectures.llama3_factors(scaling, 500000.0, 64)
    # wavelengths run from 2 pi to 2 pi 500000^(31/32): short ones stay, long ones are stretched
    assert (factors[0], factors[-1]) == (1.0, 32.0)
    assert np.all(np.diff(factors) >= 0)


def test_an_export_that_differs_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = trained(tmp_path / "trained", "lora")
    monkeypatch.setattr(adapters, "fuse", lambda model: flatten(model.parameters()))
    with pytest.raises((ModelError, ValueError)):
        export(config, tmp_path / "out", "mlx", "float32")
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    monkeypatch.setitem(BOUNDS, "float16", 1e-9)
    with pytest.raises(ModelError, match="more than the 1e-09 that float16 explains"):
        export(config, tmp_path / "out", "mlx", "float16")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_written_is_refused_with_the_remedy(tmp_path: Path) -> None:
    full = trained(tmp_path / "full", "full")
    with pytest.raises(ModelError, match="export it as hf"):
        export(full, tmp_path / "out", "peft", "float32")
    with pytest.raises(ModelError, match="mlx is written as float32, float16, bfloat16"):
        export(full, tmp_path / "out", "mlx", "q8_0")
    (tmp_path / "out").mkdir()
    with pytest.raises(ModelError, match="exists; remove it"):
        export(full, tmp_path / "out", "mlx", "float32")
