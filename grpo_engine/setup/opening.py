"""Opens a run from settings or a checkpoint: loads task, model, rewards, optimiser."""

import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field, replace
from math import inf
from pathlib import Path
from typing import Any

import mlx.core as mx

from grpo_engine import consent
from grpo_engine.alerts.rules import Alert, RunLimits
from grpo_engine.alerts.state import Alerts, raised
from grpo_engine.config import mismatch
from grpo_engine.config.recipes import Recipe
from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.cpu import blas
from grpo_engine.distributed.ranks import Lifeline, Ranks
from grpo_engine.environments.dialogues import Environments, open_environments
from grpo_engine.errors import CheckpointError, ConfigError
from grpo_engine.evaluation.pinned import first_pins
from grpo_engine.events import (
    Event,
    FunctionsLoaded,
    ModelLoaded,
    NoteWritten,
    PhaseStarted,
    RunStarted,
    warning,
)
from grpo_engine.frozen import frozen
from grpo_engine.maths.custom import named_in
from grpo_engine.policy import optimizer
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.memory import Lengths, MemoryEstimate, MemoryPlan
from grpo_engine.policy.optimizer import Learner
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.trees import flatten
from grpo_engine.remote.backend import RemoteBackend
from grpo_engine.remote.opening import open_remote
from grpo_engine.rollouts.batches import check_cache_bits
from grpo_engine.rollouts.prompts import PromptRenderer
from grpo_engine.rollouts.types import Sampling
from grpo_engine.run import checkpoint, persist
from grpo_engine.run.local import LocalBackend
from grpo_engine.run.recovery import fewer_sampled, fewer_scored, shorten_buffers
from grpo_engine.run.session import EngineRun, TaskPart
from grpo_engine.run.user_objects import NO_OBJECTS, UserObjects
from grpo_engine.setup import preflight
from grpo_engine.setup.code_version import code_version
from grpo_engine.setup.functions import load_functions
from grpo_engine.setup.parts import LoadedTask, check_reward_options, load_tasks, open_parts
from grpo_engine.setup.teacher import check_teacher, load_teacher
from grpo_engine.tasks.base import Task, fingerprint_of
from grpo_engine.training.drawing import take_rates
from grpo_engine.versions import versions

TRUNCATED = (
    "top_p, top_k, min_p or repetition_penalty change what is sampled but not the ratio: cut "
    "tokens are never sampled, while training uses the full distribution"
)

DEMONSTRATED = (
    "the answers are those of the data, one per prompt: rollout.group_size and rollout.temperature "
    "are not read, and rewards score held-out answers only; without a reward function, held-out "
    "answers are sampled and not evaluated"
)

CORRECTED = (
    "in these number formats sampler and trainer cannot agree exactly about the probability of an "
    f"answer, so each answer is weighted by the ratio of the two ({mismatch.CORRECTION_TEXT}); "
    "algorithm.importance_cap 0 turns this off"
)


SHORTENED = (
    "the system has ended work of the GPU in this run, so MLX gives it shorter pieces of work, "
    "which takes a little longer"
)


@frozen
class RunContext:
    """What a run is loaded with; `stack` closes it after the run."""

    config: RunConfig
    control: Control
    folder: Path
    stack: ExitStack
    ranks: Ranks = field(default_factory=Ranks)
    objects: UserObjects = NO_OBJECTS
    step: int = 0
    saved: Mapping[str, Any] | None = None  # the state of the checkpoint that it goes on from


