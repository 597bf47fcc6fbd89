"""Tries the functions that users wrote for a recipe's choices, before the first step.

A function must give usable numbers with a gradient, and the same for an answer alone as beside
others: micro-batches and ranks cut an update anywhere.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx

from grpo_engine.config.recipes import Recipe
from grpo_engine.config.settings import RunConfig
from grpo_engine.distributed.ranks import Ranks
from grpo_engine.errors import ConfigError, MathsError
from grpo_engine.maths.advantage import advantages
from grpo_engine.maths.loss import policy_loss
from grpo_engine.maths.weight import totals_of
from grpo_engine.rewards.scorer import columns_of
from grpo_engine.run.user_objects import UserObjects
from grpo_engine.sandbox.report import describe
from grpo_engine.setup.parts import LoadedTask

LENGTHS = (5, 3, 1, 4, 2)  # of the answers, again and again
TERMS = {"trust": "objective", "anchor": "anchor", "weight": "weight"}
READS_OTHERS = (
    "gives an answer other numbers alone than beside others, but micro-batches and ranks cut an "
    "update: read only the answer's row; rows and tokens count the update's answers and tokens"
)
NO_GRADIENT = (
    "has gradient 0 in the log-probabilities, so that nothing would be learned: compute it from "
    "log_ratio_BT, ratio_BT or logprobs_BT with mlx.core"
)


def load_functions(
    config: RunConfig, objects: UserObjects, tasks: Sequence[LoadedTask], ranks: Ranks
) -> UserObjects:
    """The objects with the recipe's functions, loaded once and tried: what is recorded is run."""
    functions = objects.recipe(config.algorithm).functions.values()
    objects = replace(objects, functions={str(function): function for function in functions})
    check_functions(objects.recipe(config.algorithm), tasks)
    hashes = ranks.gather([function.source["sha256"] for function in functions])
    if any(other != hashes[0] for other in hashes):
        raise ConfigError(
            f"{' and '.join(map(str, functions))}: the file is not the same on every rank; copy it "
            "to all machines"
        )
    return objects


def check_functions(recipe: Recipe, tasks: Sequence[LoadedTask]) -> None:
    """Raise MathsError with what is wrong with a function, and its place."""
    for loaded in tasks if recipe.functions else ():
        trial = _Trial(recipe, loaded)
        for role in TERMS:
            if role in recipe.functions and not (role == "anchor" and recipe.pays_in_reward):
                trial.check(role)


class _Trial:
    """Two groups of answers of a few tokens with random numbers; one has equal rewards."""

    def __init__(self, recipe: Recipe, loaded: LoadedTask) -> None:
        config, task = loaded.config, loaded.task
        answers = config.rollout.group_size
        rows = range(2 * answers)
        lengths = mx.array([LENGTHS[row % len(LENGTHS)] for row in rows])
        mask = mx.arange(int(lengths.max())) < lengths[:, None]
        functions = len(config.rewards.functions or task.default_rewards) or 1
        keys = mx.random.split(mx.random.key(0))
        rewards = mx.random.uniform(shape=(len(rows), functions), key=keys[0])
        new, old, ref, sampler, entropy = mx.random.uniform(-2, -0.1, (5, *mask.shape), key=keys[1])
        groups = mx.arange(len(rows)) // answers
        self.recipe, self.max_length = recipe, config.rollout.max_new_tokens
        self.columns = columns_of([task.train[row // answers % len(task.train)] for row in rows])
        computed = advantages(
            mx.where(groups[:, None] == 0, rewards, 0.0),
            groups,
            recipe,
            mask=mask,
            old=old,
            ref=ref,
            values=new,
            steps=[[(0, float(row))] for row in rows],
            extra={
                "sampler_logprobs_BT": sampler,
                "entropy_BT": -entropy,
                "step": 1,
                **self.columns,
            },
        )
        self._require_finite("signal", computed.values)
        if recipe.pays_in_reward:
            self._require_finite("anchor", computed.penalty)
        self.arrays = {
            "new": new,
            "old": old,
            "ref": ref,
            "sampler": sampler,
            "entropy": -entropy,
            "mask": mask,
            "group_ids": groups,
            "advantages": computed.values,
            "token_ids": mx.zeros(mask.shape, mx.int32),
        }

    def check(self, role: str) -> None:
        """Try the numbers that a function gives tokens."""
        values = self._term(self.arrays["new"], role)
        self._require_finite(role, values)
        if role != "weight":  # which is a constant
            self._check_gradient(role)
        for row, length in zip(range(len(values)), LENGTHS, strict=False):
            alone = self._term(self.arrays["new"], role, slice(row, row + 1), length)
            if not mx.allclose(alone[0], values[row, :length], 1e-4, 1e-6):
                raise self._refused(role, READS_OTHERS)

    def _term(
        self, new: mx.array, role: str, rows: slice = slice(None), width: int | None = None
    ) -> mx.array:
        """What a function gives the first tokens of some answers."""
        arrays: dict[str, Any] = {
            name: values[rows, :width] if values.ndim == 2 else values[rows]
            for name, values in {**self.arrays, "new": new}.items()
        }
        loss = policy_loss(
            **arrays,
            recipe=self.recipe,
            totals=totals_of(self.arrays["mask"]),
            max_length=self.max_length,
            extra={"step": 1, **{name: column[rows] for name, column in self.columns.items()}},
        )
        values: mx.array = getattr(loss.terms, TERMS[role])
        return values

    def _check_gradient(self, role: str) -> None:
        try:
            gradient: mx.array = mx.grad(lambda new: self._term(new, role).sum())(
                self.arrays["new"]
            )
            mx.eval(gradient)
        except (RuntimeError, ValueError) as error:
            problem = f"has no gradient: {describe(error).message}"
            raise self._refused(role, problem) from error
        self._require_finite(role, gradient, "a gradient of ")
        if not gradient.any():
            raise self._refused(role, NO_GRADIENT)

    def _require_finite(self, role: str, values: mx.array, what: str = "") -> None:
        if role in self.recipe.functions and not mx.isfinite(values).all():
            bad = "NaN" if mx.isnan(values).any() else "infinity"
            raise self._refused(
                role, f"returned {what}{bad} for a small batch that has a group of equal rewards"
            )

    def _refused(self, role: str, problem: str) -> MathsError:
        function = self.recipe.functions[role]
        return MathsError(f"{role} {function} {problem}{function.at}", f"algorithm.{role}")
