"""Schedules at computable points, clipping, and an optimiser state that survives a restart."""

from typing import Any

import mlx.core as mx
import pytest

from grpo_engine.config.settings import OptimizerConfig
from grpo_engine.errors import ConfigError
from grpo_engine.policy import optimizer
from tests.engine.policy.helpers import largest

NAMES = ["adamw", "adam", "sgd", "muon", "lion", "adafactor"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"warmup_steps": 2}, [0.5, 1.0, 1.0, 1.0, 1.0]),
        # as transformers: the k-th update, from 0, has k/2 of the peak; then (5 - k)/(5 - 2)
        (
            {"warmup_steps": 2, "options": {"warmup_from_zero": True}, "schedule": "linear"},
            [0.0, 0.5, 1.0, 2 / 3, 1 / 3],
        ),
        ({"schedule": "linear"}, [1.0, 0.8, 0.6, 0.4, 0.2]),
        ({"schedule": "linear", "options": {"final_share": 0.5}}, [1.0, 0.9, 0.8, 0.7, 0.6]),
        # one step of warm-up, then (1 + cos πx)/2 of x = 0, 1/4, 1/2, 3/4
        (
            {"schedule": "cosine", "warmup_steps": 1},
            [1.0, 1.0, 0.5 + 0.125**0.5, 0.5, 0.5 - 0.125**0.5],
        ),
    ],
)
def test_a_schedule_has_these_rates(settings: dict[str, Any], expected: list[float]) -> None:
    config = OptimizerConfig.model_validate({"learning_rate": 1.0, **settings})
    rates = [optimizer.learning_rate(config, step, 5) for step in range(1, 6)]
    assert rates == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "settings", "remedy"),
    [
        ("adam", {"weight_decay": 0.1}, "use adamw"),
        *(
            (name, {"options": {"epsilon": 1e-6}}, "use adamw or adam")
            for name in ("sgd", "muon", "lion", "adafactor")
        ),
    ],
)
def test_a_setting_that_is_not_read_is_refused(
    name: str, settings: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(ConfigError, match=remedy):
        optimizer.build(OptimizerConfig.model_validate({"name": name, **settings}))


def test_the_rate_of_an_update_follows_the_schedule_within_its_step() -> None:
    # half of the second of four steps: 1.5 are done, 2.5 remain
    config = OptimizerConfig(learning_rate=1.0, schedule="linear")
    assert optimizer.learning_rate(config, 2, 4, share=0.5) == pytest.approx(2.5 / 4)
    warm = OptimizerConfig(learning_rate=1.0, warmup_steps=4)
    assert optimizer.learning_rate(warm, 2, 9, share=0.5) == pytest.approx(2.5 / 4)
    assert optimizer.learning_rate(warm, 4, 9, share=0.5) == 1.0


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon", "lion", "adafactor"])
def test_weight_decay_spares_norms_and_biases(name: str) -> None:
    made = optimizer.build(
        OptimizerConfig.model_validate(
            {"name": name, "learning_rate": 0.1, "weight_decay": 0.5, "options": {"beta1": 0.0}}
        )
    )
    weights = {"layer.weight": mx.ones((2, 2)), "norm.weight": mx.ones(2), "layer.bias": mx.ones(2)}
    still = {key: mx.zeros_like(value) for key, value in weights.items()}
    after = made.apply_gradients(still, weights)
    assert after["norm.weight"].tolist() == [1.0, 1.0]
    assert after["layer.bias"].tolist() == [1.0, 1.0]
    assert mx.all(after["layer.weight"] < 1).item()


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_epsilon_is_added_to_the_root_of_the_second_moment(name: str) -> None:
    # first step: m̂ = g = .3, √v̂ = .3; .01·.3/(.3 + .1) = .0075
    made = optimizer.build(
        OptimizerConfig.model_validate(
            {"name": name, "learning_rate": 0.01, "options": {"epsilon": 0.1}}
        )
    )
    after = made.apply_gradients({"w": mx.array([0.3])}, {"w": mx.array([1.0])})
    assert after["w"].item() == pytest.approx(1 - 0.0075, abs=1e-6)


Weights = dict[str, mx.array]


def steps_of(learner: optimizer.Learner, weights: Weights, times: int) -> Weights:
    """Gradient steps on the sum of fourth powers, whose gradient is 4 w^3."""
    for _ in range(times):
        slope = {name: 4 * w.astype(mx.float32) ** 3 for name, w in weights.items()}
        weights = learner.step(slope, weights)
    return weights


def start(kind: mx.Dtype) -> Weights:
    drawn = mx.random.normal((4, 3), key=mx.random.key(1)).astype(kind)
    return {"a.0.w": drawn, "a.0.b": drawn[0], "norm": mx.ones(3)}


@pytest.mark.parametrize("kind", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_a_restored_optimiser_goes_on_bit_for_bit(name: str, kind: mx.Dtype) -> None:
    config = OptimizerConfig.model_validate({"name": name, "learning_rate": 1e-3})
    straight = steps_of(optimizer.Learner(optimizer.build(config), start(kind)), start(kind), 6)

    made = optimizer.Learner(optimizer.build(config), start(kind))
    half = steps_of(made, start(kind), 3)
    fresh = optimizer.Learner(optimizer.build(config), start(kind))
    fresh.restore(made.arrays(), half)
    again = steps_of(fresh, half, 3)

    assert all(mx.array_equal(straight[name], again[name]) for name in straight)
    assert {value.dtype for value in again.values()} == {kind, mx.float32}


@pytest.mark.parametrize("name", NAMES)
def test_steps_too_small_for_16_bit_weights_add_up(name: str) -> None:
    # 100 steps of 1e-5 at 1: bfloat16 has no number between 1 and 1 - 2^-9 = .998
    config = OptimizerConfig.model_validate({"name": name, "learning_rate": 1e-5})
    weights = {"w": mx.ones((2, 2), dtype=mx.bfloat16)}
    whole = {"w": mx.ones((2, 2))}
    learner = optimizer.Learner(optimizer.build(config), weights)
    exact = optimizer.Learner(optimizer.build(config), whole)
    for _ in range(100):
        slope = {"w": mx.array([[1.0, 2.0], [-1.0, 0.5]])}
        weights, whole = learner.step(slope, weights), exact.step(slope, whole)

    assert mx.array_equal(learner.masters["w"], whole["w"])
    assert mx.array_equal(weights["w"], whole["w"].astype(mx.bfloat16))
    assert largest(whole["w"] - 1) > 5e-4


def test_an_old_checkpoint_of_16_bit_weights_gives_masters_and_moments_their_start() -> None:
    config = OptimizerConfig(learning_rate=1e-3)
    weights = start(mx.bfloat16)
    learner = optimizer.Learner(optimizer.build(config), weights)
    moved = steps_of(learner, weights, 2)
    old = {
        name: value.astype(mx.bfloat16) if name.endswith((".m", ".v")) else value
        for name, value in learner.arrays().items()
        if not name.startswith(optimizer.MASTER)
    }

    fresh = optimizer.Learner(optimizer.build(config), weights)
    fresh.restore(old, moved)

    assert mx.array_equal(fresh.masters["a.0.w"], moved["a.0.w"].astype(mx.float32))
    assert {v.dtype for n, v in fresh.arrays().items() if n.endswith((".m", ".v"))} == {mx.float32}


def test_float32_weights_have_no_second_copy_and_no_scale() -> None:
    learner = optimizer.Learner(optimizer.build(OptimizerConfig()), start(mx.float32))
    assert not any(name.startswith((optimizer.MASTER, "loss_scale")) for name in learner.arrays())
    assert learner.loss_scale == 1
    assert not learner.lower_scale()


def test_the_scale_falls_to_1_where_gradients_overflow_and_comes_back() -> None:
    config = OptimizerConfig(learning_rate=1e-3)
    learner = optimizer.Learner(optimizer.build(config), start(mx.float16), scales_loss=True)
    falls = [learner.loss_scale]
    while learner.lower_scale():
        falls.append(learner.loss_scale)
    weights = steps_of(learner, start(mx.float16), 150)

    assert falls == [65536, 4096, 256, 16, 1]
    assert (learner.loss_scale, learner.stable) == (2, 50)

    again = optimizer.Learner(optimizer.build(config), start(mx.float16), scales_loss=True)
    again.restore(learner.arrays(), weights)
    assert (again.loss_scale, again.stable) == (2, 50)


def test_clipping_keeps_the_direction_and_sets_the_norm() -> None:
    gradients = {"a": mx.array([3.0]), "b": mx.array([4.0])}
    norm = optimizer.global_norm(gradients)
    assert norm.item() == pytest.approx(5.0)
    clipped = optimizer.clip(gradients, norm, 1.0)
    assert (clipped["a"].item(), clipped["b"].item()) == pytest.approx((0.6, 0.8), abs=1e-5)
    assert optimizer.clip(gradients, norm, 0.0) is gradients
    assert optimizer.clip(gradients, norm, 10.0)["a"].item() == 3.0