def open_run(
    config: RunConfig,
    control: Control,
    folder: Path,
    stack: ExitStack,
    *,
    resume: bool,
    objects: UserObjects = NO_OBJECTS,
) -> Generator[Event, None, EngineRun]:
    """Load everything, with rank 0's settings on every rank; `stack` closes it after the run."""
    if shorten_buffers(folder, os.environ):
        yield NoteWritten(step=0, text=SHORTENED)
    ranks = Ranks.join()
    stack.enter_context(Lifeline(ranks, control))
    config = RunConfig.model_validate(ranks.broadcast(config.model_dump(mode="json")))
    newest, problems = checkpoint.latest(folder) if ranks.leads else (None, [])
    saved = persist.share_checkpoint(ranks, newest)
    if saved is not None:
        if not resume:
            raise CheckpointError(
                f"{folder} holds a run at step {saved.step}; resume it, or choose another folder"
            )
        persist.check_same_settings(config, saved)
    optimizer.build(config.optimizer)  # fails early on settings that are wrong
    check_teacher(config)
    tasks = load_tasks(config, objects)
    if not resume:  # an earlier version may have taken options that have no effect
        check_reward_options(config, tasks)
    unkept = consent.begins(config) if ranks.leads and not resume else ""
    context = RunContext(
        config=config,
        control=control,
        folder=folder,
        stack=stack,
        ranks=ranks,
        objects=objects,
        step=saved.step if saved else 0,
        saved=saved.state if saved else None,
    )
    chosen = load_functions(config, objects, tasks, ranks)
    yield from _started(context, tasks, chosen, resume=resume)
    yield from _notes(context.step, tasks, [*problems, *filter(None, [unkept])], ranks)
    run = yield from load_run(context, tasks, chosen)
    if run.recipe != config.algorithm.resolved():
        yield NoteWritten(step=context.step, text=CORRECTED)
    if saved is not None:
        yield from persist.restore(run, saved)
    else:
        yield from take_rates(run)
    return run


def _started(
    context: RunContext, tasks: Sequence[LoadedTask], chosen: Recipe, *, resume: bool
) -> Iterator[Event]:
    """The run's settings as a fact, and the functions of its recipe, for which it is asked."""
    config, functions = context.config, chosen.functions
    recipe = " + ".join([config.algorithm.recipe, *(Path(f).name for f in functions.values())])
    yield RunStarted(
        step=context.step,
        config=config.model_dump(mode="json"),
        total_steps=config.steps,
        resumed=resume,
        versions=dict(versions()),
        device=str(mx.default_device()),
        threads=_threads(context.saved["threads"] if context.saved else None),
        dataset_fingerprint=fingerprint_of([loaded.task for loaded in tasks]),
        recipe=recipe,
        code=code_version(Path.cwd(), consent.code_files(config)) if context.ranks.leads else {},
    )
    if functions:
        context.stack.enter_context(named_in(context.folder))
        sources = {choice: function.source for choice, function in functions.items()}
        if context.ranks.leads:
            consent.question_of_functions(sources).begin()
        yield FunctionsLoaded(step=context.step, sources=sources)


def _notes(
    step: int, tasks: Sequence[LoadedTask], problems: Sequence[str], ranks: Ranks
) -> Iterator[Event]:
    """What a user should know before the first step."""
    multiplies = blas.state()
    if multiplies is not None and multiplies.problem:
        yield raised(
            step,
            "slow_products",
            Alert(severity="warning", explanation=multiplies.problem, remedy=multiplies.remedy),
        )
    for text in (text for loaded in tasks for text in loaded.task.notes):
        yield NoteWritten(step=step, text=text)
    for text in problems:
        yield warning(step, text)
    if ranks.size > 1:
        yield NoteWritten(
            step=step,
            text=f"{ranks.size} ranks split the prompts; progress shows rank 0's prompts",
        )


def _threads(before: int | None) -> int:
    """Threads for matrix products; a resumed run requests as many as it had."""
    library = blas.state()
    if library is None or not library.loaded:
        return 1
    return blas.set_threads(before) if before else library.threads


