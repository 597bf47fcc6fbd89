"""Tries the functions that users wrote for a recipe's choices, before the first step.

A function must give usable numbers with a gradient, and the same for an answer alone as beside
others: micro-batches and ranks cut an update anywhere.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import mlx.core as mx

from grpo_engine.config.recipes import Recipe
from grpo_engine.errors import MathsError
from grpo_engine.maths.advantage import advantages
from grpo_engine.maths.loss import policy_loss
from grpo_engine.maths.weight import totals_of
from grpo_engine.rewards.scorer import columns_of
from grpo_engine.sandbox.report import describe
from grpo_engine.setup.parts import LoadedTask

PROMPTS, LENGTHS = 2, (5, 3, 1, 4, 2)  # of the answers, again and again
TERMS = {"trust": "objective", "anchor": "anchor", "weight": "weight"}


def check_functions(recipe: Recipe, tasks: Sequence[LoadedTask]) -> None:
    """Raise MathsError with what is wrong with a function, and its place."""
    for loaded in tasks if recipe.functions else ():
        trial = _Trial(recipe, loaded)
        for role in TERMS:
            if role in recipe.functions and not (role == "anchor" and recipe.pays_in_reward):
                trial.check(role)


class _Trial:
    """Answers of a few tokens with random numbers; the second group has equal rewards."""

    def __init__(self, recipe: Recipe, loaded: LoadedTask) -> None:
        self.recipe, config, task = recipe, loaded.config, loaded.task
        answers = config.rollout.group_size
        self.rows = range(PROMPTS * answers)
        self.lengths = [LENGTHS[row % len(LENGTHS)] for row in self.rows]
        self.max_length = config.rollout.max_new_tokens
        examples = [task.train[row // answers % len(task.train)] for row in self.rows]
        self.columns = columns_of(examples)
        mask = mx.arange(max(self.lengths)) < mx.array(self.lengths)[:, None]
        names = ("new", "old", "ref", "sampler", "entropy")
        key, *keys = mx.random.split(mx.random.key(0), 1 + len(names))
        self.arrays = {
            name: mx.random.uniform(0.1, 2, mask.shape, key=own) * (1 if name == "entropy" else -1)
            for name, own in zip(names, keys, strict=True)
        } | {"mask": mask, "group_ids": mx.array([row // answers for row in self.rows])}
        functions = len(config.rewards.functions or task.default_rewards) or 1
        rewards = mx.random.uniform(shape=(len(self.rows), functions), key=key)
        self._add_advantages(mx.where(self.arrays["group_ids"][:, None] == 0, rewards, 0.0))

    def _add_advantages(self, rewards: mx.array) -> None:
        recipe, arrays = self.recipe, self.arrays
        computed = advantages(
            rewards, arrays["group_ids"], recipe, mask=arrays["mask"], old=arrays["old"],
            ref=arrays["ref"], values=arrays["new"], steps=[[(0, float(row))] for row in self.rows],
            extra={
                "sampler_logprobs_BT": arrays["sampler"], "entropy_BT": arrays["entropy"],
                "step": 1, **self.columns,
            },
        )  # fmt: skip
        self._require_finite("signal", computed.values)
        if recipe.pays_in_reward:
            self._require_finite("anchor", computed.penalty)
        arrays["advantages"] = computed.values

    def check(self, role: str) -> None:
        """Try the numbers that a function gives tokens."""
        rows, new = self.rows, self.arrays["new"]
        values = self._term(role, rows, max(self.lengths), new)
        self._require_finite(role, values)
        if role != "weight":  # which is a constant
            self._check_gradient(role)
        for row, length in zip(rows, LENGTHS, strict=False):
            alone = self._term(role, range(row, row + 1), length, new)
            if not mx.allclose(alone[0], values[row, :length], 1e-4, 1e-6):
                raise self._refused(role, (
                    "gives an answer other numbers alone than beside others, but micro-batches and "
                    "ranks cut an update: read only the answer's row; rows and tokens count the "
                    "update's answers and tokens"
                ))  # fmt: skip

    def _term(self, role: str, rows: range, width: int, new: mx.array) -> mx.array:
        """What a function gives the first tokens of some answers."""
        arrays: dict[str, Any] = {
            name: values[rows.start : rows.stop, :width] if values.ndim == 2
            else values[rows.start : rows.stop]
            for name, values in {**self.arrays, "new": new}.items()
        }  # fmt: skip
        columns = {name: values[rows.start : rows.stop] for name, values in self.columns.items()}
        loss = policy_loss(
            **arrays, recipe=self.recipe, totals=totals_of(self.arrays["mask"]),
            token_ids=mx.zeros(arrays["mask"].shape, mx.int32), max_length=self.max_length,
            extra={"step": 1, **columns},
        )  # fmt: skip
        values: mx.array = getattr(loss.terms, TERMS[role])
        return values

    def _check_gradient(self, role: str) -> None:
        term = partial(self._term, role, self.rows, max(self.lengths))
        try:
            gradient: mx.array = mx.grad(lambda new: term(new).sum())(self.arrays["new"])
            mx.eval(gradient)
        except (RuntimeError, ValueError) as error:
            problem = f"has no gradient: {describe(error).message}"
            raise self._refused(role, problem) from error
        self._require_finite(role, gradient, "a gradient of ")
        if not gradient.any():
            raise self._refused(role, (
                "has gradient 0 in the log-probabilities, so that nothing would be learned: "
                "compute it from log_ratio_BT, ratio_BT or logprobs_BT with mlx.core"
            ))  # fmt: skip

    def _require_finite(self, role: str, values: mx.array, what: str = "") -> None:
        if role in self.recipe.functions and not mx.isfinite(values).all():
            bad = "NaN" if mx.isnan(values).any() else "infinity"
            raise self._refused(
                role, f"returned {what}{bad} for a small batch that has a group of equal rewards"
            )

    def _refused(self, role: str, problem: str) -> MathsError:
        function = self.recipe.functions[role]
        return MathsError(f"{role} {function} {problem}{function.at}", f"algorithm.{role}")
