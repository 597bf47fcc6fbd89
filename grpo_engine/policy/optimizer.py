"""MLX's optimisers on float32 weights, the learning rate schedule, and gradient clipping."""

import math
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_map, tree_map_with_path

from grpo_engine.config.settings import OPTIMIZER_OPTIONS, OptimizerConfig
from grpo_engine.errors import CheckpointError, ConfigError
from grpo_engine.policy.trees import flatten

DEFAULT_EPSILON: float = OPTIMIZER_OPTIONS["epsilon"].default
MASTER = "master."  # prefix of float32 copies in a checkpoint
# float16 covers 6e-8 to 65504: the loss is scaled by a power of two, which an overflow lowers.
MAX_SCALE, SCALE_DROP, STABLE_UPDATES = (
    2.0**16,
    16,
    100,
)  # doubled after 100 updates without overflow


def learning_rate(config: OptimizerConfig, step: int, total: int, share: float = 0.0) -> float:
    """Learning rate of an update, made when `share` of a step (1 is the first) is done.

    In the warm-up ``peak · min(1, n/warm-up)``, where n counts this step, or with
    `warmup_from_zero` only what is done. Then ``peak · (f + (1-f)·shape(x))``, where x goes from 0
    towards 1 at the end of the run and shape is 1, 1-x, or (1 + cos πx)/2.
    """
    peak, warm = config.learning_rate, config.warmup_steps
    done = step - 1 + share
    if done < warm:
        counted = done if config.option("warmup_from_zero") else done + 1
        return peak * min(1.0, counted / warm)
    x = (done - warm) / max(1, total - warm)
    match config.schedule:
        case "constant":
            return peak
        case "linear":
            shape = 1 - x
        case "cosine":
            shape = (1 + math.cos(math.pi * x)) / 2
    final: float = config.option("final_share")
    return peak * (final + (1 - final) * shape)


