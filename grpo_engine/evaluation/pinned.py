"""Pinned prompts: the same held-out problems with the same noise, sampled through the whole run.

They are sampled before the step's update and scored again after it, outside the gradient.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

from grpo_engine.events import Event, TokenNumbers, TokensScored
from grpo_engine.run.session import Run
from grpo_engine.tasks.base import Example
from grpo_engine.train.advantages import judge_alone
from grpo_engine.train.logprobs import Numbers, score_tokens
from grpo_engine.train.report import group_scored
from grpo_engine.train.samples import SampledGroup
from grpo_engine.train.sampling import sample_and_score


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The pinned prompts' answers of one step, with the numbers from before the update."""

    groups: list[SampledGroup]
    old: Numbers
    reference: Numbers | None


def is_due(run: Run, step: int) -> bool:
    """Pinned prompts are sampled at step 0, every N steps, and in the last step."""
    return step % run.config.evaluation.pinned_every == 0 or step == run.config.steps


def take_pins(run: Run) -> None:
    """Pin what the user asked for since the last time; an unknown key is left alone."""
    for key in run.ranks.share(run.control.take_pins()):
        known = {example.key: example for example in run.task.held_out} | run.seen
        if key in known and all(pin.key != key for pin in run.progress.pins):
            run.progress.pins.append(known[key])


def first_pins(run: Run) -> list[Example]:
    """The held-out problems that every run of this task follows."""
    return list(run.task.held_out[: run.config.evaluation.pinned])


def sample_pinned(run: Run, step: int) -> Generator[Event, None, Followed | None]:
    """Sample and score the pinned prompts; None where there are none."""
    take_pins(run)
    if not run.progress.pins:
        return None
    sampling = run.sampling
    groups = yield from sample_and_score(
        run, step, run.progress.pins, sampling,
        rows=run.config.rollout.group_size, origin="pinned",
    )  # fmt: skip
    worth = judge_alone(groups, run.recipe)
    place = 0
    for group in groups:
        rows = len(group.rollouts)
        yield group_scored(
            step, group, "pinned", sampling, worth[place : place + rows], run.scorer.accuracy
        )
        place += rows
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    with run.clock.phase("evaluate"):
        old = yield from score_tokens(run, step, rollouts, entropy=True)
        reference = None
        if run.has_reference:
            reference = yield from score_tokens(run, step, rollouts, reference=True)
    return Followed(groups=groups, old=old, reference=reference)


def close_pinned(run: Run, step: int, followed: Followed, *, updated: bool) -> Iterator[Event]:
    """Score the answers again with the updated policy and give their token numbers."""
    rollouts = [rollout for group in followed.groups for rollout in group.rollouts]
    after: Numbers | None = None
    if updated:
        with run.clock.phase("evaluate"):
            after = yield from score_tokens(run, step, rollouts)
    row = 0
    for group in followed.groups:
        numbers = []
        for rollout in group.rollouts:
            length = len(rollout.ids)
            bare = TokenNumbers(index=rollout.index, old=_row(followed.old, row, length))
            numbers.append(
                replace(
                    bare,
                    reference=_row(followed.reference, row, length),
                    after=_row(after, row, length),
                    entropy=_entropy(followed.old, row, length),
                )
            )
            row += 1
        yield TokensScored(step=step, group=group.index, origin="pinned", numbers=tuple(numbers))


def _row(numbers: Numbers | None, row: int, length: int) -> tuple[float, ...]:
    if numbers is None:
        return ()
    return tuple(numbers.logprobs[row, :length].tolist())  # type: ignore[arg-type]


def _entropy(numbers: Numbers, row: int, length: int) -> tuple[float, ...]:
    if numbers.entropy is None:
        return ()
    return tuple(numbers.entropy[row, :length].tolist())  # type: ignore[arg-type]
