"""Pinned prompts: the same held-out problems with the same noise, sampled throughout a run.

They are sampled before the step's update and scored again after it, without a gradient.
"""

from collections.abc import Generator, Iterator
from dataclasses import replace
from itertools import islice

import mlx.core as mx

from grpo_engine.events import Event, TokenNumbers, TokensScored
from grpo_engine.frozen import frozen
from grpo_engine.rollouts.types import Trajectory
from grpo_engine.run.session import EngineRun
from grpo_engine.tasks.base import Example
from grpo_engine.training.advantages import pinned_advantages
from grpo_engine.training.logprobs import score_tokens
from grpo_engine.training.report import groups_scored
from grpo_engine.training.samples import OldScores, SampledGroup, row_values
from grpo_engine.training.sampling import SampleRequest, sample_and_score


@frozen
class PinnedGroups:
    """Rollouts of the pinned prompts in one step, with what they scored before the update."""

    groups: list[SampledGroup]
    rollouts: list[Trajectory]
    old: OldScores


def pin_requested(run: EngineRun) -> None:
    """Pin the prompts requested since the last call; unknown keys are ignored."""
    for key in run.ranks.broadcast(run.control.pop_pins()):
        held_out = [e for part in run.parts for e in part.held_out(len(part.task.held_out))]
        examples = {example.key: example for example in held_out} | run.trained_examples
        if key in examples and all(pin.key != key for pin in run.progress.pins):
            run.progress.pins.append(examples[key])


def first_pins(run: EngineRun) -> list[Example]:
    """The held-out problems that every run of this task pins."""
    return run.parts[0].held_out(run.config.evaluation.pinned)


def sample_pinned(run: EngineRun, step: int) -> Generator[Event, None, PinnedGroups | None]:
    """Sample and score the pinned prompts at step 0, every N steps, and in the last step.

    Return None in other steps, and if no prompt is pinned.
    """
    if step % run.config.evaluation.pinned_every and step != run.config.steps:
        return None
    pin_requested(run)
    if not run.progress.pins:
        return None
    groups = yield from sample_and_score(
        run,
        step,
        SampleRequest(
            examples=run.progress.pins,
            sampling=run.sampling,
            rows=run.config.training.group_size,
            origin="pinned",
        ),
    )
    advantages_B = pinned_advantages(groups, run.recipe)
    yield from groups_scored(run, step, groups, advantages_B, origin="pinned")
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    with run.clock.phase("evaluate"):
        scored = yield from score_tokens(run, step, rollouts, entropy=True)
        old = OldScores(logprobs_BT=scored.logprobs, entropy_BT=scored.entropy)
        if run.has_reference:
            scored = yield from score_tokens(run, step, rollouts, under=run.policy.as_reference)
            old = replace(old, reference_logprobs_BT=scored.logprobs)
    return PinnedGroups(groups=groups, rollouts=rollouts, old=old)


def score_pinned_after_update(
    run: EngineRun, step: int, pinned: PinnedGroups | None, *, updated: bool
) -> Iterator[Event]:
    """Score the rollouts again with the updated policy and yield their token numbers."""
    if pinned is None:
        return
    after_BT: mx.array | None = None
    if updated:
        with run.clock.phase("evaluate"):
            scored = yield from score_tokens(run, step, pinned.rollouts)
        after_BT = scored.logprobs
    numbers = iter(
        [
            TokenNumbers(
                index=rollout.index,
                old=row_values(pinned.old.logprobs_BT, row, len(rollout.ids)),
                reference=row_values(pinned.old.reference_logprobs_BT, row, len(rollout.ids)),
                after=row_values(after_BT, row, len(rollout.ids)),
                entropy=row_values(pinned.old.entropy_BT, row, len(rollout.ids)),
            )
            for row, rollout in enumerate(pinned.rollouts)
        ]
    )
    for group in pinned.groups:
        group_numbers = tuple(islice(numbers, len(group.rollouts)))
        yield TokensScored(step=step, group=group.index, origin="pinned", numbers=group_numbers)