def build(config: OptimizerConfig) -> optim.Optimizer:
    """The optimiser that the settings name; weight decay spares vectors: norms and biases."""
    rule = _rule(config)
    apply = rule.apply_single

    def apply_single(gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> Any:
        rule.weight_decay = config.weight_decay if parameter.ndim > 1 else 0.0
        return apply(gradient, parameter, state)

    if config.weight_decay:
        rule.apply_single = apply_single
    built: optim.Optimizer = rule
    return built


def _rule(config: OptimizerConfig) -> Any:
    """MLX's optimiser, with bias correction if it has moments."""
    rate, decay = config.learning_rate, config.weight_decay
    betas, eps = [config.option("beta1"), config.option("beta2")], config.option("epsilon")
    if eps != DEFAULT_EPSILON and config.name not in ("adamw", "adam"):
        raise ConfigError(
            f"the epsilon {eps:g} has no effect with {config.name}; use adamw or adam, or "
            f"leave it at {DEFAULT_EPSILON:g}",
            "optimizer.options",
        )
    match config.name:
        case "adamw":
            return optim.AdamW(rate, betas=betas, eps=eps, weight_decay=decay, bias_correction=True)
        case "adam":
            if decay:
                raise ConfigError(
                    f"optimizer.weight_decay {decay} has no effect with adam; use adamw, or 0",
                    "optimizer.weight_decay",
                )
            return optim.Adam(rate, betas=betas, eps=eps, bias_correction=True)
        case "sgd":
            return optim.SGD(rate, momentum=betas[0], weight_decay=decay)
        case "muon":
            return optim.Muon(rate, momentum=betas[0], weight_decay=decay)
        case "lion":
            return optim.Lion(rate, betas=betas, weight_decay=decay)
        case "adafactor":
            return optim.Adafactor(
                rate, weight_decay=decay, scale_parameter=False, relative_step=False
            )


def build_critic(config: OptimizerConfig) -> optim.Optimizer:
    """Adam for the critic, with its own constant learning rate."""
    return optim.Adam(config.option("critic_learning_rate"), bias_correction=True)


class Learner:
    """Updates weights with an MLX optimiser, in float32 whatever their format.

    w32 <- rule(w32, g), w16 <- round(w32): a 16-bit weight alone would lose every update smaller
    than half a unit in the last place. In float16 the loss is scaled to keep small gradients.
    """

    def __init__(
        self, rule: optim.Optimizer, weights: Mapping[str, mx.array], *, scales_loss: bool = False
    ) -> None:
        self.rule = rule
        self.masters = {
            name: value.astype(mx.float32)
            for name, value in weights.items()
            if value.dtype != mx.float32
        }
        self.scales_loss = scales_loss
        self.loss_scale = MAX_SCALE if scales_loss else 1.0
        self.stable = 0  # updates since the last change of scale
        rule.init({**weights, **self.masters})

    def step(
        self, gradients: Mapping[str, mx.array], weights: Mapping[str, mx.array]
    ) -> dict[str, mx.array]:
        """Return the updated weights in their own formats, lazily."""
        stepped: dict[str, mx.array] = self.rule.apply_gradients(
            dict(gradients), {**weights, **self.masters}
        )
        self.masters = {name: stepped[name] for name in self.masters}
        self.stable += 1
        if self.stable >= STABLE_UPDATES and self.loss_scale < MAX_SCALE and self.scales_loss:
            self.loss_scale, self.stable = self.loss_scale * 2, 0
        return {name: value.astype(weights[name].dtype) for name, value in stepped.items()}

    def lower_scale(self) -> bool:
        """Lower the loss scale after a gradient overflow; false if the loss is not scaled."""
        if self.loss_scale <= 1:
            return False
        self.loss_scale, self.stable = max(1.0, self.loss_scale / SCALE_DROP), 0
        return True

    def arrays(self) -> dict[str, mx.array]:
        """The optimiser's state by dotted name, for a checkpoint."""
        arrays = flatten(self.rule.state)
        arrays |= {f"{MASTER}{name}": value for name, value in self.masters.items()}
        if self.scales_loss:
            arrays["loss_scale"] = mx.array([self.loss_scale, float(self.stable)])
        return arrays

    def restore(self, arrays: Mapping[str, mx.array], weights: Mapping[str, mx.array]) -> None:
        """Restore what `arrays` returned; float32 copies that it lacks are made from `weights`."""

        def saved(name: str, value: mx.array) -> mx.array:
            if name not in arrays:
                raise CheckpointError(
                    f"the optimiser's state has no {name}; resume an older checkpoint"
                )
            array = arrays[name]
            if array.shape != value.shape:
                raise CheckpointError(f"the optimiser's {name} is {array.shape}, not {value.shape}")
            return array.astype(value.dtype)

        self.rule.state = tree_map_with_path(saved, self.rule.state)
        # mlx takes a state that was set for a new one and would re-initialise it at the next update
        self.rule._initialized = True
        self.masters = {
            name: arrays.get(f"{MASTER}{name}", weights[name]).astype(mx.float32)
            for name in self.masters
        }
        if self.scales_loss and "loss_scale" in arrays:
            scale, stable = np.array(arrays["loss_scale"])
            self.loss_scale, self.stable = float(scale), int(stable)


def global_norm(gradients: Any) -> mx.array:
    """L2 norm over all gradients, in float32."""
    squares = [mx.square(g.astype(mx.float32)).sum() for g in flatten(gradients).values()]
    return mx.sqrt(mx.stack(squares).sum()) if squares else mx.array(0.0)


def clip(gradients: Any, norm: mx.array, limit: float) -> Any:
    """Scale gradients to a norm of at most `limit`; 0 means no limit."""
    if not limit:
        return gradients
    scale = mx.minimum(limit / (norm + 1e-6), 1.0)
    return tree_map(lambda g: g * scale.astype(g.dtype), gradients)
