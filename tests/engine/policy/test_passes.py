"""Compiled forward and backward passes equal MLX's, for every kind of layer that they take on."""

import dataclasses
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from grpo_engine.cpu import blas, passes, weights
from grpo_engine.policy import compute
from grpo_engine.policy.batch import TokenRow, make_batch
from grpo_engine.policy.forward import token_scores
from grpo_engine.policy.policy import Policy
from tests.engine.policy.helpers import made_up_rows, weighted_loss
from tests.engine.policy.test_decoding import LEFT, TAKEN, instructions, policy_of

pytestmark = pytest.mark.skipif(not blas.ensure().compiled, reason="nothing is compiled here")

WAYS: dict[str, dict[str, Any]] = {
    "all layers": {},
    "one row of numbers": {"lora_rank": 1},
    "last layer": {"lora_layers": 1},
    "some": {"lora_keys": ["q_proj", "down_proj"]},
}


@pytest.fixture(
    scope="module",
    params=[*((kind, "all layers") for kind in TAKEN), *(("qwen3", way) for way in WAYS)],
    ids=", ".join,
)
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Policy:
    kind, way = request.param
    policy = policy_of(tmp_path_factory.mktemp("model"), TAKEN[kind], **WAYS[way])
    assert policy.kernels
    assert policy.kernels.trains
    return policy


def by_mlx(policy: Policy) -> Policy:
    """The same policy, whose layers MLX runs."""
    return dataclasses.replace(policy, kernels=None)


def far(given: Any, expected: Any) -> float:
    """The largest difference, relative to the largest number."""
    given, expected = np.array(given), np.array(expected)
    most = max(1e-3, np.abs(expected).max(initial=0))
    return float(np.abs(given - expected).max(initial=0) / most)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    shape=st.lists(
        st.tuples(st.integers(1, 60), st.lists(st.integers(0, 40), min_size=1, max_size=4)),
        min_size=1,
        max_size=3,
    ),
    forced=st.sets(st.integers(0, 19), max_size=4),
    together=st.integers(1, 12),
    threads=st.integers(1, 4),
)
@example(shape=[(1, [1])], forced=set(), together=1, threads=2)
@example(shape=[(70, [3, 70])], forced={1}, together=12, threads=1)  # the BLAS's products
@example(shape=[(70, [3, 70])], forced=set(), together=12, threads=3)
@example(shape=[(2, [90])], forced=set(), together=12, threads=2)
@pytest.mark.usefixtures(instructions.__name__)
def test_values_and_gradients_equal_those_of_mlx(
    policy: Policy,
    shape: list[tuple[int, list[int]]],
    forced: set[int],
    together: int,
    threads: int,
) -> None:
    rows = [
        dataclasses.replace(
            row, forced=tuple(sorted(place for place in forced if place < len(row.ids)))
        )
        for row in made_up_rows(shape)
    ]
    rows = [row for row in rows if len(row.ids) > len(row.forced)]  # as `batches_of` leaves out
    if not rows:
        return
    own = blas.products()
    assert own
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "GROWTH", 16)
        own.set_threads(threads)
        value, gradient = weighted_loss(policy, rows, max_rows=together)
        own.set_threads(1)
    expected, expected_gradient = weighted_loss(by_mlx(policy), rows, max_rows=together)
    assert value == pytest.approx(expected, rel=2e-5, abs=1e-3)
    assert gradient.keys() == expected_gradient.keys()
    for name, array in expected_gradient.items():
        assert far(gradient[name], array) < 2e-4, name


