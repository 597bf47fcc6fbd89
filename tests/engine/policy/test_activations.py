"""The memory of a backward pass follows from the model's graph, without its weights."""

import json
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from benchmarks.models import tiny_config
from benchmarks.plan import measured, planned, settings, write_random
from grpo_engine.config.settings import ModelConfig
from grpo_engine.policy.activations import trace
from grpo_engine.policy.forward import _head_scores
from grpo_engine.policy.head import Scoring
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.memory import Lengths
from tests.engine.policy.helpers import peak_memory

LENGTHS = Lengths(16, 64)


@pytest.fixture
def in_turn() -> Iterator[None]:
    """One operation at a time, so that a peak is of arrays that are in use."""
    limit = mx.set_memory_limit(1)
    yield
    mx.set_memory_limit(limit)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "qwen2-4bit", "gemma2", "qwen3_5", "qwen3_moe"])
def test_a_plan_from_the_configuration_is_close_to_the_peak(name: str, tmp_path: Path) -> None:
    config = settings(write_random(name, tmp_path), "off")
    assert planned(config, LENGTHS) == pytest.approx(measured(config, LENGTHS), rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "qwen2-4bit", "qwen3_5", "qwen3_moe"])
def test_recomputed_layers_are_planned_for(name: str, tmp_path: Path) -> None:
    model, lengths = write_random(name, tmp_path), Lengths(96, 320)
    recomputed = planned(settings(model, "on"), lengths)
    assert recomputed == pytest.approx(measured(settings(model, "on"), lengths), rel=0.2)
    assert recomputed < planned(settings(model, "off"), lengths) / 2


def test_a_policy_that_recomputes_layers_is_planned_for_as_one_that_keeps_them(
    tmp_path: Path,
) -> None:
    model = write_random("llama", tmp_path)
    policies = [load_policy(settings(model, layers), seed=0) for layers in ("on", "off")]
    types = [[type(layer) for layer in policy.model.layers] for policy in policies]
    traced = [trace(policy.model, policy.parts.hidden) for policy in policies if policy.parts]
    assert traced[0] == traced[1]
    assert types == [[type(layer) for layer in policy.model.layers] for policy in policies]


def test_a_graph_that_cannot_be_traced_has_an_estimate_without_its_arrays(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config("dbrx")))
    assert planned(ModelConfig(path=str(tmp_path)), LENGTHS) > 0


@pytest.mark.slow
def test_a_plan_does_not_depend_on_random_arrays_made_before_it(tmp_path: Path) -> None:
    """Each has its key from the one before it, and MLX traces a long chain to a crash."""
    model = write_random("llama", tmp_path)
    for _ in range(100_000):
        mx.random.uniform()
    assert planned(settings(model, "off"), LENGTHS) > 0


@pytest.mark.usefixtures("in_turn")
def test_the_entropies_of_chunks_are_computed_in_turn(tmp_path: Path) -> None:
    """Else each chunk's probabilities wait for its entropy until the last chunk is done."""
    policy = load_policy(settings(write_random("llama", tmp_path), "off"), seed=0)
    policy.head_chunk = 16
    states, tokens = mx.random.normal((256, 192)), mx.zeros(256, mx.int32)
    mx.eval(states, tokens)

    def peak(*, entropy: bool) -> int:
        def loss(states: mx.array) -> tuple[mx.array, mx.array | None]:
            scores = _head_scores(policy, states, tokens, Scoring(1.0, entropy=entropy))
            return scores.logprobs_N.sum(), scores.entropy_N

        return peak_memory(lambda: mx.value_and_grad(loss)(states))

    # of 16 x 8,192 logits, 5 arrays with entropies and 3 without
    assert peak(entropy=True) < 2 * peak(entropy=False)
