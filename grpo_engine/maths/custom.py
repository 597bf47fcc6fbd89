"""Calls the functions that users wrote for a choice: by keyword, only with what they name."""

import itertools
from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from grpo_engine.config.custom import Custom
from grpo_engine.config.recipes import Recipe
from grpo_engine.errors import EngineError, MathsError
from grpo_engine.maths.arrays import LIMIT, Batch, lengths, on_mask
from grpo_engine.maths.signal import Siblings
from grpo_engine.maths.weight import Totals
from grpo_engine.sandbox.report import describe

Values = Mapping[str, Any]


def call(role: str, function: Custom, values: Values, *shapes: tuple[int, ...]) -> mx.array:
    """What the function returns for the values that it names; MathsError if that cannot be used."""
    title, setting = f"{role} {function}", f"algorithm.{role}"
    known = {name: value for name, value in values.items() if value is not None}
    for name, is_needed in function.parameters.items():
        if is_needed and name not in known:
            raise MathsError(
                f"{title} needs the argument {name!r}, which there is not; there are: "
                f"{', '.join(known)}{function.at}",
                setting,
            )
    try:
        result = function.function(**{n: known[n] for n in function.parameters if n in known})
    except EngineError:
        raise
    except Exception as error:
        failure = describe(error)
        raise MathsError(f"{title} failed: {failure.message}{failure.at}", setting) from error
    legal = " or ".join(map(str, shapes))
    if not isinstance(result, mx.array):
        returned = f"a Python {type(result).__name__}"
    elif result.dtype != mx.float32 or tuple(result.shape) not in shapes:
        returned = f"{str(result.dtype).removeprefix('mlx.core.')} of shape {tuple(result.shape)}"
    else:
        return result
    raise MathsError(
        f"{title} returned {returned}; it must return an mx.array, float32 of shape {legal}"
        f"{function.at}",
        setting,
    )


def advantages(
    function: Custom,
    group: Siblings,
    rewards: mx.array,
    group_ids: mx.array,
    mask: mx.array | None,
    values: Values,
) -> mx.array:
    """The advantages by a function, [B] or [B,T]; 0 without a reward, and off the mask."""
    sizes = [len([*ids]) for _, ids in itertools.groupby(group_ids.tolist())]  # type: ignore[arg-type]
    if len(set(sizes)) > 1 or len(sizes) != len({*group_ids.tolist()}):  # type: ignore[misc]
        raise MathsError(
            f"signal {function} takes rewards_PG: give groups of one size, one after the other"
        )
    shape, rows = (len(sizes), sizes[0]), group.score.shape[0]
    arguments = {
        "rewards_PG": group.score.reshape(shape),
        "scored_PG": group.valid.reshape(shape).astype(mx.float32),
        "rewards_PGF": rewards.reshape(*shape, -1),
        "lengths_PG": None if mask is None else lengths(mask).reshape(shape),
        "mask_BT": None if mask is None else (mask > 0).astype(mx.float32),
        **values,
    }
    by_token = [] if mask is None else [tuple(mask.shape)]
    result = call("signal", function, arguments, shape, *by_token)
    if tuple(result.shape) == shape:
        return mx.where(group.valid, result.reshape(rows), 0.0)
    assert mask is not None
    return on_mask(result, (mask > 0) & group.valid[:, None])


def by_token(role: str, recipe: Recipe, values: Values, mask: mx.array) -> mx.array | None:
    """What the user's function for trust or weight gives tokens; None if the choice is built in."""
    function = recipe.functions.get(role)
    if function is None:
        return None
    return on_mask(call(role, function, values, tuple(mask.shape)), mask)


def token_values(
    batch: Batch, totals: Totals, max_length: int | None, log_ratio: mx.array, ratio: mx.array
) -> Values:
    """What the functions of trust, anchor and weight may name; None where it is not known."""
    shape = batch.mask.shape
    return {
        **batch.extra,
        "log_ratio_BT": mx.broadcast_to(mx.clip(log_ratio, -LIMIT, LIMIT), shape),
        "ratio_BT": ratio,
        "advantages_BT": batch.advantage,
        "mask_BT": batch.mask.astype(mx.float32),
        "lengths_B": lengths(batch.mask)[:, 0],
        "logprobs_BT": batch.new,
        "old_logprobs_BT": batch.old,
        "ref_logprobs_BT": batch.ref,
        "sampler_logprobs_BT": batch.sampler,
        "entropy_BT": batch.entropy,
        "rows": totals.rows,
        "tokens": totals.tokens,
        "max_length": max_length,
    }
