"""Sampling and scoring of a step's groups, and the refills that replace groups without variance."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from grpo_engine.events import (
    Event,
    Origin,
    Phase,
    PhaseStarted,
    PromptsStarted,
    PromptStarted,
)
from grpo_engine.rewards.scoring import Scores, with_overlong
from grpo_engine.rollouts.decode import sample_groups
from grpo_engine.rollouts.prompts import RenderedPrompt, prefill_of
from grpo_engine.rollouts.types import PromptRows, Rollout, Sampling
from grpo_engine.run.requests import listen, relay
from grpo_engine.run.session import Run
from grpo_engine.tasks.base import Example, draw
from grpo_engine.train.gather import all_alerts, all_answers
from grpo_engine.train.samples import SampledGroup

FIXED_STEP = 0  # the step that pinned prompts and evaluations draw their noise from, every time


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a step sampled: the groups to train on, those that were replaced, and what it took."""

    groups: list[SampledGroup]
    replaced: list[SampledGroup]
    drawn: int
    rounds: int
    is_short: bool  # refills ran out before every group had variance


def collect(run: Run, step: int) -> Generator[Event, None, Collected]:
    """Sample and score the step's groups; replace those without variance where asked to."""
    wanted, rounds = run.config.rollout.prompts, run.recipe.refill_rounds
    kept: list[SampledGroup] = []
    replaced: list[SampledGroup] = []
    drawn = turn = 0
    while True:
        missing = wanted - len(kept)
        examples = draw(run.task, run.config.seed, run.progress.cursor + drawn, missing)
        run.seen |= {example.key: example for example in examples}
        fresh = yield from sample_and_score(
            run, step, examples, run.sampling, rows=run.config.rollout.group_size,
            first=drawn, attempt=turn, seed_step=step,
        )  # fmt: skip
        drawn += missing
        if rounds == 0:
            kept = fresh
            break
        for group in fresh:
            group.replaced = not group.scores.differ
            (replaced if group.replaced else kept).append(group)
        if len(kept) == wanted or turn == rounds:
            break
        turn += 1
    return Collected(
        groups=kept, replaced=replaced, drawn=drawn, rounds=turn, is_short=len(kept) < wanted
    )


def sample_and_score(
    run: Run,
    step: int,
    examples: Sequence[Example],
    sampling: Sampling,
    *,
    rows: int,
    first: int = 0,
    attempt: int = 0,
    seed_step: int = FIXED_STEP,
    origin: Origin = "train",
) -> Generator[Event, None, list[SampledGroup]]:
    """Sample `rows` answers to each example and score them; groups are numbered from `first`."""
    prompts = [run.render(example) for example in examples]
    asked = [
        PromptRows(key=example.key, group=first + place, ids=prompt.ids, rows=rows, attempt=attempt)
        for place, (example, prompt) in enumerate(zip(examples, prompts, strict=True))
    ]
    mine = run.ranks.mine(asked)
    with run.clock.phase("generate" if origin == "train" else "evaluate"):
        yield from _announced(step, asked, examples, prompts, origin)
        rollouts: list[Rollout] = yield from relay(
            run,
            step,
            sample_groups(
                run.policy, [row for _, row in mine], sampling, seed=run.config.seed,
                step=seed_step, control=run.control,
                weights=run.lagged if origin == "train" else None,
            ),
        )  # fmt: skip
    yield from listen(run, step)
    if origin == "train":
        yield PhaseStarted(step=step, phase="score", total=len(rollouts))
    with run.clock.phase("score" if origin == "train" else "evaluate"):
        of_rollouts = [rollout.group - first for rollout in rollouts]
        scores = _scored(
            run, step, [examples[place] for place in of_rollouts],
            [prompts[place] for place in of_rollouts], rollouts, sampling, origin,
        )  # fmt: skip
        own = [
            (place, (rollouts[n * rows : (n + 1) * rows], scores.part(n * rows, (n + 1) * rows)))
            for n, (place, _) in enumerate(mine)
            if scores is not None
        ]
        answers = all_answers(run.ranks, own, len(asked))
    yield from all_alerts(answers)
    yield from listen(run, step)
    return [
        _group(row, example, prompt, found, scored)
        for row, prompt, example, (found, scored) in zip(
            asked, prompts, examples, answers, strict=True
        )
    ]


def _group(
    row: PromptRows, example: Example, prompt: RenderedPrompt, found: list[Rollout], scored: Scores
) -> SampledGroup:
    """A prompt with its answers and what they earned."""
    return SampledGroup(
        index=row.group, example=example, prompt_ids=prompt.ids, prompt_text=prompt.text,
        prefill=prefill_of(prompt.prompt), attempt=row.attempt, rollouts=found, scores=scored,
    )  # fmt: skip


def _announced(
    step: int, asked: Sequence[PromptRows], examples: Sequence[Example],
    prompts: Sequence[RenderedPrompt], origin: Origin,
) -> Iterator[Event]:  # fmt: skip
    """Say which prompts are about to be answered, and why."""
    phase: Phase = "generate" if origin == "train" else "evaluate"
    attempt = asked[0].attempt if asked else 0
    detail = f"refill {attempt}" if attempt else ("pinned prompts" if origin == "pinned" else "")
    yield PhaseStarted(step=step, phase=phase, total=sum(row.rows for row in asked), detail=detail)
    yield PromptsStarted(
        step=step,
        prompts=tuple(
            PromptStarted(
                group=row.group, origin=origin, prompt_text=prompt.text,
                target=example.target, rows=row.rows,
            )
            for row, prompt, example in zip(asked, prompts, examples, strict=True)
        ),
    )  # fmt: skip


def _scored(
    run: Run, step: int, examples: Sequence[Example], prompts: Sequence[RenderedPrompt],
    rollouts: Sequence[Rollout], sampling: Sampling, origin: Origin,
) -> Scores | None:  # fmt: skip
    """Scores of this rank's answers, one example and prompt each; None where it has none."""
    if not rollouts:
        return None
    scores = run.scorer.score(examples, prompts, rollouts, step=step)
    if origin != "train":
        return scores
    lengths = [len(rollout.ids) for rollout in rollouts]
    return with_overlong(scores, lengths, sampling.max_new_tokens, run.recipe.overlong_buffer)
