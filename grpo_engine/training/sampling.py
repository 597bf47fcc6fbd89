"""Samples and scores a step's groups; refills replace groups whose answers are equally good."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from grpo_engine.events import (
    Event,
    Origin,
    Phase,
    PhaseStarted,
    PromptsStarted,
    PromptStarted,
    rewards_differ,
)
from grpo_engine.policy.memory import free_cache
from grpo_engine.rewards.right import Right
from grpo_engine.rewards.scorer import Scorer
from grpo_engine.rewards.scoring import Scores, with_overlong, without_overlong
from grpo_engine.rollouts.decode import sample_groups
from grpo_engine.rollouts.noise import occurrences
from grpo_engine.rollouts.prompts import Opening, RenderedPrompt
from grpo_engine.rollouts.types import PromptRows, Rollout, Sampling
from grpo_engine.run.requests import answer_requests, relay
from grpo_engine.run.session import Run
from grpo_engine.tasks.base import Example
from grpo_engine.training.drawing import Drawing
from grpo_engine.training.gather import all_rollouts, distinct_alerts
from grpo_engine.training.samples import SampledGroup

FIXED_STEP = 0  # the step number for the noise of pinned prompts and evaluations


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGroups:
    """Groups sampled in a step: those to train on, and those that refills replaced."""

    groups: list[SampledGroup]
    replaced: list[SampledGroup]
    drawing: Drawing
    refills: int
    is_short: bool  # refills ran out before every group had variance

    @property
    def all(self) -> list[SampledGroup]:
        return [*self.groups, *self.replaced]


def sample_step(run: Run, step: int) -> Generator[Event, None, StepGroups]:
    """Sample and score the step's groups; replace those without variance if the recipe refills.

    The sampler's weights are updated every `sampler_sync_every` steps.
    """
    sync_every = run.recipe.sampler_sync_every
    if sync_every > 1 and (step - 1) % sync_every == 0:
        run.sampler_weights = run.policy.snapshot()
    wanted, most_refills = run.config.rollout.prompts, run.recipe.refill_rounds
    groups: list[SampledGroup] = []
    replaced: list[SampledGroup] = []
    drawing = Drawing(run)
    drawn = refills = 0
    while True:
        missing = wanted - len(groups)
        examples = drawing.take(missing)
        run.drawn_examples |= {example.key: example for example in examples}
        fresh = yield from sample_and_score(
            run, step, examples, run.sampling, rows=run.config.rollout.group_size,
            first=drawn, attempt=refills, seed_step=step,
        )  # fmt: skip
        drawn += missing
        if most_refills == 0:
            groups = fresh
            break
        for group in fresh:
            group.alike_in = alike_in(group.scores, run.recipe.refill_on, group.right.function)
            (replaced if group.alike_in else groups).append(group)
        if len(groups) == wanted or refills == most_refills:
            break
        refills += 1
    return StepGroups(
        groups=groups, replaced=replaced, drawing=drawing, refills=refills,
        is_short=len(groups) < wanted,
    )  # fmt: skip


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
    """Sample `rows` completions of each example and score them; group numbers start at `first`."""
    phase: Phase = "generate" if origin == "train" else "evaluate"
    with run.clock.phase(phase):
        prompts = _rendered(run, examples, rows, attempt, seed_step)
    prompt_rows = rows_to_sample(examples, prompts, rows=rows, first=first, attempt=attempt)
    assigned = run.ranks.assigned(prompt_rows)
    with run.clock.phase(phase):
        yield from _announced(step, prompt_rows, examples, prompts, origin)
        rollouts = yield from _sampled(
            run, step, [row for _, row in assigned], sampling, seed_step, origin
        )
    free_cache()
    yield from answer_requests(run, step)
    if origin == "train":
        yield PhaseStarted(step=step, phase="score", total=len(rollouts))
    with run.clock.phase("score" if origin == "train" else "evaluate"):
        local = [
            (place, rollouts[n * rows : (n + 1) * rows]) for n, (place, _) in enumerate(assigned)
        ]
        own_scores = _scored(run, step, local, examples, prompts, sampling, origin)
        scored = all_rollouts(
            run.ranks, [(place, (own, own_scores[place])) for place, own in local],
            len(prompt_rows),
        )  # fmt: skip
    yield from distinct_alerts(scored)
    yield from answer_requests(run, step)
    return [
        SampledGroup(
            index=row.group, example=example, prompt_ids=prompt.ids, prompt_text=prompt.text,
            prefill=row.prefill, attempt=row.attempt, rollouts=own, scores=scores_of_group,
            right=_right(run.part_of(example).scorer, origin),
            format=run.part_of(example).scorer.format,
        )
        for row, prompt, example, (own, scores_of_group) in zip(
            prompt_rows, prompts, examples, scored, strict=True
        )
    ]  # fmt: skip


def _right(scorer: Scorer, origin: Origin) -> Right:
    return scorer.held_out_right if origin == "eval" else scorer.right


def _sampled(
    run: Run, step: int, rows: Sequence[PromptRows], sampling: Sampling, seed_step: int,
    origin: Origin,
) -> Generator[Event, None, list[Rollout]]:  # fmt: skip
    """This rank's rollouts, with what their environments say at the end."""
    environments = run.environments
    dialogues = environments.dialogues() if environments is not None else None
    decoding = sample_groups(
        run.policy, rows, sampling, seed=run.config.seed, step=seed_step, control=run.control,
        weights=run.sampler_weights if origin == "train" else None, dialogues=dialogues,
    )  # fmt: skip
    rollouts: list[Rollout] = yield from relay(run, step, decoding)
    if environments is not None and dialogues is not None:
        with run.clock.phase("environment"):
            rollouts = environments.finish(rollouts)
        run.clock.add("environment", dialogues.waited)
    return rollouts


