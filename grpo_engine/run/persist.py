"""Saves a run to a checkpoint and restores it, with everything that affects later steps."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from grpo_engine.config import mismatch
from grpo_engine.config.parse import flatten
from grpo_engine.config.removed import without_removed
from grpo_engine.config.settings import RunConfig
from grpo_engine.control import StopNow
from grpo_engine.cpu import blas
from grpo_engine.distributed.ranks import Ranks
from grpo_engine.errors import CheckpointError, NotWrittenError
from grpo_engine.events import (
    CheckpointSaved,
    Event,
    NoteWritten,
    PhaseStarted,
    RunPaused,
    RunResumed,
    warning,
)
from grpo_engine.policy.memory import MemoryPlan
from grpo_engine.policy.optimizer import Learner
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.source import on_cpu
from grpo_engine.rollouts.decode import pause_or_stop
from grpo_engine.run import checkpoint
from grpo_engine.run.backend import Snapshot, StepContext
from grpo_engine.run.checkpoint import Checkpoint
from grpo_engine.run.session import EngineRun, Progress
from grpo_engine.versions import versions

# Settings that may change on resume; a note says what depends on them.
FREE = ("name", "steps")
OTHER_NOISE = (
    "the version that wrote this checkpoint gave a prompt that occurs twice in a step the same "
    "answers both times: steps with such a prompt are not bit-identical to the unbroken run's"
)
OTHER_REFILLS = (
    "the version that wrote this checkpoint replaced groups by their total reward; from here on "
    "they are judged by refill_on of algorithm.options"
)
MAY_DIFFER = "numbers may differ from an unbroken run's"
SAME_TO_TOLERANCE = (
    "numbers equal an unbroken run's to float tolerance, not to the bit, because sums are made in "
    "another order"
)
EARLY_HEAD_CHUNK, EARLY_GPU_HEAD_CHUNK = 64, 256  # early checkpoints name none
RETRY_S = 1.0
TENSORS = ("trained", "optimizer", "reference", "lagged", "critic", "critic_optimizer")


def save_checkpoint(run: EngineRun) -> Iterator[Event]:
    """Write the state after the last finished step, then remove old checkpoints.

    During a step it writes the stored state and emits no phase event.
    """
    step = run.step
    if not run.ranks.leads:
        run.saved_step = step
        return
    if run.step_state is None:
        yield PhaseStarted(step=step, phase="checkpoint")
    if run.control.stop_now:
        raise StopNow(f"the checkpoint of step {step} was left out")
    begun = run.clock.now()
    progress = run.progress
    best = progress.best_step if run.config.checkpoint.best_by != "none" else None
    try:
        kept = run.step_state or _with_lagged(run, (yield from run.backend.save(_context(run))))
        saved = checkpoint.save(
            run.folder,
            step,
            write=kept.write,
            tensors=kept.tensors,
            state={**_state(run), **kept.state},
        )
        checkpoint.prune(run.folder, keep=run.config.checkpoint.keep, best=best)
        run.backend.keep(checkpoint.steps(run.folder))
    except NotWrittenError as error:
        if not run.unsaved:
            text = f"{error}. Earlier checkpoints stay; the write is tried again after each step."
            yield warning(step, text)
        run.unsaved = str(error)
        return
    run.saved_step = step
    if run.unsaved:
        run.unsaved = ""
        yield NoteWritten(step=step, text="checkpoints can be written again")
    yield CheckpointSaved(
        step=step,
        path=str(saved.path),
        best=best == step,
        seconds=run.clock.now() - begun,
        best_by=(run.progress.best_metric or "") if best == step else "",
    )


def save_if_needed(run: EngineRun, *, planned_anew: bool = False) -> Iterator[Event]:
    """Between steps: save if requested, scheduled, planned anew, the best so far, or the last."""
    config, step = run.config.checkpoint, run.step
    is_requested = run.control.pop_checkpoint()
    is_scheduled = config.every and step % config.every == 0
    is_best = config.best_by != "none" and run.progress.best_step == step
    is_needed = is_requested or is_scheduled or is_best or planned_anew
    if is_needed or run.unsaved or run.is_complete:
        yield from save_checkpoint(run)


def save_last(run: EngineRun) -> Iterator[Event]:
    """Save at the end of the run. Where that fails, wait until it can be written, or for a stop."""
    yield from save_checkpoint(run)
    if not run.unsaved:
        return
    if not run.control.stop_after_step:
        yield RunPaused(step=run.step, reason=run.unsaved)
        while run.unsaved and not run.control.stop_after_step:
            run.control.wait(RETRY_S)
            yield from save_checkpoint(run)
        yield RunResumed(step=run.step)
    if run.unsaved:
        text = f"the run ends without a checkpoint of step {run.step}: {run.unsaved}"
        yield warning(run.step, text)


def save_after_failure(run: EngineRun) -> Iterator[Event]:
    """Save the last finished step of a run that fails, if the state after it is still there."""
    is_there = run.step_state is not None or not run.is_changing
    if is_there and 0 < run.step != run.saved_step and run.ranks.size == 1:
        yield from save_checkpoint(run)


def store_state(run: EngineRun) -> None:
    """Keep the state after the last finished step, so that it can be saved during the next one."""
    state = run.backend.snapshot()
    run.step_state = None if state is None else _with_lagged(run, state)


def drop_state(run: EngineRun, *, changing: bool = False) -> None:
    """Drop the stored state; before the weights change, only if memory cannot hold both."""
    run.is_changing = changing
    if not changing or run.config.model.tuning == "full":
        run.step_state = None


def share_checkpoint(ranks: Ranks, saved: Checkpoint | None) -> Checkpoint | None:
    """Send rank 0's checkpoint to the other ranks, whose machines may have no copy."""
    if ranks.size == 1:
        return saved
    path, state = ranks.broadcast((str(saved.path), dict(saved.state)) if saved else ("", None))
    if state is None:
        return None
    arrays = {
        name: ranks.broadcast_arrays(saved.tensors(name) if saved else {})
        for name in TENSORS
        if f"{name}.safetensors" in state["files"]
    }
    return Checkpoint(step=state["step"], path=Path(path), state=state, arrays=arrays)


