"""The training loop: run(config, control) is a generator of events and does all of a run's work.

Each step is: sample, score, advantages, log-probabilities, passes over the answers, report. What
decides the numbers is a function of the seed, the step and the weights, so that a run resumed from
a checkpoint goes on bit for bit. Deviations from the papers:

1. A group without signal counts in every denominator but skips its forward pass where nothing but
   the advantage would give it a gradient.
2. Where the first pass is the first look at fresh answers, its own log-probabilities, detached, are
   the old ones: the ratio is exactly 1 there.
"""

import time
import traceback
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

from grpo_engine.alerts.rules import Finding
from grpo_engine.alerts.state import raised
from grpo_engine.config.run_config import RunConfig
from grpo_engine.control import Control, StopNow
from grpo_engine.distributed.lifeline import Lifeline
from grpo_engine.distributed.ranks import Ranks
from grpo_engine.errors import DataError, EngineError, NotFiniteError, RankLostError
from grpo_engine.evaluation import pinned
from grpo_engine.evaluation.held_out import Moment, evaluate
from grpo_engine.events import (
    Event,
    NoteWritten,
    PhaseStarted,
    RunFailed,
    RunFinished,
    StepFinished,
    StepSkipped,
)
from grpo_engine.maths.around import entropy_control
from grpo_engine.platform.threads import launched_rank
from grpo_engine.run.persist import keep, let_go, save_checkpoint
from grpo_engine.run.requests import listen
from grpo_engine.run.session import Run, is_stopping
from grpo_engine.setup.opening import load_run, open_run
from grpo_engine.setup.self_check import check_itself
from grpo_engine.tasks.base import Task, load_task
from grpo_engine.train import report
from grpo_engine.train.advantages import judge, reads_old_first, reads_tokens, rows_to_train
from grpo_engine.train.logprobs import score_tokens
from grpo_engine.train.samples import Samples, gather
from grpo_engine.train.sampling import Collected, collect
from grpo_engine.train.update import Outcome, measure_after, update

BAD_UPDATES = 3  # in a row, after which a run ends


def run(
    config: RunConfig, control: Control, *, folder: Path, resume: bool = False
) -> Iterator[Event]:
    """Train as the settings say, from the start or from the last checkpoint in `folder`.

    Every call of `next` must come from one and the same thread, the only one that uses MLX.
    """
    step = 0
    try:
        with ExitStack() as stack:
            ranks = Ranks.join()
            stack.enter_context(Lifeline(ranks, control))
            config = agreed(ranks, config)
            current = yield from open_run(
                config, control, folder, stack, resume=resume, ranks=ranks
            )
            for event in _whole_run(current):
                step = event.step
                yield event
    except StopNow:
        yield RunFinished(step=step, reason="aborted", summary={})
    except Exception as error:
        yield _failed(step, error, lost_rank(control))


def agreed(ranks: Ranks, config: RunConfig) -> RunConfig:
    """Rank 0's settings, which all ranks run by."""
    return RunConfig.model_validate(ranks.share(config.model_dump(mode="json")))


def lost_rank(control: Control) -> str:
    """Which rank is gone, where that is why something failed; its end may be noticed late."""
    if launched_rank() is not None:
        time.sleep(0.5)
    return control.lost


def evaluate_only(
    config: RunConfig, control: Control, *, folder: Path, step: int = 0, moment: Moment = "after"
) -> Iterator[Event]:
    """Evaluate the model and adapter that the settings name on their held-out problems."""
    try:
        with ExitStack() as stack:
            task = _held_out_task(config)
            current = yield from load_run(config, control, folder, stack, task, step, threads=1)
            yield from evaluate(current, step, moment)
    except StopNow:
        yield RunFinished(step=step, reason="aborted", summary={})
    except Exception as error:
        yield _failed(step, error)


def _held_out_task(config: RunConfig) -> Task:
    task = load_task(config.task)
    if not task.held_out:
        raise DataError(
            f"task {task.name} has no held-out problems; set task.held_out_size or "
            "task.held_out_split"
        )
    return task


def _failed(step: int, error: Exception, lost: str = "") -> RunFailed:
    if lost:
        error = RankLostError(lost)
    return RunFailed(
        step=step,
        error=type(error).__name__,
        message=str(error),
        traceback="" if isinstance(error, EngineError) else traceback.format_exc(),
    )


def _whole_run(run: Run) -> Iterator[Event]:
    yield from listen(run, run.step)
    if run.step == 0 and not run.progress.evaluated_before:
        yield from _begin(run)
    yield from _train(run)
    stopped = run.step < run.config.steps
    if stopped and run.saved_step != run.step:
        yield from save_checkpoint(run)
    yield RunFinished(
        step=run.step,
        reason="stopped" if stopped else "completed",
        summary={"tokens": run.progress.tokens, "elapsed": run.progress.elapsed, **run.last},
    )


