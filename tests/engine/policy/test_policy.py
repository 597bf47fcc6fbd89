"""Loading, adapters, reference and critic."""

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm import generate, load

from grpo_engine.config.settings import ModelConfig
from grpo_engine.cpu import blas
from grpo_engine.errors import ModelError
from grpo_engine.policy.batch import micro_batches
from grpo_engine.policy.forward import token_scores
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.source import rotary_settings
from grpo_engine.policy.structure import TOLERANCE, agrees
from grpo_engine.policy.trees import flatten
from grpo_engine.rollouts.decode import sample_groups
from grpo_engine.rollouts.types import PromptRows, Sampling
from tests.engine.conftest import MakePolicy
from tests.engine.policy.helpers import drain, largest, made_up_rows, move_weights, packed_model
from tests.engine.tiny import END, STOP, write_model

ROWS = made_up_rows([(7, (3, 5)), (4, (6,))])


def scores(policy: Policy) -> mx.array:
    return mx.concatenate(
        [
            token_scores(policy, batch, temperature=1.0, gradient=False).logprobs.reshape(-1)
            for batch in micro_batches(ROWS, max_rows=2)
        ]
    )


def test_every_end_token_of_the_configuration_ends_an_answer(make_policy: MakePolicy) -> None:
    assert make_policy().end_ids == {END, STOP}


@pytest.mark.parametrize("tuning", ["lora", "dora", "full"])
def test_the_reference_stays_while_the_policy_moves(make_policy: MakePolicy, tuning: str) -> None:
    policy = make_policy(tuning=tuning)
    before = scores(policy)
    move_weights(policy)
    moved = scores(policy)
    with policy.as_reference():
        reference = scores(policy)
    assert mx.allclose(reference, before, atol=1e-4)
    assert largest(moved - before) > 0.1
    assert mx.array_equal(scores(policy), moved)


@pytest.mark.parametrize("tuning", ["lora", "dora", "full"])
@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        ({}, "float32"),
        ({"tie_word_embeddings": False}, "float32"),
        ({"attention_bias": True}, "float32"),
        ({}, "bfloat16"),
    ],
)
def test_sampling_runs_the_weights_that_are_trained(
    tmp_path: Path, tuning: str, changes: dict[str, Any], dtype: str
) -> None:
    folder = write_model(tmp_path / "model", scale=0.3, **changes)
    config = ModelConfig(path=str(folder), tuning=tuning, dtype=dtype)
    assert_sampled_as_trained(load_policy(config, seed=0))


def test_a_quantised_base_is_sampled_through_its_adapter(tmp_path: Path) -> None:
    config = ModelConfig(path=str(packed_model(tmp_path)), quantized="keep")
    assert_sampled_as_trained(load_policy(config, seed=0))


def assert_sampled_as_trained(policy: Policy) -> None:
    move_weights(policy)
    ids = mx.array([[3, 1, 4, 1, 5]])
    expected = policy.model(ids)
    kinds = [type(module) for module in policy.model.modules()]
    with policy.for_sampling():
        assert agrees(policy.model(ids), expected, TOLERANCE[policy.dtype])
    assert [type(module) for module in policy.model.modules()] == kinds
    assert mx.array_equal(policy.model(ids), expected)