def load_run(
    context: RunContext, tasks: Sequence[LoadedTask], chosen: Recipe | None = None
) -> Generator[Event, None, EngineRun]:
    """Load the model and start the reward functions; `chosen` is the recipe of the settings.

    The recipe of a checkpoint is kept.
    """
    config, step = context.config, context.step
    chosen = chosen or context.objects.recipe(config.algorithm)
    policy, recipe, remote = yield from _model(context, chosen)
    usable = [renderer(loaded.config, loaded.task, policy).usable() for loaded in tasks]
    renders = [render for render, _ in usable]
    noted = [text for _, notes in usable for text in notes]
    for text in filter(None, (*policy.notes, *noted, context.objects.note(config.task))):
        yield NoteWritten(step=step, text=text)
    environments, parts = _processes(context, tasks, renders, policy)
    if recipe.demonstrates:
        yield NoteWritten(step=step, text=DEMONSTRATED)
    note = "" if environments is None else environments.tokens.note
    for text in dict.fromkeys(filter(None, (note, *(part.scorer.form_note for part in parts)))):
        yield NoteWritten(step=step, text=text)
    lengths = _longest(tasks, renders, policy, environments)
    if remote is not None:
        plan, estimate = _unplanned(config)
    else:
        plan, estimate = yield from _planned(context, policy, lengths)
        context.stack.enter_context(preflight.wired(estimate))
    sampling = Sampling.of(config.training)
    if plan.max_rows < config.training.rows:  # without a limit, evaluations may have more rows
        sampling = replace(sampling, max_rows=plan.max_rows)
    if sampling.truncated:
        yield warning(step, TRUNCATED)
    run = EngineRun(
        config=config,
        recipe=recipe,
        control=context.control,
        folder=context.folder,
        policy=policy,
        parts=parts,
        environments=environments,
        backend=remote or _local_backend(context, policy, recipe),
        alerts=Alerts(_limits(config, recipe, policy, parts, estimate)),
        sampling=sampling,
        lengths=lengths,
        plan=plan,
        threads=_threads(None),
        ranks=context.ranks,
    )
    run.progress.entropy_control = recipe.entropy_bonus
    if recipe.entropy_target is None:  # a target needs a measured entropy
        run.progress.entropy_bonus = recipe.entropy_bonus
    run.progress.pins = first_pins(run)
    return run


def _processes(
    context: RunContext,
    tasks: Sequence[LoadedTask],
    renders: Sequence[PromptRenderer],
    policy: Policy,
) -> tuple[Environments | None, list[TaskPart]]:
    """Start the processes of environments and rewards."""
    config, control, stack = context.config, context.control, context.stack
    foreign = consent.is_foreign(config)
    environments = open_environments(
        config,
        context.folder,
        renders[0],
        policy.end_ids,
        stack.enter_context,
        lambda: control.stop_now,
        context.objects.environments,
        foreign=foreign,
    )
    parts = open_parts(
        tasks,
        renders,
        context.folder,
        control,
        context.objects,
        stack.enter_context,
        None if environments is None else environments.client.rewards,
        foreign=foreign,
    )
    return environments, parts


def _longest(
    tasks: Sequence[LoadedTask],
    renders: Sequence[PromptRenderer],
    policy: Policy,
    environments: Environments | None,
) -> Lengths:
    """The longest prompt and the longest answer that any of the tasks may need."""
    lengths = [
        preflight.longest(
            loaded.config,
            render.task,
            policy.context_length,
            render if environments is None else environments.render,
        )
        for loaded, render in zip(tasks, renders, strict=True)
    ]
    return Lengths(*map(max, zip(*lengths, strict=True)))