def _begin(run: Run) -> Iterator[Event]:
    """What comes before the first step: the self-check, the first evaluation, pinned prompts."""
    yield from check_itself(run)
    if run.config.evaluation.before_and_after:
        complete = yield from _evaluate(run, 0, "before")
        if not complete:
            return
    run.progress.evaluated_before = True
    followed = yield from pinned.sample_pinned(run, 0)
    if followed:
        yield from pinned.close_pinned(run, 0, followed, updated=False)


def _train(run: Run) -> Iterator[Event]:
    """The loop. Nothing of `run.progress` changes before a step is complete."""
    config, recipe, progress = run.config, run.recipe, run.progress
    while run.step < config.steps and not is_stopping(run):
        step = run.step + 1
        run.clock.start_step()
        keep(run)
        report.forget_peak_memory()
        if (step - 1) % recipe.sampler_sync_every == 0 and recipe.sampler_sync_every > 1:
            run.lagged = run.policy.snapshot()
        followed = None
        if pinned.is_due(run, step):
            followed = yield from pinned.sample_pinned(run, step)

        # 1. sample  2. score, and replace groups without variance where the recipe asks for it
        collected = yield from collect(run, step)
        for group in collected.replaced:
            none = [0.0] * len(group.rollouts)
            yield report.group_scored(step, group, "train", run.sampling, none, run.scorer.accuracy)
        outcome, samples = None, None
        if collected.groups:
            samples = gather(collected.groups, recipe)

            # 3. advantages, after the log-probabilities that some recipes make them from
            if reads_tokens(recipe):
                yield from _look(run, samples, step)
            samples.worth = judge(samples, recipe)
            worth = report.scalar_advantages(samples)
            for place, group in enumerate(collected.groups):
                own = [worth[row] for row in samples.rows_of(place)]
                yield report.group_scored(
                    step, group, "train", run.sampling, own, run.scorer.accuracy
                )

            # 4. rows without any gradient are left out  5. old and reference log-probabilities
            samples.trained = rows_to_train(samples, recipe, progress.entropy_bonus)
            if samples.trained and not reads_tokens(recipe):
                yield from _look(run, samples, step)

            # 6. passes over the answers  7. clip, check, step: inside `update`
            if samples.trained:
                with run.clock.phase("update"):
                    yield PhaseStarted(step=step, phase="update", total=recipe.passes)
                    outcome = yield from update(run, samples, step)
        skipped = _why_skipped(samples, outcome)
        if skipped:
            yield StepSkipped(step=step, reason=skipped)

        # 8. report: token numbers, metrics, alerts
        if samples is not None:
            yield from _look_again(run, samples, step, outcome)
        if followed:
            updated = outcome is not None and outcome.updates > 0
            yield from pinned.close_pinned(run, step, followed, updated=updated)
        yield from _commit(run, step, collected, samples, outcome)
        yield from _between_steps(run, outcome, samples)


def _look(run: Run, samples: Samples, step: int) -> Iterator[Event]:
    """Log-probabilities that the passes need before they begin: old, reference, values."""
    recipe = run.recipe
    rows = samples.trained or range(len(samples.rollouts))
    needs_old = reads_old_first(recipe)
    if not needs_old and not run.has_reference:
        return
    with run.clock.phase("logprobs"):
        yield PhaseStarted(step=step, phase="logprobs")
        if needs_old:
            found = yield from score_tokens(
                run, step, samples.rollouts, rows=rows, weights=run.lagged,
                values=run.has_critic, entropy=recipe.entropy_top_quantile < 1,
            )  # fmt: skip
            samples.old, samples.values, samples.entropy = (
                found.logprobs, found.values, found.entropy,
            )  # fmt: skip
        if run.has_reference:
            found = yield from score_tokens(run, step, samples.rollouts, rows=rows, reference=True)
            samples.reference = found.logprobs


def _look_again(run: Run, samples: Samples, step: int, outcome: Outcome | None) -> Iterator[Event]:
    """Score some groups again with the updated policy, and give the numbers of every token."""
    if outcome is not None and outcome.updates:
        with run.clock.phase("logprobs"):
            if run.recipe.trust == "target":
                yield from measure_after(run, samples, step, outcome)
            groups = samples.groups_to_follow(run.config.record.after_groups)
            rows = [row for group in groups for row in samples.rows_of(group)]
            if rows and samples.after is None:
                found = yield from score_tokens(run, step, samples.rollouts, rows=rows)
                samples.after, samples.after_rows = found.logprobs, set(rows)
    for place, group in enumerate(samples.groups):
        rows = samples.rows_of(place)
        if samples.old is not None and set(rows) <= set(samples.trained):
            yield report.tokens_scored(step, samples, rows, group.index)


def _why_skipped(samples: Samples | None, outcome: Outcome | None) -> str:
    """Why a step made no update; empty if it made one."""
    if samples is None:
        return "no group had answers that score differently, after all refills"
    if outcome is None:
        return "no group had a signal: all answers to a prompt scored the same"
    if outcome.not_finite and not outcome.updates:
        return f"not finite: {outcome.not_finite}"
    return ""


