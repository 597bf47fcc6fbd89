"""Bookkeeping around a step: start, end, and checks between steps."""

from collections.abc import Iterator, Mapping

import mlx.core as mx

from grpo_engine.alerts.rules import Alert
from grpo_engine.alerts.state import raised
from grpo_engine.config.stop_when import StopRule
from grpo_engine.errors import BrokenEnvironmentError, NotFiniteError
from grpo_engine.events import Event, NoteWritten, StepFinished
from grpo_engine.platform.footprint import memory_metrics
from grpo_engine.run.persist import drop_state, store_state
from grpo_engine.run.session import EngineRun
from grpo_engine.training import report
from grpo_engine.training.first_steps import reward_notes
from grpo_engine.training.samples import Experience, failures
from grpo_engine.training.sampling import SampledGroups
from grpo_engine.training.update import UpdateResult

MAX_BAD_UPDATES = 3  # consecutive bad updates that end a run
MAX_FAILED_STEPS = 5  # consecutive steps in which every environment failed


def begin_step(run: EngineRun) -> None:
    """Start the clock, reset peak memory, and keep the state for a checkpoint."""
    run.clock.start_step()
    store_state(run)
    run.policy.forget_peak_memory()  # the peak excludes an earlier evaluation
    run.earlier_peak = run.update_peak = 0
    run.is_planned_anew = False


def why_skipped(experience: Experience | None, result: UpdateResult | None) -> str:
    """Why a step made no update; empty if it made one."""
    if experience is None:
        return "no group had answers that score differently, after all refills"
    if result is None:
        if all(rollout.failed for rollout in experience.samples.rollouts):
            return "the environment failed for every answer"
        if all(total is None for group in experience.samples.groups for total in group.totals):
            return "no answer got a reward"
        return "no group had a signal: all answers to a prompt scored the same"
    if result.not_finite and not result.updates:
        return f"not finite: {result.not_finite}"
    return ""


def finish_step(
    run: EngineRun,
    step: int,
    sampled: SampledGroups,
    experience: Experience | None,
    result: UpdateResult | None,
) -> Iterator[Event]:
    """Update the run's progress, report the step, and raise its alerts."""
    progress = run.progress
    rollouts = [rollout for group in sampled.all for rollout in group.rollouts]
    sampled_tokens = sum(rollout.length for rollout in rollouts)
    prompt_tokens = sum(len(group.prompt_ids) for group in sampled.all)
    metrics: dict[str, float] = {}
    if experience is not None:
        metrics |= report.step_metrics(experience, result, progress.entropy_bonus)
    metrics["groups/refilled"] = float(len(sampled.replaced))
    if sampled.replaced:  # the kept groups' rewards differ, so their means say little
        means = report.mean_rewards(sampled.all)
        metrics |= {f"sampled/{name}": mean for name, mean in means.items()}
    metrics |= report.task_metrics(run, sampled.all)
    counts = failures(sampled.all)
    metrics |= {f"rewards/{name}/failed": float(count) for name, count in counts.items()}
    if sampled.drawing.passed_over:
        metrics["prompts/passed_over"] = float(sampled.drawing.passed_over)
    step_time = run.clock.step_seconds
    drop_state(run)
    progress.step = step
    sampled.drawing.finish(sampled.all)
    progress.tokens += sampled_tokens + prompt_tokens
    progress.elapsed += step_time
    metrics["num_tokens"] = float(progress.tokens)
    written = 0 if run.recipe.demonstrates else sampled_tokens
    metrics |= report.time_metrics(run.clock, step_time, written)
    metrics["memory/peak_gb"] = max(run.earlier_peak, run.policy.peak_memory) / 1e9
    metrics |= memory_metrics()
    run.last_metrics = {name: metrics[name] for name in ("reward", "kl", "loss") if name in metrics}
    mx.synchronize()  # no number of a failed command buffer is recorded
    finished = StepFinished(
        step=step, metrics=metrics, tokens=progress.tokens, elapsed=progress.elapsed
    )
    yield finished
    yield from run.alerts.observe(finished)
    if not run.recipe.demonstrates:
        yield from reward_notes(run, step)
    prompts = run.config.rollout.prompts
    if len(sampled.groups) < prompts and not run.alerts.is_solving(step):
        yield raised(
            step,
            "refills_exhausted",
            Alert(
                "warning",
                f"After {sampled.refills} refills only {len(sampled.groups)} of {prompts} groups "
                "had answers that score differently.",
                "Use harder or easier tasks, larger groups, or more algorithm.refill_rounds.",
            ),
        )
    yield from end_if_met(run, {**metrics, "step": run.step})
    yield from check_finite(run, result)
    yield from free_core(run)


def end_if_met(run: EngineRun, metrics: Mapping[str, float]) -> Iterator[Event]:
    """Make this step the run's last if `stop_when` holds for its metrics and earlier ones."""
    progress, text = run.progress, run.config.stop_when
    if not text or progress.ended_by:
        return
    progress.ended_by = StopRule(text).observe(metrics, progress.watched)
    if progress.ended_by:
        yield NoteWritten(
            step=run.step, text=f"stop_when {text!r} holds, so the run ends: {progress.ended_by}"
        )


def check_finite(run: EngineRun, result: UpdateResult | None) -> Iterator[Event]:
    """Raise an alert for an update that was not finite; end the run after several in a row."""
    if result is None or not result.not_finite:
        run.progress.bad_updates = 0
        return
    run.progress.bad_updates += 1
    group, culprit = None, ""
    if result.culprit is not None:
        group = result.experience.samples.groups[result.culprit].index
        culprit = f" It came from group {group}."
    remedy = "Lower optimizer.learning_rate; on a GPU try model.dtype float32."
    if run.policy.dtype == "float16":
        remedy = "Set model.dtype to bfloat16: float16 holds nothing above 65504."
    if functions := ", ".join(run.recipe.functions.values()):
        remedy = f"See whether {functions} can give NaN or infinity. {remedy}"
    yield raised(
        run.step,
        "not_finite",
        Alert(
            "error",
            f"An update was left out because {result.not_finite}; the weights are as "
            f"before it.{culprit}",
            remedy,
        ),
        group,
    )
    if run.progress.bad_updates >= MAX_BAD_UPDATES:
        raise NotFiniteError(
            f"{MAX_BAD_UPDATES} steps in a row had updates that were not finite "
            f"({result.not_finite}); the last good checkpoint is in {run.folder}. {remedy}"
        )


def check_environments(run: EngineRun, sampled: SampledGroups) -> None:
    """End the run after several steps in which the environment failed for every rollout."""
    rollouts = [rollout for group in sampled.all for rollout in group.rollouts]
    if not all(rollout.failed for rollout in rollouts):
        run.progress.failed_steps = 0
        return
    run.progress.failed_steps += 1
    if run.progress.failed_steps >= MAX_FAILED_STEPS:
        error = next(span.error for span in rollouts[0].spans if span.error)
        raise BrokenEnvironmentError(
            f"the environment failed for every answer of {MAX_FAILED_STEPS} steps in a row "
            f"({error}); correct it, and resume the run"
        )


def free_core(run: EngineRun) -> Iterator[Event]:
    """Use one thread fewer if other programs keep a core busy, and raise an alert."""
    change = run.thread_guard.check()
    if change is not None:
        run.threads = change.after
        yield raised(
            run.step,
            "busy_machine",
            Alert("warning", change.explanation, change.remedy, change.milliseconds, change.usual),
        )
