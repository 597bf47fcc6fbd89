"""Each token's part in the loss, computed by the engine's loss from recorded numbers.

MLX is imported in the thread that calls first; callers must use one thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from grpo_engine.config.recipes import Recipe
from grpo_engine.events import UpdateTotals
from grpo_engine.platform.device import require_mlx
from grpo_tui.experiments.values import TokenRow, TokenView

if TYPE_CHECKING:
    import mlx.core as mx

    from grpo_engine.maths.loss import Loss
    from grpo_engine.maths.weight import Totals

T = TypeVar("T")
Side = Literal["free", "low", "high", "ceiling"]
SIDES: tuple[Side, ...] = ("free", "high", "ceiling", "low")  # -1 is low
LAST_PASS = 1_000_000  # each answer's last one


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
        rest = self.advantage - self.teacher_part
        return rest if abs(rest) > 1e-6 * abs(self.teacher_part) else 0.0

    @property
    def gradient(self) -> float:
        """Which way the loss moves the token's log-probability, and how strongly."""
        return self.push + self.pull


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packed:
    """The recorded numbers of answers in one pass, as the loss takes them."""

    arrays: Mapping[str, "mx.array"]  # [B,T], by the loss's arguments; [B] for group_ids
    totals: "Totals"
    entropy_bonus: float
    minibatches: tuple[int, ...]  # of each answer
    step: int = 0


def packed(
    rows: Sequence[TokenRow], at: int, groups: Sequence[int] = (), *, step: int = 0
) -> Packed:
    """Pack answers in pass `at` (0-based), or in an answer's last one before it.

    Every row must have `updates`, and some row tokens. `groups` are the answers' groups, one if
    not given.
    """
    require_mlx()
    import mlx.core as mx

    optional: dict[str, list[Sequence[float]]] = {
        "ref": [row.reference for row in rows],
        "sampler": [row.sampled or row.sampler for row in rows],
        "entropy": [of_pass(row.entropies, at) or row.entropy for row in rows],
        "values": [of_pass(row.values, at) or () for row in rows],
        "old_values": [row.old_values for row in rows],
        "returns": [row.returns for row in rows],
        "teacher": [row.teacher for row in rows],
    }
    columns: dict[str, list[Sequence[float]]] = {
        "new": [of_pass(row.passes, at) or row.old for row in rows],
        "old": [row.old for row in rows],
        "token_ids": [row.ids for row in rows],
        "mask": [loss_mask(row) for row in rows],
        # one advantage for the answer counts for each of its tokens
        "advantages": [
            row.advantages * (len(row.ids) if len(row.advantages) == 1 else 1) for row in rows
        ],
        **{name: values for name, values in optional.items() if all(values)},
    }
    width = max(len(row.ids) for row in rows)
    arrays = {name: _padded(values, width) for name, values in columns.items()}
    arrays["group_ids"] = mx.array(list(groups) or [0] * len(rows), dtype=mx.int32)
    updates = [of_pass(row.updates, at) or UpdateTotals(rows=1, tokens=1) for row in rows]
    return Packed(
        arrays=arrays,
        totals=_totals(updates),
        entropy_bonus=updates[0].entropy_bonus,
        minibatches=tuple(update.minibatch for update in updates),
        step=step,
    )


def _padded(rows: Sequence[Sequence[float]], width: int) -> "mx.array":
    import mlx.core as mx
    import numpy as np

    values = np.zeros((len(rows), width), np.float32)
    for index, row in enumerate(rows):
        values[index, : len(row)] = row
    return mx.array(values)


def _totals(updates: Sequence[UpdateTotals]) -> "Totals":
    """The denominators of each answer, [B,1] each: a group may be spread over micro-batches."""
    import mlx.core as mx

    from grpo_engine.maths.weight import Totals

    def column(name: str) -> Any:
        values = [getattr(update, name) for update in updates]
        return None if None in values else mx.array(values, dtype=mx.float32)[:, None]

    return Totals(**{field.name: column(field.name) for field in fields(Totals)})