def _commit(
    run: Run, step: int, collected: Collected, samples: Samples | None, outcome: Outcome | None
) -> Iterator[Event]:
    """Take the step into the run's progress and report it."""
    progress = run.progress
    everyone = [r for group in (*collected.groups, *collected.replaced) for r in group.rollouts]
    sampled = sum(len(rollout.ids) for rollout in everyone)
    prompts = sum(len(g.prompt_ids) for g in (*collected.groups, *collected.replaced))
    metrics: dict[str, float] = {}
    if samples is not None:
        metrics |= report.step_metrics(samples, collected, outcome, progress.entropy_bonus)
    metrics["groups/refilled"] = float(len(collected.replaced))
    step_time = run.clock.step_seconds
    let_go(run)
    progress.step = step
    progress.cursor += collected.drawn
    progress.tokens += sampled + prompts
    progress.elapsed += step_time
    metrics["num_tokens"] = float(progress.tokens)
    metrics |= report.time_metrics(run.clock.phases, step_time, sampled)
    metrics |= report.memory_metrics()
    run.last = {name: metrics[name] for name in ("reward", "kl", "loss") if name in metrics}
    finished = StepFinished(
        step=step, metrics=metrics, tokens=progress.tokens, elapsed=progress.elapsed
    )
    yield finished
    yield from run.alerts.observe(finished)
    if collected.is_short:
        yield raised(step, "refills_exhausted", Finding(
            severity="warning",
            explanation=f"After {collected.rounds} refills only {len(collected.groups)} of "
            f"{run.config.rollout.prompts} groups had answers that score differently.",
            remedy="Use harder or easier tasks, larger groups, or more algorithm.refill_rounds.",
        ))  # fmt: skip


def _between_steps(run: Run, outcome: Outcome | None, samples: Samples | None) -> Iterator[Event]:
    """What happens between two steps: the guard, controllers, the reference, looks, checkpoints."""
    config, progress, step = run.config, run.progress, run.step
    yield from _guard(run, outcome, samples)
    yield from _cores(run)
    if run.recipe.entropy_target is not None and outcome is not None and outcome.entropy[1]:
        entropy = outcome.entropy[0] / outcome.entropy[1]
        progress.entropy_control, progress.entropy_bonus = entropy_control(
            progress.entropy_control, entropy, run.recipe.entropy_target
        )
    every = run.recipe.ref_refresh_every
    if every and step % every == 0:
        run.policy.refresh_reference(run.recipe.ref_mix)
        yield NoteWritten(step=step, text="the reference is the policy of this step from here on")
    is_last = step == config.steps
    due = config.evaluation.every and step % config.evaluation.every == 0
    if is_last and config.evaluation.before_and_after:
        yield from _evaluate(run, step, "after")
    elif due:
        yield from _evaluate(run, step, "during")
    asked = run.control.take_checkpoint()
    every = config.checkpoint.every
    is_best = config.checkpoint.best and progress.best_step == step
    if is_last or asked or is_best or (every and step % every == 0):
        yield from save_checkpoint(run)


def _guard(run: Run, outcome: Outcome | None, samples: Samples | None) -> Iterator[Event]:
    """Alert on an update that was not finite; end the run after several in a row."""
    if outcome is None or not outcome.not_finite:
        run.progress.bad_updates = 0
        return
    run.progress.bad_updates += 1
    group = None
    if outcome.culprits and samples is not None:
        group = samples.groups[outcome.culprits[0]].index
    whose = "" if group is None else f" It came from group {group}."
    remedy = "Lower optimizer.learning_rate; on a GPU try model.dtype float32."
    if run.policy.dtype == "float16":
        remedy = "Set model.dtype to bfloat16: float16 holds nothing above 65504."
    yield raised(run.step, "not_finite", Finding(
        severity="error",
        explanation=f"An update was left out because {outcome.not_finite}; the weights are as "
        f"before it.{whose}",
        remedy=remedy,
    ), group)  # fmt: skip
    if run.progress.bad_updates >= BAD_UPDATES:
        raise NotFiniteError(
            f"{BAD_UPDATES} steps in a row had updates that were not finite "
            f"({outcome.not_finite}); the last good checkpoint is in {run.folder}. {remedy}"
        )


def _cores(run: Run) -> Iterator[Event]:
    """Give a core up where other programs keep it, and say so."""
    given_up = run.thread_guard.check()
    if given_up is not None:
        run.threads = given_up.after
        yield raised(run.step, "busy_machine", Finding(
            severity="warning", explanation=given_up.explanation, remedy=given_up.remedy,
            value=given_up.milliseconds, limit=given_up.usual,
        ))  # fmt: skip


def _evaluate(run: Run, step: int, moment: Moment) -> Generator[Event, None, bool]:
    """Evaluate, tell the alerts, and remember the best step; false if a stop cut it short."""
    if not run.task.held_out:
        return True
    evaluation = evaluate(run, step, moment)
    while True:
        try:
            event = next(evaluation)
        except StopIteration as end:
            results = end.value
            break
        yield event
        yield from run.alerts.observe(event)
    progress = run.progress
    best = progress.best_score
    if results.score is not None and step > 0 and (best is None or results.score > best):
        progress.best_step, progress.best_score = step, results.score
    return bool(results.complete)
