"""Decode steps by compiled code equal MLX's, for every kind of layer that it takes on."""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_engine.config.settings import ModelConfig
from grpo_engine.cpu import blas, library, openblas, processor, weights
from grpo_engine.cpu import rows as stored_rows
from grpo_engine.errors import ModelError
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts import batches
from grpo_engine.rollouts.graph import GraphBatch
from grpo_engine.rollouts.kernels import KernelBatch
from tests.engine.policy.helpers import move_weights
from tests.engine.policy.test_families import EXPERTS, GRANITE
from tests.engine.tiny import GEMMA2, write_model

pytestmark = pytest.mark.skipif(not blas.ensure().compiled, reason="nothing is compiled here")

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
TAKEN: dict[str, dict[str, Any]] = {
    "llama": {},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "qwen2": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 24},
    "untied": {"tie_word_embeddings": False},
    "one kind of keys, odd sizes": {
        "num_key_value_heads": 1,
        "head_dim": 18,
        "hidden_size": 44,
        "intermediate_size": 70,
    },
    "long context": {"rope_scaling": LLAMA3},
    "wide heads": {"head_dim": 96, "num_attention_heads": 2, "num_key_value_heads": 2},
}
LEFT: dict[str, dict[str, Any]] = {
    "gemma2": GEMMA2,
    "windows": {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    "interleaved rotations": {"rope_traditional": True},
    "rotations by length": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "scaled logits": GRANITE,
    "experts": EXPERTS,
}


def policy_of(folder: Path, changes: dict[str, Any], **model: Any) -> Policy:
    path = write_model(folder, scale=1.0, **changes)
    policy = load_policy(ModelConfig(path=str(path), **model), seed=0)
    move_weights(policy, 0.1)
    return policy


ADAPTED: dict[str, dict[str, Any]] = {
    "LoRA": {},
    "rank 1": {"lora_rank": 1},
    "rank 33": {"lora_rank": 33},
    "full": {"tuning": "full"},
    "few layers": {"lora_keys": ["up_proj"]},
}


@pytest.fixture(
    scope="module",
    params=[*((kind, "LoRA") for kind in TAKEN), *(("biases", way) for way in ADAPTED)],
    ids=", ".join,
)
def sampler(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Policy]:
    """A policy of each kind, ready to sample."""
    kind, way = request.param
    policy = policy_of(tmp_path_factory.mktemp("model"), TAKEN[kind], **ADAPTED[way])
    with policy.for_sampling():
        yield policy


@pytest.fixture(scope="module", params=library.VARIANTS)
def instructions(request: pytest.FixtureRequest) -> Iterator[None]:
    """The library for each instruction set that this processor has."""
    if not set(library.VARIANTS[request.param]) <= set(processor.extensions()):
        pytest.skip(f"this processor has no {request.param}")
    path = openblas.bundled()
    assert path
    with pytest.MonkeyPatch.context() as patch:
        kernels = str(library.FOLDER / f"kernels-{request.param}.so")
        loaded = openblas.OpenBlas(path, threads=1, kernels=kernels)
        patch.setattr(blas, "products", lambda: loaded.kernels)
        yield


def decode(
    policy: Policy, kind: str, prompts: Sequence[tuple[int, ...]], tokens: Sequence[Sequence[int]]
) -> np.ndarray:
    """Logits of steps with given tokens, [steps, rows, V]; after half of them a row leaves."""
    batch: GraphBatch = KernelBatch(policy) if kind == "kernels" else batches.BATCHES[kind](policy)
    ran = {prompt: batch.prefill([prompt])[0] for prompt in dict.fromkeys(prompts)}
    batch.add([ran[prompt] for prompt in prompts])
    rows = list(range(len(prompts)))
    found = []
    for place, step in enumerate(tokens):
        if place == len(tokens) // 2 and len(rows) > 1:
            last = len(rows) - 1
            rows = [last, *rows[1:last]] if last > 1 else [last]
            batch.select(rows)
        found.append(np.full((len(prompts), policy.vocabulary), np.nan, np.float32))
        found[-1][: len(rows)] = np.array(batch.step(mx.array(list(step[: len(rows)]))))
    return np.stack(found)


def some(seed: int, *shape: int) -> list[Any]:
    ids: list[Any] = np.random.default_rng(seed).integers(0, 200, shape).tolist()
    return ids


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=9),
    same=st.booleans(),
    threads=st.integers(1, 3),
    seed=st.integers(0, 9),
)
@pytest.mark.usefixtures("instructions")
def test_steps_equal_those_of_mlx(
    sampler: Policy, lengths: list[int], same: bool, threads: int, seed: int
) -> None:
    prompts = [tuple(some(length, length)) for length in lengths]
    prompts = [prompts[0]] * len(prompts) if same else prompts
    tokens = some(seed, 6, len(prompts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_rows, "GROWTH", 4)
        patch.setattr(weights, "GROWTH", 16)
        own = blas.products()
        assert own
        own.set_threads(threads)
        given = decode(sampler, "kernels", prompts, tokens)
        own.set_threads(1)
        expected = decode(sampler, "graph", prompts, tokens)
    assert np.array_equal(np.isnan(given), np.isnan(expected))
    assert np.nanmax(np.abs(given - expected)) < 2e-5 * np.nanmax(np.abs(expected))


@pytest.mark.parametrize("kind", [*TAKEN, *LEFT])
def test_other_models_are_left_to_mlx(tmp_path: Path, kind: str) -> None:
    policy = policy_of(tmp_path / "model", {**TAKEN, **LEFT}[kind])
    assert (policy.kernels is not None) == (kind in TAKEN)
    if kind in LEFT:
        with pytest.raises(ModelError, match="they do not compute this kind of model"):
            load_policy(policy.config.model_copy(update={"compute": "kernels"}), seed=0)


def test_a_row_has_the_same_bits_beside_any_others(tmp_path: Path) -> None:
    policy = policy_of(tmp_path / "model", {"hidden_size": 64})
    prompt, tokens = tuple(some(1, 37)), some(2, 5, 9)
    with policy.for_sampling():
        alone = decode(policy, "kernels", [prompt], tokens)
        longer = decode(policy, "kernels", [prompt, tuple(some(3, 90))], tokens)
        shared = decode(policy, "kernels", [prompt] * 9, tokens)
    assert np.array_equal(alone[:, 0], shared[:2, 0].tolist() + alone[2:, 0].tolist())
    assert np.array_equal(alone[:2, 0], longer[:2, 0])


def test_what_is_not_a_number_stays_visible(tmp_path: Path) -> None:
    policy = policy_of(tmp_path / "model", {}, tuning="full")
    trained = policy.snapshot()
    name = next(name for name in trained if name.endswith("layers.0.mlp.up_proj.weight"))
    policy.load_trainable({**trained, name: mx.full(trained[name].shape, mx.nan)})
    with policy.for_sampling():
        found = decode(policy, "kernels", [(1, 2, 3)], [[4]])
    assert np.isnan(found).all()


def test_prompts_that_wait_are_not_written_to(tmp_path: Path) -> None:
    policy = policy_of(tmp_path / "model", {})
    with policy.for_sampling():
        batch = KernelBatch(policy)
        [prompt] = batch.prefill([(1, 2, 3, 4)])
        before = copy.deepcopy(prompt.caches)
        batch.add([prompt])
        first = np.array(batch.step(mx.array([5])))
        [row] = batch.copies([0])
        row_before = copy.deepcopy(row)
        batch.extend([row], [(7, 8)])
        batch.step(mx.array([6]))
        other = KernelBatch(policy)
        other.add([prompt])
        assert np.array_equal(np.array(other.step(mx.array([5]))), first)
    for layers, layers_before in ((prompt.caches, before), (row, row_before)):
        for arrays, arrays_before in zip(layers, layers_before, strict=True):
            assert all(map(np.array_equal, arrays, arrays_before))


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 20)), min_size=1, max_size=4),
    tokens=st.integers(3, 64),
)
@pytest.mark.usefixtures("instructions")
def test_a_piece_on_top_of_a_row_equals_the_graphs(
    sampler: Policy, lengths: list[tuple[int, int]], tokens: int
) -> None:
    """Also if a forward takes less than the piece, or not all rows' pieces; alone, to the bit."""
    rows = [(some(i, before), some(9 + i, after)) for i, (before, after) in enumerate(lengths)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_rows, "GROWTH", 4)
        patch.setattr("grpo_engine.rollouts.kernels.PREFILL_TOKENS", tokens)
        patch.setattr("grpo_engine.rollouts.graph.PREFILL_TOKENS", tokens)
        batch = KernelBatch(sampler)
        starts = batch.prefill([tuple(start) for start, _ in rows])
        pieces = batch.extend([start.caches for start in starts], [tuple(end) for _, end in rows])
        for (start, end), piece in zip(rows, pieces, strict=True):
            expected = sampler.model(mx.array([[*start, *end]]))[0, -1]
            assert np.allclose(np.array(piece.logits), np.array(expected), rtol=0, atol=1e-4)
            [alone] = batch.extend([batch.prefill([tuple(start)])[0].caches], [tuple(end)])
            assert np.array_equal(np.array(piece.logits), np.array(alone.logits))