def _model(
    context: RunContext, chosen: Recipe
) -> Generator[Event, None, tuple[Policy, Recipe, RemoteBackend | None]]:
    """Load the model or open it on its server, and load the teacher.

    Importance correction is turned on in the recipe if sampler and trainer cannot agree, as two
    programs of a server cannot.
    """
    config, step, saved = context.config, context.step, context.saved
    begun, remote = time.perf_counter(), None
    if config.remote.url:
        remote = yield from _server(context)
        policy: Policy = remote.policy
    else:
        preflight.set_limits()
        yield PhaseStarted(step=step, phase="load", detail=config.model.path)
        policy = load_policy(config.model, seed=config.seed, critic=chosen.has_critic)
        check_cache_bits(policy)
    if config.teacher.path:
        yield PhaseStarted(step=step, phase="load", detail=config.teacher.path)
        policy.teacher = load_teacher(config, policy)
    if saved is not None:
        recipe = mismatch.corrected(chosen, saved.get("settled", {}))
    else:
        quantized = bool(config.model.cache_bits) or mismatch.is_quantized(
            flatten(policy.model.parameters())
        )
        can_agree = remote is None and mismatch.can_agree(policy.dtype, quantized=quantized)
        # ranks on other devices may use other formats, but all must train the same way
        agree = all(context.ranks.gather(can_agree))
        recipe = mismatch.with_correction(chosen, config.algorithm.importance_cap, agree=agree)
    yield ModelLoaded(
        step=step,
        path=config.model.path,
        parameters=policy.parameters,
        trainable=policy.trainable_parameters,
        dtype=policy.dtype,
        notes=policy.notes,
        seconds=time.perf_counter() - begun,
        settled=mismatch.correction(chosen, recipe),
    )
    return policy, recipe, remote


def _server(context: RunContext) -> Generator[Event, None, RemoteBackend]:
    """Open the policy on its server."""
    config, step = context.config, context.step
    if context.ranks.size > 1:
        raise ConfigError(
            f"remote.url has the weights on a server, and this run has {context.ranks.size} ranks; "
            "start it once, without mlx.launch",
            "remote.url",
        )
    yield PhaseStarted(
        step=step, phase="load", detail=f"{config.model.path} on {config.remote.url}"
    )
    return (
        yield from open_remote(
            config,
            context.control,
            context.folder,
            step,
            context.stack.callback,
            begins=context.saved is None,
        )
    )


def _unplanned(config: RunConfig) -> tuple[MemoryPlan, MemoryEstimate]:
    """All rows at once, in the memory of a server."""
    rows = config.training.rows
    estimate = MemoryEstimate(weights=0, optimizer=0, sampling=0, update=0, known=False)
    return MemoryPlan(rows, grad_checkpoint=False, head_chunk=1, max_rows=rows), estimate


def renderer(config: RunConfig, task: Task, policy: Policy) -> PromptRenderer:
    return PromptRenderer(
        tokenizer=policy.tokenizer,
        task=task,
        config=config.task,
        model=config.model.path,
        context=policy.context_length,
        max_new_tokens=config.rollout.max_new_tokens,
        vocabulary=policy.vocabulary,
        demonstrates=config.algorithm.resolved().demonstrates,
    )


def _planned(
    context: RunContext, policy: Policy, lengths: Lengths
) -> Generator[Event, None, tuple[MemoryPlan, MemoryEstimate]]:
    """Apply the memory plan of the run; refuse a step that is too large.

    A resumed run keeps its plan where that fits. A new one is that of the rank with least memory.
    """
    config, ranks = context.config, context.ranks
    limit = preflight.memory_limit()
    plan = _agreed_plan(config, policy, lengths, ranks, limit)
    if context.saved is not None:
        before = persist.saved_plan(config, context.saved)
        peak = preflight.estimated(config, policy, lengths, before).peak
        if all(ranks.gather(peak <= limit)):
            plan = before
        elif plan != before:
            yield warning(
                context.step,
                f"the memory plan was {before} and is {plan}, because the former does not fit "
                f"here: {persist.SAME_TO_TOLERANCE}",
            )
    plan.apply(policy)
    estimate = preflight.check_memory(config, policy, lengths, plan)
    replies = lengths.completion > config.rollout.max_new_tokens
    yield NoteWritten(
        step=context.step,
        text=f"{estimate}; {plan}"
        f"{f'; answers of up to {lengths.completion} tokens with their replies' * replies}",
    )
    return plan, estimate