def _context(run: EngineRun) -> StepContext:
    """The last finished step; a request for a checkpoint waits for the one that is written."""
    return StepContext(step=run.step, requests=partial(pause_or_stop, run.control, run.step))


def _with_lagged(run: EngineRun, state: Snapshot) -> Snapshot:
    """The state with the sampler's weights, if these lag behind the policy."""
    if run.sampler_weights is None:
        return state
    return replace(state, tensors={**state.tensors, "lagged": run.sampler_weights})


def _state(run: EngineRun) -> dict[str, Any]:
    return {
        "progress": asdict(run.progress),
        "alerts": run.alerts.state(),
        "config": run.config.model_dump(mode="json"),
        "settled": mismatch.correction(run.config.algorithm.resolved(), run.recipe),
        **run.plan._asdict(),
        "threads": run.threads,
        "kernels": _kernels(),
        "versions": dict(versions()),
        "fingerprint": run.fingerprint,
        "model": run.policy.fingerprint,
        "teacher": getattr(run.policy.teacher, "fingerprint", ""),
        "functions": _functions(run),
        "noise": run.sampling.noise,
    }


def restore(run: EngineRun, saved: Checkpoint) -> Iterator[Event]:
    """Restore a run from a checkpoint; warn if threads, versions, data or noise differ."""
    state = saved.state
    _refuse_changed_teacher(run, state)
    yield from run.backend.restore(saved, _context(run))
    run.sampler_weights = saved.tensors("lagged") if saved.has("lagged") else None
    run.progress = TypeAdapter(Progress).validate_python(state["progress"])
    yield from _note_changed_steps(run, int(state["config"]["steps"]))
    run.alerts.restore(state["alerts"])
    run.saved_step = saved.step
    for name, then, now, effect in _changes(run, state):
        yield warning(run.step, f"{name} was {then} and is {now}: {effect}")
    for note in without_removed(state["config"])[1].values():
        yield warning(run.step, note)
    noise = state.get("noise", 1)
    run.sampling = replace(run.sampling, noise=max(noise, 2))  # the answers of the unbroken run
    if noise < 2:
        yield warning(run.step, OTHER_NOISE)
        if run.recipe.refill_rounds:
            yield warning(run.step, OTHER_REFILLS)