def test_frozen_weights_lie_as_the_kernels_read_them(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", scale=0.3)
    policy, graph = (
        load_policy(ModelConfig(path=str(folder), compute=compute), seed=0)
        for compute in ("auto", "graph")
    )
    assert graph.kernels is None
    assert (policy.kernels is not None) == (blas.products() is not None)
    layers = [layer for layer in policy.model.modules() if type(layer) is nn.Linear]
    assert len(layers) == len(policy.model.layers) * 7
    assert all(np.asarray(layer.weight.T).flags.c_contiguous for layer in layers) == (
        policy.kernels is not None
    )
    for array, expected in zip(
        flatten(policy.model.parameters()).values(),
        flatten(graph.model.parameters()).values(),
        strict=True,
    ):
        assert mx.array_equal(array, expected)


def test_an_adapter_to_start_from_is_the_reference(make_policy: MakePolicy, tmp_path: Path) -> None:
    first = make_policy()
    move_weights(first)
    first.save_adapter(tmp_path / "adapter")
    second = make_policy(adapter=str(tmp_path / "adapter"))
    assert mx.array_equal(scores(second), scores(first))
    with second.as_reference():
        assert mx.array_equal(scores(second), scores(first))


def test_other_weights_are_put_back_after_an_error(make_policy: MakePolicy) -> None:
    policy = make_policy()
    kept = scores(policy)
    other = {name: value + 1 for name, value in policy.snapshot().items()}
    with pytest.raises(RuntimeError), policy.using(other):
        raise RuntimeError
    assert mx.array_equal(scores(policy), kept)


def test_adapters_start_the_same_for_one_seed_and_differ_for_another(
    make_policy: MakePolicy,
) -> None:
    one, same, other = (make_policy(seed=seed).snapshot() for seed in (1, 1, 2))
    name = "model.layers.0.self_attn.q_proj.lora_a"
    assert mx.array_equal(one[name], same[name])
    assert not mx.array_equal(one[name], other[name])
    assert not mx.array_equal(one[name], one[name.replace("layers.0", "layers.1")])


@pytest.mark.parametrize("tuning", ["lora", "dora", "full"])
def test_mlx_lm_opens_what_was_saved_and_says_the_same(
    make_policy: MakePolicy, tmp_path: Path, tuning: str
) -> None:
    policy = make_policy(tuning=tuning, **({} if tuning == "full" else {"lora_layers": 1}))
    move_weights(policy)
    policy.save_adapter(tmp_path / "saved")
    if tuning == "full":
        model, tokenizer, *_ = load(str(tmp_path / "saved"))
    else:
        model, tokenizer, *_ = load(str(policy.folder), adapter_path=str(tmp_path / "saved"))
    prompt = tokenizer.encode("12 + 3 = ")
    text = generate(model, tokenizer, prompt, max_tokens=12)
    rows = [PromptRows(key="p", group=0, ids=tuple(prompt), rows=1)]
    greedy = Sampling(temperature=0, max_new_tokens=12)
    _, (rollout,) = drain(sample_groups(policy, rows, greedy, seed=0, step=0))
    assert rollout.text == text


def test_a_critic_is_zero_at_first_and_apart_from_the_model(make_policy: MakePolicy) -> None:
    policy = make_policy(critic=True)
    (batch,) = micro_batches(ROWS, max_rows=3)
    values = token_scores(policy, batch, temperature=1.0, gradient=False, values=True).values
    assert values is not None
    assert mx.array_equal(values, mx.zeros_like(values))
    assert set(policy.critic_weights()) == {"weight", "bias"}
    assert not any("critic" in name for name in policy.snapshot())


def test_values_without_a_critic_are_refused(make_policy: MakePolicy) -> None:
    (batch,) = micro_batches(ROWS, max_rows=3)
    with pytest.raises(ModelError, match="without a critic"):
        token_scores(make_policy(), batch, temperature=1.0, values=True)


def test_a_quantised_base_is_dequantised_where_that_is_faster(tmp_path: Path) -> None:
    packed = packed_model(tmp_path)
    kept = load_policy(ModelConfig(path=str(packed), quantized="keep"), seed=0)
    plain = load_policy(ModelConfig(path=str(packed), quantized="dequantize"), seed=0)
    assert plain.notes != kept.notes
    assert "dequantised" in plain.notes[0]
    move_weights(kept)
    move_weights(plain)
    assert mx.allclose(scores(kept), scores(plain), atol=1e-3)


def test_full_tuning_of_quantised_weights_is_refused(tmp_path: Path) -> None:
    config = ModelConfig(path=str(packed_model(tmp_path)), quantized="keep", tuning="full")
    with pytest.raises(ModelError, match=r"set model\.quantized to dequantize"):
        load_policy(config, seed=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": "/nowhere/model"}, "model.path /nowhere/model is no folder"),
        ({"path": "some.gguf"}, "grpo-tui models import"),
        ({"lora_layers": 9}, "the model has 2 layers"),
        ({"lora_keys": ("nope",)}, "which the model does not have; it has down_proj"),
        ({"adapter": "/nowhere/adapter"}, "no readable adapter_config.json"),
        ({"compute": "kernels", "tuning": "dora"}, "model.compute is kernels, but they"),
        ({"compute": "kernels", "dtype": "bfloat16"}, "model.compute is kernels, but they"),
    ],
)
def test_wrong_settings_name_the_value_and_the_remedy(
    make_policy: MakePolicy, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        make_policy(**settings)


def test_a_folder_with_damaged_weights_is_named(tiny_folder: Path, tmp_path: Path) -> None:
    for file in tiny_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[:-999])
    (tmp_path / "config.json").write_bytes((tiny_folder / "config.json").read_bytes())
    with pytest.raises(ModelError, match=str(tmp_path)):
        load_policy(ModelConfig(path=str(tmp_path)), seed=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(
    tiny_folder: Path, tmp_path: Path, bad: float
) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    file = folder / "model.safetensors"
    weights: dict[str, mx.array] = mx.load(str(file))  # type: ignore[assignment]
    mx.eval(weights)
    weights["model.norm.weight"][3] = bad
    mx.save_safetensors(str(file), weights, metadata={"format": "mlx"})
    with pytest.raises(ModelError, match=r"model\.norm\.weight hold NaN or infinite numbers"):
        load_policy(ModelConfig(path=str(folder)), seed=0)


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "default", "rope_theta": 200.0},
        {"rope_type": "linear", "rope_theta": 200.0, "factor": 8.0},
    ],
)
def test_positions_are_rotated_as_rope_parameters_say(
    tiny_folder: Path, tmp_path: Path, parameters: dict[str, Any]
) -> None:
    def logits(name: str, **changes: Any) -> mx.array:
        folder = shutil.copytree(tiny_folder, tmp_path / name)
        file = folder / "config.json"
        settings = json.loads(file.read_text()) | changes
        file.write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))
        policy = load_policy(ModelConfig(path=str(folder), dtype="float32"), seed=0)
        result: mx.array = policy.module.model(mx.arange(1, 25)[None])
        return result

    scaling = parameters if parameters["rope_type"] == "linear" else None
    before = logits("4", rope_theta=200.0, rope_scaling=scaling)
    since = logits("5", rope_theta=None, rope_scaling=None, rope_parameters=parameters)
    assert mx.array_equal(since, before)
    default = logits("default", rope_theta=None, rope_scaling=None)
    assert not mx.allclose(since, default, atol=1e-4)