def _agreed_plan(
    config: RunConfig, policy: Policy, lengths: Lengths, ranks: Ranks, budget: int
) -> MemoryPlan:
    """The plan of the rank with least memory."""
    local = preflight.plan_memory(config, policy, lengths, budget)
    _, *smallest = min(ranks.gather([budget, *local]))
    plan = MemoryPlan(*smallest)
    # all ranks split the rollouts equally, so that each gets some of the batches
    rank_rows = -(-config.training.rows // ranks.size)
    return plan._replace(micro_rows=min(rank_rows, plan.micro_rows))


def plan_next_step(run: EngineRun) -> Generator[Event, None, bool]:
    """If backward passes took more memory than a run may use, let those of later steps take less.

    The estimate is corrected by what was measured on any rank. Returns whether the plan is new.
    """
    if run.is_complete:
        return False
    limit, peak = preflight.memory_limit(), run.update_peak
    local = (run.alerts.is_swapping(run.step), peak > limit)
    is_swapping, is_short = map(any, zip(*run.ranks.gather(local), strict=True))
    if is_swapping:
        yield from _plan_less(run)
    if not is_short:
        return run.is_planned_anew
    estimate = preflight.estimated(run.config, run.policy, run.lengths, run.plan).training
    budget = int(limit * estimate / max(1, peak))
    smaller = _agreed_plan(run.config, run.policy, run.lengths, run.ranks, budget)
    plan = run.plan._replace(
        micro_rows=min(run.plan.micro_rows, smaller.micro_rows),
        grad_checkpoint=run.plan.grad_checkpoint or smaller.grad_checkpoint,
    )
    if plan == run.plan:
        return run.is_planned_anew
    yield warning(
        run.step,
        f"a backward pass took up to {peak / preflight.GIGABYTE:.2f} GB, and a run may use "
        f"{limit / preflight.GIGABYTE:.2f}; from step {run.step + 1} on the memory plan is {plan}, "
        f"before it was {run.plan}: {persist.SAME_TO_TOLERANCE}",
    )
    run.plan = plan
    plan.apply(run.policy)
    return True


def _plan_less(run: EngineRun) -> Iterator[Event]:
    """A smaller plan for a machine that swaps, which is worse than a slower step."""
    before = run.plan
    fewer_sampled(run, before.max_rows)
    fewer_scored(run, gradient=True)
    if run.plan != before:
        yield warning(
            run.step,
            f"memory is swapped to disk; from step {run.step + 1} on the memory plan is "
            f"{run.plan}, before it was {before}: {persist.SAME_TO_TOLERANCE}",
        )


def _local_backend(context: RunContext, policy: Policy, recipe: Recipe) -> LocalBackend:
    """The policy with its optimiser and, if the recipe has one, the critic's."""
    config, critic = context.config.optimizer, None
    learner = Learner(
        optimizer.build(config), policy.snapshot(), scales_loss=policy.dtype == "float16"
    )
    if recipe.has_critic:
        critic = Learner(optimizer.build_critic(config), policy.critic_weights())
    if context.saved is None and config.start is not None:
        persist.begin_with(policy, learner, critic, Path(config.start))
    return LocalBackend(policy, learner, critic, config.max_grad_norm)


def _limits(
    config: RunConfig,
    recipe: Recipe,
    policy: Policy,
    parts: Sequence[TaskPart],
    estimate: MemoryEstimate,
) -> RunLimits:
    return replace(
        RunLimits.of(recipe, config.alerts),
        accuracy=parts[0].scorer.right.function or None,
        weights={
            name: weight for part in reversed(parts) for name, weight in part.scorer.weights.items()
        },
        sampler_gap=mismatch.rounding(policy.dtype, policy.config.cache_bits),
        has_teacher=policy.teacher is not None,
        memory_gb=preflight.memory_limit() / preflight.GIGABYTE,
        planned_gb=(estimate.peak + preflight.WIRED_MORE) / preflight.GIGABYTE
        if estimate.known
        else inf,
    )
