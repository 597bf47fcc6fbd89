"""Calls users' functions for a choice: by keyword, with what their parameters name."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import mlx.core as mx

from grpo_engine.config.custom import Custom
from grpo_engine.config.recipes import Recipe
from grpo_engine.errors import EngineError, MathsError
from grpo_engine.maths.arrays import LIMIT, Batch, lengths, on_mask
from grpo_engine.maths.signal import Siblings
from grpo_engine.maths.weight import Totals
from grpo_engine.platform.faults import raise_fault
from grpo_engine.sandbox.report import describe

Values = Mapping[str, Any]
RUNNING = "running.txt"  # the file in a run's folder that names the function being called

_folders: list[Path] = []  # folders of the runs of this process


@contextmanager
def named_in(folder: Path) -> Iterator[None]:
    """Name each function in a run's folder while it is called: it can end the process silently."""
    _folders.append(folder)
    _name("")  # removes a name that an earlier process left
    try:
        yield
    finally:
        _folders.remove(folder)


def _name(text: str) -> None:
    for folder in _folders:
        with suppress(OSError):
            (folder / RUNNING).write_text(text, encoding="utf-8")


def refusal(role: str, function: Custom, problem: str) -> MathsError:
    """An error that names the choice, its function, what is wrong with it, and where."""
    at = f"{function.source['file']}:{function.source['line']}"
    return MathsError(f"{role} {function} {problem} (at {at})", f"algorithm.{role}")


def call(role: str, function: Custom, values: Values, *shapes: tuple[int, ...]) -> mx.array:
    """What the function returns for the values that it names; MathsError if it is unusable."""
    known = {name: value for name, value in values.items() if value is not None}
    for name, is_needed in function.parameters.items():
        if is_needed and name not in known:
            problem = f"needs the argument {name!r}, which there is not; there are: "
            raise refusal(role, function, problem + ", ".join(known))
    _name(f"its process ended in {role} {function}")
    try:
        result = function.function(**{n: known[n] for n in function.parameters if n in known})
    except EngineError:
        raise
    except (Exception, SystemExit) as error:
        raise_fault(error)
        text = f"{role} {function} failed: {describe(error)}"
        raise MathsError(text, f"algorithm.{role}") from error
    finally:
        _name("")
    returned = f"a Python {type(result).__name__}"
    if isinstance(result, mx.array):
        if result.dtype == mx.float32 and result.shape in shapes:
            return result
        returned = f"{result.dtype} of shape {result.shape}"
    legal = " or ".join(map(str, shapes))
    problem = f"returned {returned}; it must return an mx.array, float32 of shape {legal}"
    raise refusal(role, function, problem)


def advantages(
    function: Custom,
    group: Siblings,
    rewards_BF: mx.array,
    group_ids_B: mx.array,
    mask_BT: mx.array | None,
    values: Values,
) -> mx.array:
    """The advantages by a function, [B] or [B,T]; 0 without a reward, and off the mask."""
    ids: Any = group_ids_B.tolist()
    prompts = dict.fromkeys(ids)
    shape = (len(prompts), ids.count(ids[0]))
    if ids != [prompt for prompt in prompts for _ in range(shape[1])]:
        raise MathsError(
            f"signal {function} takes rewards_PG: give groups of one size, one after the other"
        )
    arguments: dict[str, Any] = {
        "rewards_PG": group.scores_B.reshape(shape),
        "scored_PG": group.valid_B.reshape(shape).astype(mx.float32),
        "rewards_PGF": rewards_BF.reshape(*shape, -1),
        **values,
    }
    shapes: list[tuple[int, ...]] = [shape]
    if mask_BT is not None:
        arguments["lengths_PG"] = lengths(mask_BT).reshape(shape)
        arguments["mask_BT"] = (mask_BT > 0).astype(mx.float32)
        shapes.append(mask_BT.shape)
    result = call("signal", function, arguments, *shapes)
    if result.shape == shape:
        return mx.where(group.valid_B, result.reshape(-1), 0.0)
    return mx.where(arguments["mask_BT"] * group.valid_B[:, None] > 0, result, 0.0)


def by_token(role: str, recipe: Recipe, values: Values, mask_BT: mx.array) -> mx.array | None:
    """What the user's function for trust or weight gives tokens; None if the choice is built in."""
    function = recipe.functions.get(role)
    if function is None:
        return None
    return on_mask(call(role, function, values, mask_BT.shape), mask_BT)


def token_values(
    batch: Batch, totals: Totals, max_length: int | None, log_ratio_BT: mx.array, ratio_BT: mx.array
) -> Values:
    """What the functions of trust, anchor and weight may name; None where it is not known."""
    log_ratio_BT = mx.clip(log_ratio_BT, -LIMIT, LIMIT)
    return {
        **batch.extra,
        "log_ratio_BT": mx.broadcast_to(log_ratio_BT, batch.mask_BT.shape),
        "ratio_BT": ratio_BT,
        "advantages_BT": batch.advantages_BT,
        "mask_BT": batch.mask_BT.astype(mx.float32),
        "lengths_B": lengths(batch.mask_BT)[:, 0],
        "logprobs_BT": batch.new_BT,
        "old_logprobs_BT": batch.old_BT,
        "ref_logprobs_BT": batch.ref_BT,
        "sampler_logprobs_BT": batch.sampler_BT,
        "entropy_BT": batch.entropy_BT,
        "rows": totals.rows,
        "tokens": totals.tokens,
        "max_length": max_length,
    }
