"""Optimisers as mlx has them, the learning rate as a function of the step, gradient clipping."""

import math
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from mlx.utils import tree_flatten, tree_map

from grpo_engine.config import OptimizerConfig
from grpo_engine.errors import CheckpointError, ConfigError


def learning_rate(config: OptimizerConfig, step: int, total: int) -> float:
    """Learning rate of a step (1 is the first): linear warm-up, then the schedule.

    ``peak · n/warm-up`` up to step `warmup_steps`; after it, with x going from 0 towards 1 at the
    end of the run, ``peak · (f + (1-f)·shape(x))``: shape is 1, 1-x, or (1 + cos πx)/2.
    """
    peak, warm = config.learning_rate, config.warmup_steps
    if step <= warm:
        return peak * step / warm
    x = (step - 1 - warm) / max(1, total - warm)
    match config.schedule:
        case "constant":
            return peak
        case "linear":
            shape = 1 - x
        case "cosine":
            shape = (1 + math.cos(math.pi * x)) / 2
    return peak * (config.final_share + (1 - config.final_share) * shape)


def build(config: OptimizerConfig) -> optim.Optimizer:
    """Make the optimiser that the settings name, with bias correction where it has moments."""
    rate, decay, betas = config.learning_rate, config.weight_decay, [config.beta1, config.beta2]
    match config.name:
        case "adamw":
            return optim.AdamW(rate, betas=betas, weight_decay=decay, bias_correction=True)
        case "adam":
            if decay:
                raise ConfigError(
                    f"optimizer.weight_decay {decay} has no effect with adam; use adamw, or 0"
                )
            return optim.Adam(rate, betas=betas, bias_correction=True)
        case "sgd":
            return optim.SGD(rate, momentum=config.beta1, weight_decay=decay)
        case "muon":
            return optim.Muon(rate, momentum=config.beta1, weight_decay=decay)
        case "lion":
            return optim.Lion(rate, betas=betas, weight_decay=decay)
        case "adafactor":
            return optim.Adafactor(
                rate, weight_decay=decay, scale_parameter=False, relative_step=False
            )


def build_critic(config: OptimizerConfig) -> optim.Optimizer:
    """Adam for the value head, at its own constant learning rate."""
    return optim.Adam(config.critic_learning_rate, bias_correction=True)


def state_arrays(optimizer: optim.Optimizer) -> dict[str, mx.array]:
    """Give the optimiser's state by dotted names, for a checkpoint."""
    return dict(tree_flatten(optimizer.state))


def restore(optimizer: optim.Optimizer, arrays: Mapping[str, mx.array]) -> None:
    """Put back what `state_arrays` gave into an optimiser that is initialised for the same weights.

    The tree's own shape stays: it has empty places, for layers without trained weights, that
    dotted names do not tell.
    """
    optimizer.state = _filled(optimizer.state, arrays, "")
    # a state that is set counts as new to mlx, and would be filled up at the next update
    optimizer._initialized = True


def _filled(tree: Any, arrays: Mapping[str, mx.array], name: str) -> Any:
    prefix = f"{name}." if name else ""
    if isinstance(tree, dict):
        return {key: _filled(value, arrays, f"{prefix}{key}") for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_filled(v, arrays, f"{prefix}{i}") for i, v in enumerate(tree))
    if name not in arrays:
        raise CheckpointError(f"the optimiser's state has no {name}; resume an older checkpoint")
    return arrays[name]


def global_norm(gradients: Any) -> mx.array:
    """Euclidean norm over all gradients, in float32."""
    arrays: list[mx.array] = list(dict(tree_flatten(gradients)).values())
    squares = [mx.square(array.astype(mx.float32)).sum() for array in arrays]
    return mx.sqrt(mx.stack(squares).sum()) if squares else mx.array(0.0)


def clip(gradients: Any, norm: mx.array, limit: float) -> Any:
    """Scale gradients so that their norm is at most `limit`; 0 leaves them."""
    if not limit:
        return gradients
    scale = mx.minimum(limit / (norm + 1e-6), 1.0)
    return tree_map(lambda g: g * scale.astype(g.dtype), gradients)
