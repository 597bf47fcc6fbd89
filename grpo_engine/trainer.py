"""GRPO training: run(config, control) is a generator of events that executes a whole run.

`_train` is the algorithm. Each part of a step is one call, implemented in these files:

    sample, score        training/sampling.py    rollouts/decode.py, rewards/
    advantages           training/advantages.py  maths/advantage.py
    log-probabilities    training/logprobs.py    policy/forward.py
    passes, update       training/update.py      training/loss.py, maths/loss.py, policy/
    report               training/report.py      training/step.py

Each part returns a frozen value that later parts read: `Samples`, `OldScores` and `Experience` of
training/samples.py, `Advantages` and `UpdateResult`. Suffixes of arrays name their axes: B all
rollouts of the step (P prompts times G completions), T tokens, F reward functions.

Results depend only on the seed, the step and the weights, so that a resumed run equals an
uninterrupted one bit for bit. Deviations from the papers:

1. A group without signal counts in every denominator, but skips its forward pass if its gradient
   depends on the advantage alone.
2. If the first pass is the first forward over fresh completions, its own log-probabilities,
   detached, are the old ones, so the ratio is exactly 1.
"""

import time
import traceback
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from grpo_engine.config.settings import RemoteConfig, RunConfig, TeacherConfig
from grpo_engine.control import Control, StopNow
from grpo_engine.errors import PANIC, DataError, EngineError, NotFiniteError, RankLostError
from grpo_engine.evaluation.held_out import Moment, evaluate, evaluate_if_scheduled
from grpo_engine.evaluation.pinned import sample_pinned, score_pinned_after_update
from grpo_engine.events import Event, NoteWritten, PhaseStarted, RunFailed, RunFinished, StepSkipped
from grpo_engine.maths.reuse import entropy_control
from grpo_engine.platform.faults import fault_of
from grpo_engine.platform.threads import launched_rank
from grpo_engine.policy.memory import free_cache
from grpo_engine.run.persist import save_after_failure, save_if_needed, save_last
from grpo_engine.run.recovery import as_engine_error
from grpo_engine.run.requests import handle_requests, wait_until_recorded
from grpo_engine.run.session import EngineRun, is_stopping
from grpo_engine.run.user_objects import NO_OBJECTS, UserObjects
from grpo_engine.setup.opening import RunContext, load_run, open_run, plan_next_step
from grpo_engine.setup.parts import LoadedTask, load_tasks
from grpo_engine.setup.self_check import check_itself
from grpo_engine.training.advantages import (
    advantages_read_tokens,
    needs_old_logprobs,
    rows_to_train,
    scalar_advantages,
    step_advantages,
)
from grpo_engine.training.logprobs import score_tokens
from grpo_engine.training.report import groups_scored, tokens_scored
from grpo_engine.training.samples import Experience, OldScores, Samples, gather
from grpo_engine.training.sampling import sample_step
from grpo_engine.training.step import (
    begin_step,
    check_environments,
    finish_step,
    why_skipped,
)
from grpo_engine.training.update import UpdateResult, update


def run(
    config: RunConfig,
    control: Control,
    *,
    folder: Path,
    resume: bool = False,
    objects: UserObjects = NO_OBJECTS,
) -> Iterator[Event]:
    """Train with these settings, from the start or from the last checkpoint in `folder`.

    Every call of `next` must come from the same thread, the only one that uses MLX.
    """
    step, current = 0, None
    try:
        with ExitStack() as stack:
            current = yield from open_run(
                config, control, folder, stack, resume=resume, objects=objects
            )
            for event in _loaded_run(current):
                step = event.step
                yield event
    except StopNow:
        done = current.step if current is not None else 0
        yield RunFinished(step=done, reason="aborted", summary={})
    except BaseException as error:  # any error ends the run as an event
        yield _failed(step, error, _lost_rank(control))


def _loaded_run(run: EngineRun) -> Iterator[Event]:
    """The run after everything is loaded."""
    yield from handle_requests(run)
    if run.step == 0 and not run.progress.evaluated_before:
        yield from _before_first_step(run)
    try:
        yield from _train(run)
    except NotFiniteError:
        raise
    except (EngineError, RuntimeError) as error:  # most likely of users' functions
        if isinstance(error, EngineError) or fault_of(error) not in (None, "lost"):
            yield from save_after_failure(run)
        raise
    stopped = not run.is_complete
    if run.saved_step != run.step and (stopped or run.unsaved):
        yield from save_last(run)
    yield RunFinished(
        step=run.step,
        reason="stopped" if stopped else "completed",
        summary={
            "tokens": run.progress.tokens,
            "elapsed": run.progress.elapsed,
            **run.last_metrics,
        },
    )