def test_a_setting_of_rotation_at_the_top_stays_and_a_text_model_within_has_its_own() -> None:
    parameters = {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.25}
    assert rotary_settings({"rope_parameters": parameters, "rope_theta": 1e4}) == {
        "partial_rotary_factor": 0.25
    }
    text = {"hidden_size": 8, "rope_parameters": {"rope_theta": 5e5}}
    assert rotary_settings({"text_config": text}) == {"text_config": text | {"rope_theta": 5e5}}
    # Gemma 3 has parameters by kind of layer.
    assert rotary_settings({"rope_parameters": {"full_attention": parameters}}) == {}


@pytest.mark.parametrize("name", ["num_hidden_layers", "vocab_size"])
def test_a_configuration_that_no_memory_could_hold_is_refused_at_once(
    tiny_folder: Path, tmp_path: Path, name: str
) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: 10**9}))
    with pytest.raises(ModelError, match=f"{name} is 1000000000; models have 1 to"):
        load_policy(ModelConfig(path=str(folder)), seed=0)
    file.write_text("[" * 100_000)
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        load_policy(ModelConfig(path=str(folder)), seed=0)


def test_weights_of_another_shape_are_refused(make_policy: MakePolicy) -> None:
    policy = make_policy()
    wrong = {name: value[:1] for name, value in policy.snapshot().items()}
    with pytest.raises(ModelError, match="do not fit"):
        policy.load_trainable(wrong)
