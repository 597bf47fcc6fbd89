"""Tries the functions that users wrote for a recipe's choices, before the first step.

A function must give usable numbers with a gradient, and the same for an answer alone as beside
others: micro-batches and ranks cut an update anywhere.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import mlx.core as mx

from grpo_engine.config.recipes import Recipe
from grpo_engine.config.settings import RunConfig
from grpo_engine.distributed.ranks import Ranks
from grpo_engine.errors import ConfigError
from grpo_engine.frozen import frozen
from grpo_engine.maths.advantage import Advantages, advantages
from grpo_engine.maths.custom import refusal
from grpo_engine.maths.loss import policy_loss
from grpo_engine.maths.weight import totals_of
from grpo_engine.platform.faults import raise_fault
from grpo_engine.rewards.scorer import columns_of
from grpo_engine.run.user_objects import UserObjects
from grpo_engine.sandbox.report import describe
from grpo_engine.setup.parts import LoadedTask

LENGTHS = (5, 3, 1, 4, 2)  # tokens of the completions, repeated
PART, WIDTH = slice(1, 3), 3  # completions that are tried alone, and the longest's tokens
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
) -> Recipe:
    """The recipe with its functions, loaded once and tried: what is recorded is run."""
    recipe = objects.recipe(config.algorithm)
    check_functions(recipe, tasks)
    hashes = ranks.gather([f.source["sha256"] for f in recipe.functions.values()])
    if any(other != hashes[0] for other in hashes):
        raise ConfigError(
            f"{' and '.join(recipe.functions.values())}: the file is not the same on every rank; "
            "copy it to all machines"
        )
    return recipe


def check_functions(recipe: Recipe, tasks: Sequence[LoadedTask]) -> None:
    """Raise MathsError with what is wrong with a function, and its place."""
    for loaded in tasks if recipe.functions else ():
        for role, problem in _problems(recipe, loaded):
            if problem:
                raise refusal(role, recipe.functions[role], problem)


@frozen
class Trial:
    """Two groups of a few random tokens, of which one has equal rewards, and their advantages."""

    recipe: Recipe
    max_length: int
    group_ids_B: mx.array
    mask_BT: mx.array
    columns: Mapping[str, Sequence[Any]]
    logprobs_BT: tuple[mx.array, ...]  # new, old, of the reference and of the sampler
    computed: Advantages

    def term(
        self, role: str, new_BT: mx.array, rows: slice = slice(None), length: int | None = None
    ) -> Any:
        """What a choice gives the first tokens of some answers."""
        part = (rows, slice(length))
        _, old_BT, ref_BT, sampler_BT = self.logprobs_BT
        values = self.computed.values
        advantages_BT = mx.broadcast_to(values.reshape(len(values), -1), new_BT.shape)
        loss = policy_loss(
            new_BT[part],
            old_BT[part],
            ref_BT[part],
            advantages_BT[part],
            self.mask_BT[part],
            self.recipe,
            sampler=sampler_BT[part],
            entropy=-sampler_BT[part],
            token_ids=self.mask_BT[part],
            group_ids=self.group_ids_B[rows],
            totals=totals_of(self.mask_BT),
            max_length=self.max_length,
            extra={"step": 1, **{name: column[rows] for name, column in self.columns.items()}},
        )
        return getattr(loss.terms, TERMS[role])


def _trial(recipe: Recipe, loaded: LoadedTask) -> Trial:
    config, task, size = loaded.config, loaded.task, loaded.config.rollout.group_size
    row_B = mx.arange(2 * size)
    group_ids_B = row_B // size
    mask_BT = mx.arange(max(LENGTHS)) < mx.array(LENGTHS)[row_B % len(LENGTHS)][:, None]
    names = config.rewards.functions or task.default_rewards
    rewards_BF = mx.random.uniform(shape=(2 * size, len(names) or 1), key=mx.random.key(0))
    logprobs_BT = tuple(mx.random.uniform(-2, -0.1, (4, *mask_BT.shape), key=mx.random.key(1)))
    new_BT, old_BT, ref_BT, sampler_BT = logprobs_BT
    columns = columns_of([task.train[n // size % len(task.train)] for n in range(2 * size)])
    computed = advantages(
        mx.where(group_ids_B[:, None] == 0, rewards_BF, 0.0),
        group_ids_B,
        recipe,
        mask=mask_BT,
        old=old_BT,
        ref=ref_BT,
        teacher=ref_BT,
        values=new_BT,
        steps=[[(0, float(n))] for n in range(2 * size)],
        extra={"sampler_logprobs_BT": sampler_BT, "entropy_BT": -sampler_BT, "step": 1, **columns},
    )
    return Trial(
        recipe=recipe,
        max_length=config.rollout.max_new_tokens,
        group_ids_B=group_ids_B,
        mask_BT=mask_BT,
        columns=columns,
        logprobs_BT=logprobs_BT,
        computed=computed,
    )


def _problems(recipe: Recipe, loaded: LoadedTask) -> Iterator[tuple[str, str]]:
    """Choices, and what is wrong with their functions."""
    trial = _trial(recipe, loaded)
    new_BT = trial.logprobs_BT[0]
    yield "anchor", _not_finite(trial.computed.penalty)
    yield "signal", _not_finite(trial.computed.values)
    for role in filter(recipe.functions.__contains__, TERMS):
        if role == "anchor" and recipe.anchor_in_reward:
            continue
        compute = partial(trial.term, role)
        values, alone = compute(new_BT), compute(new_BT, PART, WIDTH)
        is_same = mx.allclose(alone, values[PART, :WIDTH], 1e-4, 1e-6)
        yield (
            role,
            (
                _not_finite(values)
                or (role != "weight" and _gradient_problem(compute, new_BT))  # weights are constant
                or ("" if is_same else READS_OTHERS)
            ),
        )


def _not_finite(values: mx.array, noun: str = "") -> str:
    if mx.isfinite(values).all():
        return ""
    return f"returned {noun}NaN or infinity for a small batch that has a group of equal rewards"


def _gradient_problem(value: Callable[[mx.array], mx.array], new: mx.array) -> str:
    try:
        gradient: mx.array = mx.grad(lambda new: value(new).sum())(new)
        problem = _not_finite(gradient, "a gradient of ")
    except (RuntimeError, ValueError) as error:
        raise_fault(error)
        return f"has no gradient: {describe(error).message}"
    return problem or ("" if gradient.any() else NO_GRADIENT)
