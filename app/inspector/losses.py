"""Each token's part in the loss, computed by the engine's loss from recorded numbers.

MLX is imported in the thread that calls first; callers must use one thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from grpo_engine.config.recipes import Recipe
from grpo_engine.events import UpdateTotals
from grpo_engine.platform.device import require_mlx
from grpo_tui.experiments.values import RecordedTokens

if TYPE_CHECKING:
    import mlx.core as mx

    from grpo_engine.maths.loss import Loss
    from grpo_engine.maths.weight import Totals

T = TypeVar("T")
Side = Literal["free", "low", "high", "ceiling"]
SIDES: tuple[Side, ...] = ("free", "high", "ceiling", "low")  # -1 is low


class TokenLoss(NamedTuple):
    """One token in the loss of one pass; `contribution` is what it adds to the objective.

    `push` and `pull` are the objective's gradient in the token's log-probability: that of the
    advantages, and that of the KL penalty. The objective is maximised: above 0 is up.
    """

    advantage: float
    ratio: float
    low: float
    high: float
    side: Side
    in_loss: bool
    updated: bool
    importance: float
    on_policy: bool
    objective: float
    anchor: float
    value_loss: float
    bonus: float
    contribution: float
    push: float
    pull: float
    weight: float = 0.0
    teacher_part: float = 0.0  # the teacher's part of the advantage
    kl: float | None = None
    entropy: float | None = None

    @property
    def reward_part(self) -> float:
        """The part of the advantage that is not the teacher's."""
        remainder = self.advantage - self.teacher_part
        return remainder if abs(remainder) > 1e-6 * abs(self.teacher_part) else 0.0

    @property
    def gradient(self) -> float:
        """Which way the loss moves the token's log-probability, and how strongly."""
        return self.push + self.pull


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packed:
    """The recorded numbers of rollouts in one pass, as the loss takes them."""

    arrays: Mapping[str, "mx.array"]  # [B,T], by the loss's arguments; [B] for group_ids
    totals: "Totals"
    entropy_bonus: float
    minibatches: tuple[int, ...]  # by rollout
    step: int
    max_length: int


def packed(
    rows: Sequence[RecordedTokens], groups: Sequence[int] = (), *, step: int, max_length: int
) -> Packed:
    """Pack rollouts in the last pass of each.

    Every row must have `updates`, and some row tokens. `groups` are the rollouts' groups, one if
    not given. What was not recorded of every rollout is left out.
    """
    require_mlx()
    import mlx.core as mx

    from grpo_engine.maths.weight import Totals

    columns = [_columns(row) for row in rows]
    arrays = {
        name: _padded([column[name] for column in columns])
        for name in columns[0]
        if all(column[name] or not row.ids for row, column in zip(rows, columns, strict=True))
    }
    arrays["group_ids"] = mx.array(list(groups) or [0] * len(rows), dtype=mx.int32)
    updates = [latest(row.updates) or UpdateTotals(rows=1, tokens=1) for row in rows]
    totals: dict[str, Any] = {}  # [B,1]: a group may be spread over micro-batches
    for field in fields(Totals):
        values = [getattr(update, field.name) for update in updates]
        is_recorded = None not in values
        totals[field.name] = mx.array(values, dtype=mx.float32)[:, None] if is_recorded else None
    return Packed(
        arrays=arrays,
        totals=Totals(**totals),
        entropy_bonus=updates[0].entropy_bonus,
        minibatches=tuple(update.minibatch for update in updates),
        step=step,
        max_length=max_length,
    )


def _columns(row: RecordedTokens) -> dict[str, Sequence[float]]:
    """A rollout's numbers in a pass, by the arguments of the loss; empty if not recorded."""
    repeated = len(row.ids) if len(row.advantages) == 1 else 1
    return {
        "new": latest(row.passes) or row.old,
        "old": row.old,
        "token_ids": row.ids,
        "mask": loss_mask(row),
        "advantages": row.advantages * repeated,
        "ref": row.reference,
        "sampler": row.sampled or row.sampler,
        "entropy": latest(row.entropies) or row.entropy,
        "values": latest(row.values) or (),
        "old_values": row.old_values,
        "returns": row.returns,
        "teacher": row.teacher,
    }


def _padded(rows: Sequence[Sequence[float]]) -> "mx.array":
    import mlx.core as mx
    import numpy as np

    values = np.zeros((len(rows), max(map(len, rows))), np.float32)
    for index, row in enumerate(rows):
        values[index, : len(row)] = row
    return mx.array(values)


