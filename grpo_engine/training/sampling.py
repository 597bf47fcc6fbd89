"""Samples and scores a step's groups; refills replace groups whose rewards do not differ."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from grpo_engine.distributed.ranks import Ranks
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
from grpo_engine.frozen import frozen
from grpo_engine.policy.memory import free_cache
from grpo_engine.rewards.scoring import OVERLONG, Scores, with_overlong
from grpo_engine.rollouts.decode import SampleRows
from grpo_engine.rollouts.noise import occurrences
from grpo_engine.rollouts.prompts import Opening, RenderedPrompt
from grpo_engine.rollouts.row import decoder, demonstration
from grpo_engine.rollouts.types import PromptRows, Sampling, Trajectory
from grpo_engine.run.recovery import fewer_sampled, repeated
from grpo_engine.run.requests import handle_requests, step_context
from grpo_engine.run.session import EngineRun
from grpo_engine.tasks.base import Example
from grpo_engine.training.drawing import Drawing
from grpo_engine.training.samples import SampledGroup

FIXED_STEP = 0  # the step number for the noise of pinned prompts and evaluations

ScoredRollouts = tuple[list[Trajectory], Scores]  # those of one prompt


@frozen
class SampleRequest:
    """Prompts to sample and score; their groups are numbered from `first`."""

    examples: Sequence[Example]
    sampling: Sampling
    rows: int  # completions per prompt
    first: int = 0
    attempt: int = 0
    seed_step: int = FIXED_STEP
    origin: Origin = "train"
    demonstrates: bool = False  # completions are the data's, without scores

    @property
    def phase(self) -> Phase:
        return "generate" if self.origin == "train" else "evaluate"


@frozen
class SampledGroups:
    """A step's groups: those to train on, and those that refills replaced."""

    groups: list[SampledGroup]
    replaced: list[SampledGroup]
    drawing: Drawing
    refills: int

    @property
    def all(self) -> list[SampledGroup]:
        return [*self.groups, *self.replaced]


def sample_step(run: EngineRun, step: int) -> Generator[Event, None, SampledGroups]:
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
        run.trained_examples |= {example.key: example for example in examples}
        fresh = yield from sample_and_score(
            run,
            step,
            SampleRequest(
                examples=examples,
                sampling=run.sampling,
                rows=run.config.training.group_size,
                first=len(groups) + len(replaced),
                attempt=refills,
                seed_step=step,
                demonstrates=recipe.demonstrates,
            ),
        )
        for group in fresh:
            if recipe.refill_rounds:
                group.alike_in = alike_in(group.scores, recipe.refill_on, group.right.function)
            (replaced if group.alike_in else groups).append(group)
        if len(groups) == prompts:
            break
    return SampledGroups(groups=groups, replaced=replaced, drawing=drawing, refills=refills)


def sample_and_score(
    run: EngineRun, step: int, request: SampleRequest
) -> Generator[Event, None, list[SampledGroup]]:
    """Sample completions of every prompt and score them."""
    with run.clock.phase(request.phase):
        prompts, prompt_rows, rollouts = yield from repeated(
            run,
            step,
            partial(_sample, run, step, request),
            partial(fewer_sampled, run, request.rows * len(request.examples)),
        )
    assigned = run.ranks.assigned(prompt_rows)
    free_cache()
    yield from handle_requests(run)
    if request.origin == "train":
        yield PhaseStarted(step=step, phase="score", total=len(rollouts))
    with run.clock.phase("score" if request.origin == "train" else "evaluate"):
        local = {
            index: rollouts[n * request.rows : (n + 1) * request.rows]
            for n, (index, _) in enumerate(assigned)
        }
        local_scores = _scored(run, step, request, prompts, local)
        scored = all_rollouts(
            run.ranks, [(index, (local[index], local_scores[index])) for index in local]
        )
    yield from dict.fromkeys(alert for _, scores in scored for alert in scores.alerts)
    yield from handle_requests(run)
    groups = []
    for row, prompt, example, (completions, group_scores) in zip(
        prompt_rows, prompts, request.examples, scored, strict=True
    ):
        scorer = run.part_of(example).scorer
        groups.append(
            SampledGroup(
                index=row.group,
                example=example,
                prompt_ids=prompt.ids,
                prompt_text=prompt.text,
                prefill=row.prefill,
                attempt=row.attempt,
                rollouts=completions,
                scores=group_scores,
                right=scorer.held_out_right if request.origin == "eval" else scorer.right,
                format=scorer.format,
            )
        )
    return groups


def _sample(
    run: EngineRun, step: int, request: SampleRequest
) -> Generator[Event, None, tuple[list[RenderedPrompt], list[PromptRows], list[Trajectory]]]:
    """The prompts, their rows, and this rank's rollouts."""
    prompts = _rendered(run, request)
    prompt_rows = rows_to_sample(request, prompts)
    yield from _announced(step, request, prompts)
    local = [row for _, row in run.ranks.assigned(prompt_rows)]
    rollouts = yield from _sampled(run, step, request, local)
    return prompts, prompt_rows, rollouts


