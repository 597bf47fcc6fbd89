"""A model described from its config.json has the sizes of the loaded one."""

import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import mlx.core as mx
import pytest

from benchmarks.models import architectures
from benchmarks.models import tiny_config as family_config
from grpo_engine.config.settings import ModelConfig
from grpo_engine.policy import source
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.memory import Sizes, estimate_memory
from grpo_engine.policy.shapes import describe
from grpo_engine.policy.source import FAULTS
from grpo_engine.policy.trees import flatten
from tests.engine.policy.helpers import packed_model
from tests.engine.policy.test_families import EXPERTS
from tests.engine.tiny import tiny_config, write_config, write_model

MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "experts": EXPERTS,
    "untied": {"tie_word_embeddings": False},
}
COMPUTED = ["afm7", "phixtral", "qwen3"]


def only_config(folder: Path) -> Path:
    bare = folder.with_name("bare")
    bare.mkdir()
    shutil.copy(folder / "config.json", bare)
    return bare


def assert_equal_sizes(folder: Path, **settings: Any) -> None:
    loaded = load_policy(ModelConfig(path=str(folder), **settings), seed=0)
    described = describe(ModelConfig(path=str(only_config(folder)), **settings))
    weights, sizes = (flatten(policy.module.parameters()) for policy in (loaded, described))
    assert {name: (array.shape, array.dtype) for name, array in sizes.items()} == {
        name: (array.shape, array.dtype) for name, array in weights.items()
    }
    for name in ("vocabulary", "context_length", "parameters", "trainable_parameters", "dtype"):
        assert getattr(described, name) == getattr(loaded, name), name


@pytest.mark.parametrize("name", MODELS)
def test_a_described_model_has_the_sizes_of_the_loaded_one(name: str, tmp_path: Path) -> None:
    assert_equal_sizes(write_model(tmp_path / "model", **MODELS[name]))


@pytest.mark.parametrize("quantized", ["keep", "dequantize"])
def test_a_described_model_is_quantised_as_the_loaded_one(quantized: str, tmp_path: Path) -> None:
    assert_equal_sizes(packed_model(tmp_path, group=64, bits=4), quantized=quantized)


@pytest.mark.parametrize(
    "changes",
    [
        {"torch_dtype": "bfloat16"},
        {"dtype": "bfloat16"},
        {"text_config": {"dtype": "bfloat16"}},
    ],
)
def test_on_a_gpu_the_format_is_the_stored_one(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "on_cpu", lambda: False)
    (tmp_path / "config.json").write_text(json.dumps(tiny_config(**changes)))
    assert describe(ModelConfig(path=str(tmp_path))).dtype == "bfloat16"


@pytest.mark.parametrize(
    "name",
    COMPUTED
    + [
        pytest.param(name, marks=pytest.mark.slow)
        for name in architectures()
        if name not in {*FAULTS, "olmo", *COMPUTED}
    ],
)
def test_a_described_model_is_computed_and_estimated_as_the_loaded_one(
    name: str, tmp_path: Path
) -> None:
    folder = write_config(tmp_path / "model", family_config(name), scale=1.0)
    config = ModelConfig(path=str(folder))
    loaded, described = load_policy(config, seed=0), describe(config)
    for policy in (loaded, described):
        assert (policy.parts is None) == (loaded.parts is None)
        assert policy.shares_prompts == loaded.shares_prompts
        assert (policy.kernels is None) == (loaded.kernels is None)
        assert (policy.training_kernels is None) == (loaded.training_kernels is None)
    expected, estimate = (
        estimate_memory(policy, rows=4, micro_rows=2, prompt_tokens=9, new_tokens=20).peak
        for policy in (loaded, described)
    )
    # these two are described a few per cent too small
    rel = 0.06 if name in ("gpt_oss", "rwkv7") else 0.02
    assert estimate == pytest.approx(expected, rel=rel)


def test_a_large_model_is_described_without_its_memory(tmp_path: Path) -> None:
    large = tiny_config(
        hidden_size=8192, intermediate_size=32768, num_hidden_layers=9, num_attention_heads=64
    )
    large["quantization"] = {"group_size": 64, "bits": 4}
    (tmp_path / "config.json").write_text(json.dumps(large))
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    assert describe(ModelConfig(path=str(tmp_path))).parameters > 8e9
    assert mx.get_peak_memory() - before < 100e6


def test_only_the_configuration_is_downloaded_and_not_into_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def download(repository: str, **options: Any) -> str:
        if options.get("local_files_only"):
            raise OSError("not cached")
        calls.append((repository, options["allow_patterns"]))
        folder = Path(options["local_dir"])
        (folder / "config.json").write_text(json.dumps(tiny_config()))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert describe(ModelConfig(path="some/model")).vocabulary == tiny_config()["vocab_size"]
    assert calls == [("some/model", ["config.json"])]


@pytest.mark.parametrize(
    ("name", "inner"),
    [
        ("gpt2", 256),
        ("gpt_bigcode", 128),
        ("plamo3", 128),
        ("lille-130m", 256),
        ("step3p5", 256),
        ("gemma3n", 144),
    ],
)
def test_sizes_are_read_by_the_names_of_each_architecture(
    name: str, inner: int, tmp_path: Path
) -> None:
    config = family_config(name)
    if name == "gemma3n":
        config["text_config"]["intermediate_size"] = [128, 128, 128, 144]
    (tmp_path / "config.json").write_text(json.dumps(config))
    sizes = Sizes.of(describe(ModelConfig(path=str(tmp_path))))
    assert (sizes.hidden, sizes.heads, sizes.queries, sizes.inner) == (64, 4, 64, inner)