def loss_of(numbers: Packed, recipe: Recipe, *, max_length: int) -> "Loss":
    """The engine's loss of recorded numbers.

    What the recipe reads and the run did not record has no weight.
    """
    from grpo_engine.maths.loss import policy_loss

    arrays: dict[str, Any] = {"ref": None, **numbers.arrays}
    arrays.pop("teacher", None)  # which is in the advantages
    changes: dict[str, Any] = {"entropy_bonus": numbers.entropy_bonus}
    if "ref" not in numbers.arrays and recipe.anchor_place == "loss":
        changes["beta"] = 0.0
    if "sampler" not in numbers.arrays:
        changes |= {"importance_cap": 0.0, "off_policy_mask": 0.0}
    if "entropy" not in numbers.arrays:
        changes |= {"entropy_bonus": 0.0, "entropy_top_quantile": 1.0}
    recipe = replace(recipe, **changes)
    return policy_loss(
        **arrays,
        recipe=recipe,
        max_length=max_length,
        totals=numbers.totals,
        extra={"step": numbers.step},
    )


def gradients(numbers: Packed, recipe: Recipe, *, max_length: int) -> tuple["mx.array", "mx.array"]:
    """-dL/dlog π of each token without the KL penalty, and of the KL penalty alone. [B,T] each

    L is the loss of all answers: with a ratio or a KL of whole answers, a token's gradient has
    parts of its neighbours' losses too.
    """
    import mlx.core as mx

    def of(variant: Recipe) -> mx.array:
        def objective(new: mx.array) -> mx.array:
            moved = replace(numbers, arrays={**numbers.arrays, "new": new})
            return -loss_of(moved, variant, max_length=max_length).value

        gradient: mx.array = mx.grad(objective)(numbers.arrays["new"])
        return gradient

    total = of(recipe)
    if recipe.beta == 0 or recipe.anchor_place == "reward":
        return total, mx.zeros_like(total)
    # the loss is linear in beta; a beta of 0 would be another recipe, which may not exist
    pull = of(replace(recipe, beta=2 * recipe.beta)) - total
    return total - pull, pull


def token_losses(
    tokens: TokenView, recipe: Recipe, *, at: int, max_length: int, step: int = 0
) -> tuple[tuple[TokenLoss, ...], ...]:
    """Each token of a group in pass `at` (0-based), or in an answer's last one before it.

    Every row must have `updates`.
    """
    import numpy as np

    rows = tokens.rows
    if not any(row.ids for row in rows):
        return ((),) * len(rows)
    numbers = packed(rows, at, step=step)
    terms: Any = loss_of(numbers, recipe, max_length=max_length).terms
    push, pull = gradients(numbers, recipe, max_length=max_length)
    # the engine minimises the loss; people see the objective, which is maximised
    arrays = {
        "in_loss": terms.mask,
        "contribution": -terms.contribution,
        "push": push,
        "pull": pull,
    }
    if "teacher" in numbers.arrays:
        gap = numbers.arrays["teacher"] - numbers.arrays["old"]
        arrays["teacher_part"] = recipe.teacher_weight * terms.mask * gap
    columns = {name: getattr(terms, name, None) for name in TokenLoss._fields} | arrays
    values = {name: np.array(array) for name, array in columns.items() if array is not None}
    values["side"] = np.array(SIDES)[values["side"].astype(int)]
    defaults, losses = TokenLoss._field_defaults, []
    for index, count in enumerate(len(row.ids) for row in rows):
        lists = [
            values[name][index, :count].tolist() if name in values else [defaults[name]] * count
            for name in TokenLoss._fields
        ]
        losses.append(tuple(map(TokenLoss._make, zip(*lists, strict=True))))
    return tuple(losses)


def of_pass(passes: Sequence[T], at: int) -> T | None:
    """The numbers of pass `at`, or of the last one before it; None if there are none."""
    return passes[min(at, len(passes) - 1)] if passes else None


def loss_mask(row: TokenRow) -> tuple[int, ...]:
    """1 for each token of an answer that is in the loss."""
    return row.mask or (1,) * len(row.ids)


def not_recorded(tokens: TokenView, recipe: Recipe) -> str:
    """What the loss read and the run did not record, as a sentence; empty if nothing."""
    unknown = "its share of the loss is not known: this run"
    if not all(row.updates for row in tokens.rows):
        if recipe.stop != "never" and recipe.minibatches > 1:
            return "no push: the stop rule ended the step before the minibatch of these answers"
        return f"{unknown} was recorded before its updates were"
    reads = {
        "teacher": recipe.teacher_weight > 0,
        "reference": recipe.beta > 0 and recipe.anchor_place == "loss",
        "sampler": recipe.reads_sampler,
    }
    missing = [
        f"the {name}'s log-probabilities" for name, is_read in reads.items()
        if is_read and not all(getattr(row, name) for row in tokens.rows)
    ]  # fmt: skip
    return f"{unknown} did not record {' or '.join(missing)}" if missing else ""