def _sampled(
    run: EngineRun, step: int, request: SampleRequest, rows: Sequence[PromptRows]
) -> Generator[Event, None, list[Trajectory]]:
    """This rank's rollouts, with the final outcomes of their environments."""
    if request.demonstrates:
        examples = (request.examples[row.group - request.first] for row in rows)
        ids = [run.part_of(example).render.completion_ids(example) for example in examples]
        return list(map(partial(demonstration, decode=decoder(run.policy)), rows, ids))
    environments = run.environments
    dialogues = environments.dialogues() if environments is not None else None
    sampled = SampleRows(
        prompts=rows,
        sampling=replace(request.sampling, max_rows=run.sampling.max_rows),
        seed=run.config.seed,
        noise_step=request.seed_step,
        dialogues=dialogues,
        weights=run.sampler_weights if request.origin == "train" else None,
    )
    rollouts = yield from run.backend.sample(sampled, step_context(run, step))
    if environments is not None and dialogues is not None:
        with run.clock.phase("environment"):
            rollouts = environments.finish(rollouts)
        run.clock.add("environment", dialogues.waited)
    return rollouts


def _rendered(run: EngineRun, request: SampleRequest) -> list[RenderedPrompt]:
    """The prompts, with the additions of environments when their episodes begin."""
    environments, examples = run.environments, request.examples
    if environments is None:
        return [run.part_of(example).render(example) for example in examples]
    indices = [index for index, _ in run.ranks.assigned(examples)]
    with run.clock.phase("environment"):
        openings = environments.begin(
            examples, indices, rows=request.rows, step=request.seed_step, attempt=request.attempt
        )
    local = zip(indices, map(encode, openings), strict=True)
    encoded = run.ranks.gather_indexed(local)
    return [
        environments.render(example, decode(Opening, opening))
        for example, opening in zip(examples, encoded, strict=True)
    ]


def all_rollouts(ranks: Ranks, local: Sequence[tuple[int, ScoredRollouts]]) -> list[ScoredRollouts]:
    """The scored rollouts of all prompts; `local` has this rank's, by index."""
    if ranks.size == 1:
        return [scored for _, scored in local]
    items = [(index, encode(scored)) for index, scored in local]
    kind = tuple[list[Trajectory], Scores]
    return [decode(kind, scored) for scored in ranks.gather_indexed(items)]


def alike_in(scores: Scores, refill_on: str, accuracy: str) -> str:
    """The reward that refills compare, if it is the same in the whole group; else empty.

    `refill_on` is a reward function, `total`, or `accuracy`: the function that says right or wrong.
    Without such a function, and for scores of steps, the total is compared without the length
    penalty.
    """
    name = refill_on
    if refill_on == "accuracy":
        name = accuracy if scores.steps is None else ""
    if name in scores.names:
        rows = zip(scores.column(name), scores.totals(), strict=True)
        counted = (score for score, total in rows if total is not None)
        return "" if rewards_differ(counted) else name
    judged = scores if refill_on == "total" else scores.without(OVERLONG)
    return "" if judged.differ else "total"


def rows_to_sample(request: SampleRequest, prompts: Sequence[RenderedPrompt]) -> list[PromptRows]:
    """The rows of every prompt, for all ranks; a repeated prompt gets noise of its own."""
    repeats = occurrences([example.key for example in request.examples])
    return [
        PromptRows(
            key=example.key,
            group=group,
            ids=prompt.ids,
            rows=request.rows,
            attempt=request.attempt,
            occurrence=occurrence,
            prefill=prompt.prefill,
        )
        for group, (example, prompt, occurrence) in enumerate(
            zip(request.examples, prompts, repeats, strict=True), request.first
        )
    ]


def _announced(
    step: int, request: SampleRequest, prompts: Sequence[RenderedPrompt]
) -> Iterator[Event]:
    """Events that announce the prompts, and whether they refill or are pinned."""
    detail = "pinned prompts" if request.origin == "pinned" else ""
    yield PhaseStarted(
        step=step,
        phase=request.phase,
        total=request.rows * len(prompts),
        detail=f"refill {request.attempt}" if request.attempt else detail,
    )
    yield PromptsStarted(
        step=step,
        prompts=tuple(
            PromptStarted(
                group=group,
                origin=request.origin,
                prompt_text=prompt.text,
                target=example.target,
                rows=request.rows,
            )
            for group, (prompt, example) in enumerate(
                zip(prompts, request.examples, strict=True), request.first
            )
        ),
    )


def _scored(
    run: EngineRun,
    step: int,
    request: SampleRequest,
    prompts: Sequence[RenderedPrompt],
    local: Mapping[int, list[Trajectory]],
) -> dict[int, Scores]:
    """The scores of this rank's rollouts, by the index of their prompt."""
    if request.demonstrates:
        return dict.fromkeys(local, Scores(rewards=((),)))
    by_prompt: dict[int, Scores] = {}
    examples, rows = request.examples, request.rows
    for part in run.parts:
        indices = [index for index in local if run.part_of(examples[index]) is part]
        rollouts = [rollout for index in indices for rollout in local[index]]
        if not indices:
            continue
        repeated_indices = [index for index in indices for _ in range(rows)]
        scores = part.scorer.score(
            [examples[index] for index in repeated_indices],
            [prompts[index] for index in repeated_indices],
            rollouts,
            step=step,
            held_out=request.origin == "eval",
        )
        if request.origin == "train":
            lengths = [rollout.length for rollout in rollouts]
            scores = with_overlong(
                scores, lengths, request.sampling.max_new_tokens, run.recipe.overlong_buffer
            )
        for n, index in enumerate(indices):
            by_prompt[index] = scores.part(n * rows, (n + 1) * rows)
    return by_prompt