def test_scores_without_a_gradient_and_of_the_reference_equal_those_of_mlx(policy: Policy) -> None:
    batch = make_batch(made_up_rows([(9, (5, 7)), (1, (4,))]), range(3))

    def scores(one: Policy) -> mx.array:
        return token_scores(one, batch, temperature=0.8, gradient=False).logprobs

    own, other = scores(policy), scores(by_mlx(policy))
    with policy.as_reference():
        reference, expected = scores(policy), scores(by_mlx(policy))
    assert far(own, other) < 1e-4
    assert far(reference, expected) < 1e-4
    assert far(own, reference) > 1e-3  # the adapter is not zero


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    count=st.integers(0, 150),
    parts=st.integers(1, 3),
    threads=st.integers(1, 3),
    temperature=st.sampled_from((0.3, 1.0, 2.0)),
    seed=st.integers(0, 9),
)
@example(count=70, parts=2, threads=2, temperature=0.7, seed=0)
@pytest.mark.usefixtures(instructions.__name__)
def test_the_head_gives_log_probabilities_entropies_and_slopes(
    policy: Policy, count: int, parts: int, threads: int, temperature: float, seed: int
) -> None:
    own, random = blas.products(), np.random.default_rng(seed)
    assert own
    assert policy.parts
    assert policy.kernels
    width, vocabulary = policy.model.args.hidden_size, policy.vocabulary
    states = 3 * random.normal(size=(count, width)).astype(np.float32)
    tokens = random.integers(0, vocabulary, count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "HEAD_LOGITS", max(1, count * vocabulary // parts))
        own.set_threads(threads)
        scores = policy.kernels.score(states, tokens, temperature, gradient=True)
        own.set_threads(1)
    # log p = z - log sum e^z, d log p / d z = onehot - p, entropy = -sum p log p
    unit = np.array(policy.parts.logits(mx.eye(width)), np.float64)
    zero = np.array(policy.parts.logits(mx.zeros((1, width))), np.float64)
    unit, z = unit - zero, (states @ (unit - zero) + zero) / temperature
    z -= z.max(axis=1, keepdims=True, initial=-np.inf)
    log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    assert far(scores.logprobs, log_p[np.arange(count), tokens]) < 1e-5
    assert far(scores.entropies, -(np.exp(log_p) * log_p).sum(axis=1)) < 1e-5
    away = np.eye(vocabulary)[tokens] - np.exp(log_p)
    assert far(scores.gradients, (away @ unit.T) / temperature) < 1e-4


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_logits_that_are_not_numbers_stay_visible(policy: Policy, wrong: float) -> None:
    assert policy.kernels
    states = np.ones((2, policy.model.args.hidden_size), np.float32)
    states[1, 3] = wrong
    scores = policy.kernels.score(states, np.array([1, 2]), 1.0, gradient=False)
    assert np.isfinite(scores.logprobs).tolist() == [True, False]
    assert np.isfinite(scores.entropies).tolist() == [True, False]


def test_what_was_in_its_memory_before_does_not_show(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = made_up_rows([(5, (3, 2)), (30, (20,))])
    value, gradient = weighted_loss(policy, rows)
    monkeypatch.setattr(np, "empty", lambda shape, kind: np.full(shape, np.nan, kind))
    again, other = weighted_loss(policy, rows)
    assert value == again
    assert all(mx.array_equal(gradient[name], other[name]) for name in gradient)


def test_what_is_not_a_number_stays_visible(tmp_path: Path) -> None:
    policy = policy_of(tmp_path / "model", {})
    trained = policy.snapshot()
    name = next(name for name in trained if name.endswith("layers.0.mlp.up_proj.lora_b"))
    policy.load_trainable({**trained, name: mx.full(trained[name].shape, mx.nan)})
    value, gradient = weighted_loss(policy, [TokenRow((1, 2, 3), (4, 5))])
    assert np.isnan(value)
    assert all(np.isnan(np.array(array)).any() for array in gradient.values())


@pytest.mark.parametrize(
    ("changes", "model"),
    [
        *((changes, {}) for changes in LEFT.values()),
        ({}, {"tuning": "dora"}),
        ({}, {"tuning": "full"}),
        ({}, {"grad_checkpoint": "on"}),
        ({}, {"dtype": "bfloat16"}),
    ],
)
def test_other_models_and_ways_to_train_are_left_to_mlx(
    tmp_path: Path, changes: dict[str, Any], model: dict[str, Any]
) -> None:
    policy = policy_of(tmp_path / "model", changes, **model)
    assert policy.training_kernels is None


@pytest.mark.parametrize("part", [0, 1], ids=["log-probabilities", "gradient"])
def test_kernels_that_give_other_numbers_only_decode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """A tenth more in either is no rounding."""
    numbers = compute._gradient

    def distorted(policy: Policy) -> tuple[mx.array, mx.array]:
        result = list(numbers(policy))
        if policy.kernels is not None:
            result[part] = 1.1 * result[part]
        return result[0], result[1]

    monkeypatch.setattr(compute, "_gradient", distorted)
    policy = policy_of(tmp_path / "model", {})
    assert policy.kernels is not None
    assert policy.training_kernels is None


@pytest.mark.parametrize("setting", ["graph", "rows"])
def test_settings_turn_them_off(tmp_path: Path, setting: str) -> None:
    policy = policy_of(tmp_path / "model", {}, compute=setting)
    assert policy.kernels is None
    assert policy.training_kernels is None
    assert policy.shares_prompts == (setting == "graph")
