"""Samples and scores a step's groups; refills replace groups whose answers are equally good."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from grpo_engine.events import (
    Event,
    Origin,
    Phase,
    PhaseStarted,
    PromptsStarted,
    PromptStarted,
    decode,
    encode,
    rewards_differ,
)
from grpo_engine.policy.memory import free_cache
from grpo_engine.rewards.scoring import Scores, with_overlong, without_overlong
from grpo_engine.rollouts.decode import sample_groups
from grpo_engine.rollouts.noise import occurrences
from grpo_engine.rollouts.prompts import Opening, RenderedPrompt
from grpo_engine.rollouts.types import PromptRows, Rollout, Sampling
from grpo_engine.run.requests import answer_requests
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
    recipe, prompts = run.recipe, run.config.rollout.prompts
    if recipe.sampler_sync_every > 1 and (step - 1) % recipe.sampler_sync_every == 0:
        run.sampler_weights = run.policy.snapshot()
    groups: list[SampledGroup] = []
    replaced: list[SampledGroup] = []
    drawing = Drawing(run)
    for refills in range(recipe.refill_rounds + 1):
        examples = drawing.take(prompts - len(groups))
        run.drawn_examples |= {example.key: example for example in examples}
        fresh = yield from sample_and_score(
            run, step, examples, run.sampling, rows=run.config.rollout.group_size,
            first=len(groups) + len(replaced), attempt=refills, seed_step=step,
        )  # fmt: skip
        for group in fresh:
            if recipe.refill_rounds:
                group.alike_in = alike_in(group.scores, recipe.refill_on, group.right.function)
            (replaced if group.alike_in else groups).append(group)
        if len(groups) == prompts:
            break
    return StepGroups(
        groups=groups, replaced=replaced, drawing=drawing, refills=refills,
        is_short=len(groups) < prompts,
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
    yield from answer_requests(run)
    if origin == "train":
        yield PhaseStarted(step=step, phase="score", total=len(rollouts))
    with run.clock.phase("score" if origin == "train" else "evaluate"):
        local = {
            index: rollouts[n * rows : (n + 1) * rows] for n, (index, _) in enumerate(assigned)
        }
        scores = _scored(run, step, local, examples, prompts, sampling, origin)
        scored = all_rollouts(
            run.ranks, [(index, (local[index], scores[index])) for index in local]
        )
    yield from distinct_alerts(scored)
    yield from answer_requests(run)
    groups = []
    for row, prompt, example, (completions, group_scores) in zip(
        prompt_rows, prompts, examples, scored, strict=True
    ):
        scorer = run.part_of(example).scorer
        groups.append(SampledGroup(
            index=row.group, example=example, prompt_ids=prompt.ids, prompt_text=prompt.text,
            prefill=row.prefill, attempt=row.attempt, rollouts=completions, scores=group_scores,
            right=scorer.held_out_right if origin == "eval" else scorer.right,
            format=scorer.format,
        ))  # fmt: skip
    return groups


def _sampled(
    run: Run, step: int, rows: Sequence[PromptRows], sampling: Sampling, seed_step: int,
    origin: Origin,
) -> Generator[Event, None, list[Rollout]]:  # fmt: skip
    """This rank's rollouts, with what their environments say at the end."""
    environments = run.environments
    dialogues = environments.dialogues() if environments is not None else None
    rollouts = yield from sample_groups(
        run.policy, rows, sampling, seed=run.config.seed, step=seed_step, event_step=step,
        requests=partial(answer_requests, run), dialogues=dialogues,
        weights=run.sampler_weights if origin == "train" else None,
    )  # fmt: skip
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
    indices = [index for index, _ in run.ranks.assigned(examples)]
    with run.clock.phase("environment"):
        openings = environments.begin(examples, indices, rows=rows, step=seed_step, attempt=attempt)
    local = zip(indices, map(encode, openings), strict=True)
    encoded = run.ranks.gather_indexed(local)
    return [
        environments.render(example, decode(Opening, opening))
        for example, opening in zip(examples, encoded, strict=True)
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
    judged = scores if refill_on == "total" else without_overlong(scores)
    return "" if judged.differ else "total"


def rows_to_sample(
    examples: Sequence[Example], prompts: Sequence[RenderedPrompt],
    *, rows: int, first: int = 0, attempt: int = 0,
) -> list[PromptRows]:  # fmt: skip
    """The rows of every prompt, before ranks share them; a repeated prompt gets its own noise."""
    repeats = occurrences([example.key for example in examples])
    return [
        PromptRows(
            key=example.key, group=group, ids=prompt.ids, rows=rows, attempt=attempt,
            occurrence=occurrence, prefill=prompt.prefill,
        )
        for group, (example, prompt, occurrence) in enumerate(
            zip(examples, prompts, repeats, strict=True), first
        )
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
    run: Run, step: int, local: Mapping[int, list[Rollout]], examples: Sequence[Example],
    prompts: Sequence[RenderedPrompt], sampling: Sampling, origin: Origin,
) -> dict[int, Scores]:  # fmt: skip
    """The scores of this rank's rollouts by the index of their prompt, from their tasks."""
    by_prompt: dict[int, Scores] = {}
    for part in run.parts:
        groups = {i: rows for i, rows in local.items() if run.part_of(examples[i]) is part}
        if not groups:
            continue
        indices = [index for index, rows in groups.items() for _ in rows]
        rollouts = [rollout for rows in groups.values() for rollout in rows]
        scores = part.scorer.score(
            [examples[index] for index in indices], [prompts[index] for index in indices],
            rollouts, step=step, held_out=origin == "eval",
        )  # fmt: skip
        if origin == "train":
            lengths = [rollout.length for rollout in rollouts]
            scores = with_overlong(
                scores, lengths, sampling.max_new_tokens, run.recipe.overlong_buffer
            )
        end = 0
        for index, rows in groups.items():
            start, end = end, end + len(rows)
            by_prompt[index] = scores.part(start, end)
    return by_prompt
