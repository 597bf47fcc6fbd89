"""Schedules at points one can compute, clipping, and an optimiser state that survives a restart."""

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten

from grpo_engine import optimizer
from grpo_engine.config import OptimizerConfig
from grpo_engine.errors import ConfigError

NAMES = ["adamw", "adam", "sgd", "muon", "lion", "adafactor"]


def rates(total: int = 10, **settings: object) -> list[float]:
    config = OptimizerConfig.model_validate({"learning_rate": 1.0, **settings})
    return [optimizer.learning_rate(config, step, total) for step in range(1, total + 1)]


def test_warm_up_ends_at_the_peak() -> None:
    assert rates(warmup_steps=4)[:6] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])


def test_linear_starts_at_the_peak_and_heads_for_the_final_share() -> None:
    assert rates(schedule="linear", total=5) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    assert rates(schedule="linear", total=5, final_share=0.5)[-1] == pytest.approx(0.6)


def test_cosine_is_half_way_down_in_the_middle() -> None:
    assert rates(schedule="cosine", total=4)[2] == pytest.approx(0.5)


def test_adam_refuses_a_weight_decay_it_would_not_apply() -> None:
    with pytest.raises(ConfigError, match="use adamw"):
        optimizer.build(OptimizerConfig(name="adam", weight_decay=0.1))


def test_first_adamw_step_moves_by_the_learning_rate() -> None:
    # with bias correction m/√v = g/|g| in the first step
    made = optimizer.build(OptimizerConfig(learning_rate=0.01))
    after = made.apply_gradients({"w": mx.array([0.3])}, {"w": mx.array([1.0])})
    assert after["w"].item() == pytest.approx(0.99, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_restored_optimiser_goes_on_bit_for_bit(name: str) -> None:
    config = OptimizerConfig.model_validate({"name": name, "learning_rate": 0.05})

    def updated(model: nn.Module, made: object, times: int) -> nn.Module:
        for _ in range(times):
            gradients = nn.value_and_grad(model, lambda m: (m(mx.ones((1, 3))) ** 2).sum())(model)
            made.update(model, gradients[1])  # type: ignore[attr-defined]
        return model

    mx.random.seed(0)
    straight = nn.Linear(3, 2)
    start = dict(tree_flatten(straight.parameters()))
    updated(straight, optimizer.build(config), 4)

    first, again = nn.Linear(3, 2), nn.Linear(3, 2)
    first.load_weights(list(start.items()))
    made = optimizer.build(config)
    updated(first, made, 2)
    again.load_weights(list(dict(tree_flatten(first.parameters())).items()))
    fresh = optimizer.build(config)
    fresh.init(again.trainable_parameters())
    optimizer.restore(fresh, optimizer.state_arrays(made))
    updated(again, fresh, 2)
    expected, got = (dict(tree_flatten(m.parameters())) for m in (straight, again))
    assert all(mx.array_equal(expected[name], got[name]) for name in expected)


def test_clipping_keeps_the_direction_and_sets_the_norm() -> None:
    gradients = {"a": mx.array([3.0]), "b": mx.array([4.0])}
    norm = optimizer.global_norm(gradients)
    assert norm.item() == pytest.approx(5.0)
    clipped = optimizer.clip(gradients, norm, 1.0)
    assert (clipped["a"].item(), clipped["b"].item()) == pytest.approx((0.6, 0.8), abs=1e-5)
    assert optimizer.clip(gradients, norm, 0.0) is gradients
    assert optimizer.clip(gradients, norm, 10.0)["a"].item() == 3.0
