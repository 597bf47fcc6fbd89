"""Mismatch of sampler and trainer: when they agree exactly, and the correction when not."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from grpo_engine.config.declaration import as_text
from grpo_engine.config.recipes import Recipe, changes, path_of, recipe

# TRL's: an answer is left out of the loss if its probability ratio exceeds the cap.
CORRECTION: dict[str, Any] = {"importance_cap": 3.0, "importance_mode": "sequence_mask"}
CORRECTION_TEXT = ", ".join(
    f"{path_of(name)} {as_text(value)}" for name, value in CORRECTION.items()
)


class Gap(NamedTuple):
    """|log π_old - log π_sampler| per token, in nats: mean and maximum over a step."""

    mean: float
    max: float


# The gap that rounding alone causes between two equal forward passes: a logit of 16 to 32 that
# rounds the other way moves by 2^-3 in bfloat16 and by 2^-6 in float16.
ROUNDING = {"float32": Gap(1e-4, 1e-3), "float16": Gap(1e-4, 0.03), "bfloat16": Gap(1e-3, 0.25)}

# The gap by bits of the cache. Means of .02 and .25 nats were measured on models of up to 135
# million weights, and up to four times that where predictions are sharp.
CACHED = {0: Gap(0.0, 0.0), 8: Gap(0.25, 4.0), 4: Gap(2.0, 32.0)}


def rounding(dtype: str, cache_bits: int) -> Gap:
    """The gap that a number format and the bits of a cache explain."""
    return max(ROUNDING[dtype], CACHED[cache_bits])


def can_agree(dtype: str, *, quantized: bool = False) -> bool:
    """Whether the sampler's log-probabilities can equal the trainer's to float32 precision.

    The sampler decodes token by token from a cache; the trainer runs whole answers. In 16 bits, or
    if weights or the cache are quantised, the two round differently.
    """
    return dtype == "float32" and not quantized


def is_quantized(weights: Iterable[str]) -> bool:
    """Whether any of the weights with these names is quantised."""
    return any(name.endswith(".scales") for name in weights)


def with_correction(chosen: Recipe, requested: float | None, *, agree: bool) -> Recipe:
    """The recipe, with importance correction turned on if it is unset and the two cannot agree."""
    if agree or requested is not None or chosen.importance_cap > 0 or chosen.demonstrates:
        return chosen
    return recipe(chosen, **CORRECTION)


def correction(chosen: Recipe, changed: Recipe) -> dict[str, Any]:
    """The settings that `with_correction` changed, by path."""
    return {f"algorithm.{name}": value for name, value in changes(chosen, changed).items()}


def corrected(chosen: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """The recipe with the settings that `correction` returned, as a resumed run had it."""
    return recipe(chosen, **{path.rpartition(".")[2]: value for path, value in settings.items()})