def _refuse_changed_teacher(run: EngineRun, state: Mapping[str, Any]) -> None:
    """A run that learned from two teachers would be nobody's repetition."""
    then, now = state.get("teacher", ""), getattr(run.policy.teacher, "fingerprint", "")
    if then != now:
        raise CheckpointError(
            f"the content of teacher.path {run.config.teacher.path} was {then[:12] or 'unknown'} "
            f"and is {now[:12]}: restore the teacher, or clone the run to go on with this one",
            "teacher.path",
        )


def saved_plan(config: RunConfig, state: Mapping[str, Any]) -> MemoryPlan:
    """The plan of a checkpoint; early ones had rows and layers as set, and a fixed head chunk."""
    return MemoryPlan(
        int(state["micro_rows"]),
        bool(state.get("grad_checkpoint", config.model.grad_checkpoint == "on")),
        int(state.get("head_chunk", EARLY_HEAD_CHUNK if on_cpu() else EARLY_GPU_HEAD_CHUNK)),
        int(state.get("max_rows", config.rollout.max_rows or config.training.rows)),
    )


def begin_with(policy: Policy, learner: Learner, critic: Learner | None, folder: Path) -> None:
    """Begin a new run with the optimiser's state, and the critic, of another run's checkpoint."""
    saved = checkpoint.open_folder(folder)
    try:
        learner.restore(saved.tensors("optimizer"), policy.snapshot())
        if critic is not None and saved.has("critic"):
            policy.load_critic(saved.tensors("critic"))
            critic.restore(saved.tensors("critic_optimizer"), policy.critic_weights())
    except (CheckpointError, ValueError) as error:
        raise CheckpointError(
            f"optimizer.start {folder}: {error}; it must be a checkpoint of a run with the same "
            "optimiser, and the same model.adapter or model.path",
            "optimizer.start",
        ) from error


def _note_changed_steps(run: EngineRun, before: int) -> Iterator[Event]:
    """Forget what ended a run that now continues; say if its learning rate does not."""
    config = run.config
    if config.steps == before:
        return
    run.progress.ended_by, run.progress.watched = "", {}
    if config.optimizer.schedule != "constant":
        yield warning(
            run.step,
            f"the learning rate follows a {config.optimizer.schedule} schedule over "
            f"{config.steps} steps from here on; up to step {run.step} it was over {before}",
        )


def _changes(run: EngineRun, state: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any, str]]:
    """What of this run differs from the saved one, then and now; early checkpoints lack some."""
    current, model = versions(), run.policy.fingerprint
    compared = [
        ("the number of threads", state["threads"], run.threads, SAME_TO_TOLERANCE),
        ("the number of processes that compute", state.get("workers", 1), 1, SAME_TO_TOLERANCE),
        (
            "the code of matrix products",
            state.get("kernels", _kernels()),
            _kernels(),
            SAME_TO_TOLERANCE,
        ),
        *(
            (f"the version of {name}", then, current.get(name, "not installed"), MAY_DIFFER)
            for name, then in state["versions"].items()
        ),
        ("the data set", state["fingerprint"][:12], run.fingerprint[:12], MAY_DIFFER),
        (
            f"the content of {run.policy.folder}",
            state.get("model", model)[:12],
            model[:12],
            MAY_DIFFER,
        ),
        *(
            (f"the file of {name}", then[:12], _functions(run).get(name, "")[:12], MAY_DIFFER)
            for name, then in state.get("functions", {}).items()
        ),
    ]
    return (item for item in compared if item[1] != item[2])


def _functions(run: EngineRun) -> dict[str, str]:
    """The functions of the user in the recipe, and the hashes of their files."""
    return {str(f): f.source["sha256"] for f in run.recipe.functions.values()}


def _kernels() -> str:
    library = blas.state()
    return library.kernels if library is not None else ""


def check_same_settings(config: RunConfig, saved: Checkpoint) -> None:
    then = flatten(RunConfig.model_validate(saved.state["config"]))
    changed = [
        f"{name} {then.get(name)!r} -> {value!r}"
        for name, value in flatten(config).items()
        if name not in FREE and value != then.get(name)
    ]
    if changed:
        raise CheckpointError(
            f"{saved.path} was made with other settings ({', '.join(changed[:5])}); a run keeps "
            "its settings: clone it to change them"
        )