def _before_first_step(run: EngineRun) -> Iterator[Event]:
    """The self-check, the first evaluation, and the pinned prompts at step 0."""
    yield from check_itself(run)
    if run.config.evaluation.before_and_after:
        complete = yield from evaluate(run, 0, "before")
        if not complete:
            return
    run.progress.evaluated_before = True
    pinned = yield from sample_pinned(run, 0)
    yield from score_pinned_after_update(run, 0, pinned, updated=False)


def _train(run: EngineRun) -> Iterator[Event]:
    """The training loop. `run.progress` changes only when a step is complete."""
    recipe = run.recipe
    while not run.is_complete and not is_stopping(run):
        step = run.step + 1
        begin_step(run)
        pinned = yield from sample_pinned(run, step)
        experience, result = None, None

        # 1. Sample G completions for each of P prompts.
        # 2. Score them. Groups without variance are replaced if the recipe has refills.
        sampled = yield from sample_step(run, step)
        no_advantages_B = [0.0 for group in sampled.replaced for _ in group.rollouts]
        yield from groups_scored(run, step, sampled.replaced, no_advantages_B)

        if sampled.groups:
            # token_ids_BT, mask_BT and sampler_logprobs_BT, as sampled, never re-tokenised
            samples = gather(sampled.groups, recipe)

            # 3. Advantages, [B] or [B, T], from rewards [B, F]. A critic, a teacher or a KL penalty
            #    in the reward needs log-probabilities of tokens, which are then computed first.
            old = OldScores()
            if advantages_read_tokens(recipe):
                old = yield from score_before_update(run, step, samples)
            advantages = step_advantages(samples, old, recipe, step)
            advantages_B = scalar_advantages(samples, advantages)
            yield from groups_scored(run, step, samples.groups, advantages_B)

            # 4. Old and reference log-probabilities of the rows that can have a gradient, [B, T].
            rows = rows_to_train(samples, advantages, recipe, run.progress.entropy_bonus)
            if rows and not advantages_read_tokens(recipe):
                old = yield from score_before_update(run, step, samples, rows)
            experience = Experience(
                samples=samples, old=old, advantages=advantages, trained_rows=rows
            )

            # 5. Passes over the rollouts: for each minibatch the loss from the ratio of new to
            #    old log-probabilities, its gradient, clipped by norm, and one optimiser step.
            if rows:
                result = yield from update(run, step, experience)
                experience = result.experience

        # 6. Report: log-probabilities after the update, metrics, alerts.
        if reason := why_skipped(experience, result):
            yield StepSkipped(step=step, reason=reason)
        if experience is not None:
            yield from score_after_update(run, step, experience, result)
        updated = result is not None and result.updates > 0
        yield from score_pinned_after_update(run, step, pinned, updated=updated)
        yield from finish_step(run, step, sampled, experience, result)

        # 7. The entropy bonus, the reference policy and the memory plan of the next step.
        control_entropy(run, result)
        yield from refresh_reference(run)
        planned_anew = yield from plan_next_step(run)
        check_environments(run, sampled)  # the step is whole: it is saved if this ends the run

        yield from evaluate_if_scheduled(run)
        yield from save_if_needed(run, planned_anew=planned_anew)
        yield from wait_until_recorded(run)


def score_before_update(
    run: EngineRun, step: int, samples: Samples, rows: Sequence[int] | None = None
) -> Generator[Event, None, OldScores]:
    """What the recipe needs of some or all rows before its first update."""
    recipe, scores = run.recipe, OldScores()
    needs_old, teacher = needs_old_logprobs(recipe), run.policy.teacher
    if not needs_old and not run.has_reference:
        return scores
    with run.clock.phase("logprobs"):
        yield PhaseStarted(step=step, phase="logprobs")
        if needs_old:
            old = yield from score_tokens(
                run,
                step,
                samples.rollouts,
                rows=rows,
                under=partial(run.policy.using, run.sampler_weights),
                values=run.recipe.has_critic,
                entropy=recipe.entropy_top_quantile < 1 or recipe.reads("entropy_BT"),
            )
            scores = OldScores(
                logprobs_BT=old.logprobs, values_BT=old.values, entropy_BT=old.entropy
            )
        if run.has_reference:
            reference = yield from score_tokens(
                run, step, samples.rollouts, rows=rows, under=run.policy.as_reference
            )
            scores = replace(scores, reference_logprobs_BT=reference.logprobs)
        if teacher is not None:
            taught = yield from score_tokens(run, step, samples.rollouts, rows=rows, model=teacher)
            scores = replace(scores, teacher_logprobs_BT=taught.logprobs)
    free_cache()
    return scores


