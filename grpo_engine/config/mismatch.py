"""Sampler and trainer: where they can agree exactly, and what is done where they cannot."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from grpo_engine.config.recipes import Recipe, recipe

# TRL's: an answer whose probability ratio is above the cap leaves the loss
CORRECTION: dict[str, Any] = {"importance_cap": 3.0, "importance_mode": "sequence_mask"}
SAID = ", ".join(
    f"algorithm.{name} {value:g}" if isinstance(value, float) else f"algorithm.{name} {value}"
    for name, value in CORRECTION.items()
)


class Gap(NamedTuple):
    """|log π_old - log π_sampler| per token, in nats: the mean over a step and its largest."""

    mean: float
    most: float


# What rounding alone leaves between two forward passes that should be the same: a logit of 16 to 32
# that rounds to its other neighbour moves by 2^-3 in bfloat16 and by 2^-6 in float16.
ROUNDING = {"float32": Gap(1e-4, 1e-3), "float16": Gap(1e-4, 0.03), "bfloat16": Gap(1e-3, 0.25)}


def can_agree(dtype: str, *, quantized: bool = False) -> bool:
    """Whether the sampler's log-probabilities can equal the trainer's to float32 precision.

    The sampler decodes row by row from a cache in the model's own format, the trainer runs whole
    answers: in 16 bits, or with packed weights, the two round differently.
    """
    return dtype == "float32" and not quantized


def is_quantized(weights: Iterable[str]) -> bool:
    """Whether some of the weights with these names are packed."""
    return any(name.endswith(".scales") for name in weights)


def settled(chosen: Recipe, asked: float | None, *, agree: bool) -> Recipe:
    """The recipe with importance correction on where nobody decided and the two cannot agree."""
    if agree or asked is not None or chosen.importance_cap > 0:
        return chosen
    return recipe(chosen, **CORRECTION)


def correction(chosen: Recipe, made: Recipe) -> dict[str, Any]:
    """The settings, by their paths, in which `settled` changed a recipe."""
    return {
        f"algorithm.{name}": getattr(made, name)
        for name in CORRECTION
        if getattr(made, name) != getattr(chosen, name)
    }


def corrected(chosen: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """A recipe with what `correction` gave, as a run that is resumed had it."""
    return recipe(chosen, **{path.rpartition(".")[2]: made for path, made in settings.items()})