def loss_of(numbers: Packed, recipe: Recipe) -> "Loss":
    """The engine's loss of recorded numbers.

    What the recipe reads and the run did not record has no weight.
    """
    from grpo_engine.maths.loss import policy_loss

    arrays: dict[str, Any] = {"ref": None, **numbers.arrays}
    arrays.pop("teacher", None)  # The advantages contain it.
    changes: dict[str, Any] = {"entropy_bonus": numbers.entropy_bonus}
    if "ref" not in numbers.arrays and recipe.anchor_place == "loss":
        changes["beta"] = 0.0
    if "sampler" not in numbers.arrays:
        changes |= {"importance_cap": 0.0, "off_policy_mask": 0.0}
    if "entropy" not in numbers.arrays:
        changes |= {"entropy_bonus": 0.0, "entropy_top_quantile": 1.0}
    return policy_loss(
        **arrays,
        recipe=replace(recipe, **changes),
        max_length=numbers.max_length,
        totals=numbers.totals,
        extra={"step": numbers.step},
    )


def gradients(numbers: Packed, recipe: Recipe) -> tuple["mx.array", "mx.array"]:
    """-dL/dlog π of each token without the KL penalty, and of the KL penalty alone. [B,T] each

    L is the loss of all rollouts: with a ratio or a KL of whole completions, a token's gradient has
    parts of its neighbours' losses too.
    """
    import mlx.core as mx

    def of(variant: Recipe) -> mx.array:
        def objective(new: mx.array) -> mx.array:
            moved = replace(numbers, arrays={**numbers.arrays, "new": new})
            return -loss_of(moved, variant).value

        gradient: mx.array = mx.grad(objective)(numbers.arrays["new"])
        return gradient

    total = of(recipe)
    if not recipe.anchor_in_loss:
        return total, mx.zeros_like(total)
    # The loss is linear in beta. A beta of 0 would be another recipe, which may not exist.
    pull = of(replace(recipe, beta=2 * recipe.beta)) - total
    return total - pull, pull


def token_losses(
    rows: Sequence[RecordedTokens], recipe: Recipe, *, max_length: int, step: int
) -> tuple[tuple[TokenLoss, ...], ...]:
    """Each token of a group in the last pass of its rollout; every row must have `updates`."""
    import numpy as np

    if not any(row.ids for row in rows):
        return ((),) * len(rows)
    numbers = packed(rows, step=step, max_length=max_length)
    terms: Any = loss_of(numbers, recipe).terms
    push, pull = gradients(numbers, recipe)
    # The engine minimises the loss; people see the objective, which is maximised.
    arrays = {
        "in_loss": terms.mask,
        "contribution": -terms.contribution,
        "push": push,
        "pull": pull,
    }
    if "teacher" in numbers.arrays:
        gap = numbers.arrays["teacher"] - numbers.arrays["old"]
        arrays["teacher_part"] = recipe.teacher_weight * terms.mask * gap
    defaults, shape = TokenLoss._field_defaults, numbers.arrays["mask"].shape
    columns = {name: getattr(terms, name, None) for name in TokenLoss._fields} | arrays
    values = {
        name: np.full(shape, defaults.get(name)) if array is None else np.array(array)
        for name, array in columns.items()
    }
    values["side"] = np.array(SIDES)[values["side"].astype(int)]
    losses = []
    for index, row in enumerate(rows):
        lists = [column[index, : len(row.ids)].tolist() for column in values.values()]
        losses.append(tuple(map(TokenLoss._make, zip(*lists, strict=True))))
    return tuple(losses)


def latest(passes: Sequence[T]) -> T | None:
    """The numbers of the last pass; None if there are none."""
    return passes[-1] if passes else None


def loss_mask(row: RecordedTokens) -> tuple[int, ...]:
    """1 for each token of a rollout that is in the loss."""
    return row.mask or (1,) * len(row.ids)


def not_recorded(rows: Sequence[RecordedTokens], recipe: Recipe) -> str:
    """What the loss read and the run did not record, as a sentence; empty if nothing."""
    unknown = "its share of the loss is not known: this run"
    if not all(row.updates for row in rows):
        if recipe.stop != "never" and recipe.minibatches > 1:
            return "no push: the stop rule ended the step before the minibatch of these answers"
        return f"{unknown} was recorded before its updates were"
    reads = {
        "teacher": recipe.teacher_weight > 0,
        "reference": recipe.anchor_in_loss,
        "sampler": recipe.reads_sampler,
    }
    missing = [
        f"the {name}'s log-probabilities"
        for name, is_read in reads.items()
        if is_read and not all(getattr(row, name) for row in rows)
    ]
    return f"{unknown} did not record {' or '.join(missing)}" if missing else ""