def score_after_update(
    run: EngineRun, step: int, experience: Experience, result: UpdateResult | None
) -> Iterator[Event]:
    """Score some groups again with the updated policy, and yield the numbers of every token."""
    samples, trained = experience.samples, set(experience.trained_rows)
    updated_BT = None if result is None else result.updated_logprobs_BT
    scored_groups: Sequence[int] = range(len(samples.groups))
    if result is not None and result.updates and updated_BT is None:
        is_recorded = run.config.record.tokens not in ("none", "nothing")
        scored_groups = experience.first_trained_group if is_recorded else ()
        rows = [row for group in scored_groups for row in samples.rows_of(group)]
        if rows:
            with run.clock.phase("logprobs"):
                scored = yield from score_tokens(run, step, samples.rollouts, rows=rows)
            updated_BT = scored.logprobs
    for index in range(len(samples.groups)):
        if experience.old.logprobs_BT is not None and trained.issuperset(samples.rows_of(index)):
            after_BT = updated_BT if index in scored_groups else None
            yield tokens_scored(step, index, experience, result, after_BT)


def control_entropy(run: EngineRun, result: UpdateResult | None) -> None:
    """Adjust the weight of the entropy bonus towards the recipe's target entropy."""
    progress, target = run.progress, run.recipe.entropy_target
    if target is not None and result is not None and result.entropy[1]:
        total, count = result.entropy
        progress.entropy_control, progress.entropy_bonus = entropy_control(
            progress.entropy_control, total / count, target
        )


def refresh_reference(run: EngineRun) -> Iterator[Event]:
    """Mix the policy into its reference, at the recipe's interval."""
    every = run.recipe.ref_refresh_every
    if every and run.step % every == 0:
        run.policy.refresh_reference(run.recipe.ref_mix)
        yield NoteWritten(
            step=run.step, text="the reference is the policy of this step from here on"
        )


def evaluate_only(
    config: RunConfig,
    control: Control,
    *,
    folder: Path,
    step: int = 0,
    moment: Moment = "after",
    objects: UserObjects = NO_OBJECTS,
) -> Iterator[Event]:
    """Evaluate the settings' model and adapter on the held-out problems."""
    here = {"stop_when": "", "teacher": TeacherConfig(), "remote": RemoteConfig()}
    config = config.model_copy(update=here)
    try:
        with ExitStack() as stack:
            tasks = load_tasks(config, objects)
            _refuse_without_problems(tasks)
            context = RunContext(
                config=config,
                control=control,
                folder=folder,
                stack=stack,
                objects=objects,
                step=step,
            )
            current = yield from load_run(context, tasks)
            yield from evaluate(current, step, moment)
    except StopNow:
        yield RunFinished(step=step, reason="aborted", summary={})
    except BaseException as error:  # any error ends the run as an event
        yield _failed(step, error)


def _refuse_without_problems(tasks: Sequence[LoadedTask]) -> None:
    if not any(loaded.task.held_out for loaded in tasks):
        raise DataError(
            f"task {tasks[0].task.name} has no held-out problems; set task.held_out_size or "
            "task.splits"
        )


def _failed(step: int, error: BaseException, lost_rank: str = "") -> RunFailed:
    if not isinstance(error, Exception) and type(error).__name__ != PANIC:
        raise error
    error = RankLostError(lost_rank) if lost_rank else as_engine_error(error, step)
    return RunFailed(
        step=step,
        error=type(error).__name__,
        message=str(error),
        traceback="" if isinstance(error, EngineError) else traceback.format_exc(),
    )


def _lost_rank(control: Control) -> str:
    """Which rank is gone, if that caused the failure; waits, as it may be detected late."""
    if launched_rank() is not None:
        time.sleep(0.5)
    return control.rank_failure