def _rendered(
    run: Run, examples: Sequence[Example], rows: int, attempt: int, seed_step: int
) -> list[RenderedPrompt]:
    """The prompts; an environment may add to them when its episodes begin."""
    environments = run.environments
    if environments is None:
        return [run.part_of(example).render(example) for example in examples]
    places = [place for place, _ in run.ranks.assigned(examples)]
    with run.clock.phase("environment"):
        openings = environments.begin(examples, places, rows=rows, step=seed_step, attempt=attempt)
    plain = [
        (place, [opening.text, [dict(m) for m in opening.messages]])
        for place, opening in zip(places, openings, strict=True)
    ]
    told = run.ranks.gather_by_place(plain, len(examples))
    return [
        environments.render(example, Opening(text=text, messages=tuple(messages)))
        for example, (text, messages) in zip(examples, told, strict=True)
    ]


def alike_in(scores: Scores, refill_on: str, accuracy: str) -> str:
    """The reward by which refills judge a group, if its answers do not differ in it; else empty.

    `refill_on` is a reward function, `total`, or `accuracy`: the function that says right or wrong.
    Without one, and for scores of steps, the length penalty is left out of the total.
    """
    name = refill_on
    if refill_on == "accuracy":
        name = accuracy if scores.steps is None else ""
    if name in scores.names:
        return "" if rewards_differ(scores.column(name)) else name
    whole = scores if refill_on == "total" else without_overlong(scores)
    return "" if whole.differ else "total"


def rows_to_sample(
    examples: Sequence[Example], prompts: Sequence[RenderedPrompt],
    *, rows: int, first: int = 0, attempt: int = 0,
) -> list[PromptRows]:  # fmt: skip
    """The rows of every prompt, before ranks share them; a repeated prompt gets its own noise."""
    again = occurrences([example.key for example in examples])
    return [
        PromptRows(
            key=example.key, group=first + place, ids=prompt.ids, rows=rows, attempt=attempt,
            occurrence=again[place], prefill=prompt.prefill,
        )
        for place, (example, prompt) in enumerate(zip(examples, prompts, strict=True))
    ]  # fmt: skip


def _announced(
    step: int, prompt_rows: Sequence[PromptRows], examples: Sequence[Example],
    prompts: Sequence[RenderedPrompt], origin: Origin,
) -> Iterator[Event]:  # fmt: skip
    """Events that announce the prompts to be sampled, and why."""
    phase: Phase = "generate" if origin == "train" else "evaluate"
    attempt = prompt_rows[0].attempt if prompt_rows else 0
    detail = f"refill {attempt}" if attempt else ("pinned prompts" if origin == "pinned" else "")
    total = sum(row.rows for row in prompt_rows)
    yield PhaseStarted(step=step, phase=phase, total=total, detail=detail)
    yield PromptsStarted(
        step=step,
        prompts=tuple(
            PromptStarted(
                group=row.group, origin=origin, prompt_text=prompt.text,
                target=example.target, rows=row.rows,
            )
            for row, prompt, example in zip(prompt_rows, prompts, examples, strict=True)
        ),
    )  # fmt: skip


def _scored(
    run: Run, step: int, local: Sequence[tuple[int, list[Rollout]]], examples: Sequence[Example],
    prompts: Sequence[RenderedPrompt], sampling: Sampling, origin: Origin,
) -> dict[int, Scores]:  # fmt: skip
    """The scores of this rank's rollouts by the place of their prompt, from their own tasks."""
    found: dict[int, Scores] = {}
    for part in run.parts:
        groups = [one for one in local if run.part_of(examples[one[0]]) is part]
        if not groups:
            continue
        places = [place for place, own in groups for _ in own]
        rollouts = [rollout for _, own in groups for rollout in own]
        scores = part.scorer.score(
            [examples[place] for place in places], [prompts[place] for place in places],
            rollouts, step=step, held_out=origin == "eval",
        )  # fmt: skip
        if origin == "train":
            lengths = [rollout.length for rollout in rollouts]
            scores = with_overlong(
                scores, lengths, sampling.max_new_tokens, run.recipe.overlong_buffer
            )
        end = 0
        for place, own in groups:
            start, end = end, end + len(own)
            found[place] = scores.part(start, end)
    return found
