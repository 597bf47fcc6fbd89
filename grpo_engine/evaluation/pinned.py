"""Pinned prompts: the same held-out problems with the same noise, sampled throughout a run.

They are sampled before the step's update and scored again after it, without a gradient.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count

from grpo_engine.events import Event, TokenNumbers, TokensScored
from grpo_engine.rollouts.types import Rollout
from grpo_engine.run.session import Run
from grpo_engine.tasks.base import Example
from grpo_engine.training.advantages import pinned_advantages
from grpo_engine.training.logprobs import ScoredTokens, score_tokens
from grpo_engine.training.report import groups_scored
from grpo_engine.training.samples import SampledGroup, row_values
from grpo_engine.training.sampling import SampleRequest, sample_and_score


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedGroups:
    """Rollouts of the pinned prompts in one step, with log-probabilities from before the update."""

    groups: list[SampledGroup]
    old: ScoredTokens
    reference: ScoredTokens | None

    @property
    def rollouts(self) -> list[Rollout]:
        return [rollout for group in self.groups for rollout in group.rollouts]


def take_pins(run: Run) -> None:
    """Pin the prompts requested since the last call; unknown keys are ignored."""
    for key in run.ranks.broadcast(run.control.pop_pins()):
        held_out = [e for part in run.parts for e in part.held_out(len(part.task.held_out))]
        known = {example.key: example for example in held_out} | run.drawn_examples
        if key in known and all(pin.key != key for pin in run.progress.pins):
            run.progress.pins.append(known[key])


def first_pins(run: Run) -> list[Example]:
    """The held-out problems that every run of this task pins."""
    return run.parts[0].held_out(run.config.evaluation.pinned)


def sample_pinned(run: Run, step: int) -> Generator[Event, None, PinnedGroups | None]:
    """Sample and score the pinned prompts at step 0, every N steps, and in the last step.

    Return None in other steps, and if no prompt is pinned.
    """
    if step % run.config.evaluation.pinned_every and step != run.config.steps:
        return None
    take_pins(run)
    if not run.progress.pins:
        return None
    groups = yield from sample_and_score(run, step, SampleRequest(
        examples=run.progress.pins, sampling=run.sampling,
        rows=run.config.rollout.group_size, origin="pinned",
    ))  # fmt: skip
    advantages_B = pinned_advantages(groups, run.recipe)
    yield from groups_scored(run, step, groups, advantages_B, origin="pinned")
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    with run.clock.phase("evaluate"):
        old = yield from score_tokens(run, step, rollouts, entropy=True)
        reference = None
        if run.has_reference:
            reference = yield from score_tokens(run, step, rollouts, under=run.policy.as_reference)
    return PinnedGroups(groups=groups, old=old, reference=reference)


def score_pinned_after_update(
    run: Run, step: int, pinned: PinnedGroups | None, *, updated: bool
) -> Iterator[Event]:
    """Score the rollouts again with the updated policy and yield their token numbers."""
    if pinned is None:
        return
    after: ScoredTokens | None = None
    if updated:
        with run.clock.phase("evaluate"):
            after = yield from score_tokens(run, step, pinned.rollouts)
    rows = count()
    for group in pinned.groups:
        numbers = []
        for rollout, row in zip(group.rollouts, rows, strict=False):
            read = partial(row_values, row=row, length=len(rollout.ids))
            numbers.append(
                TokenNumbers(
                    index=rollout.index,
                    old=read(pinned.old.logprobs),
                    reference=read(pinned.reference.logprobs if pinned.reference else None),
                    after=read(after.logprobs if after else None),
                    entropy=read(pinned.old.entropy),
                )
            )
        yield TokensScored(step=step, group=group.index, origin="pinned", numbers=tuple(numbers))
