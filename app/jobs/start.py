"""Prepare a run for training: its settings, its folder, its record in the store."""

import json
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from grpo_engine import consent
from grpo_engine.config.parse import build, merge, with_steps
from grpo_engine.config.settings import RunConfig, TeacherConfig
from grpo_engine.control import Control
from grpo_engine.errors import CheckpointError, ConfigError, EngineError
from grpo_engine.evaluation.target import of_run
from grpo_engine.events import (
    EvaluationFinished,
    Event,
    PhaseStarted,
    RunFailed,
    StepFinished,
    warning,
)
from grpo_engine.names import refuse_missing
from grpo_engine.platform.device import require_open_files
from grpo_engine.platform.threads import launched_rank
from grpo_engine.policy.embedded import EMBEDDED
from grpo_engine.rewards.right import Right
from grpo_engine.run.checkpoint import folder as checkpoint_folder
from grpo_engine.run.checkpoint import latest, newest_step
from grpo_tui.app.jobs.power import PowerWatch, awake
from grpo_tui.app.text.words import count_of
from grpo_tui.app.trial.ready import require
from grpo_tui.experiments.db.paths import inside_store, run_folder
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import Recorder, resume_run, start_run
from grpo_tui.experiments.starts import copy_starts

RECORDED_S = 10.0  # the recorder spills much earlier if the store is locked


@dataclass(slots=True, kw_only=True)
class Job:
    """A run that is ready to train; without a recorder it is not stored."""

    config: RunConfig
    folder: Path
    resume: bool
    control: Control = field(default_factory=Control)
    recorder: Recorder | None = None
    follows: bool = False  # another rank records and shows this run
    evaluations: tuple[EvaluationFinished, ...] = ()  # earlier ones of a resumed run

    @property
    def name(self) -> str:
        return self.recorder.name if self.recorder else (self.config.name or self.folder.name)

    def record(self, event: Event) -> None:
        """Pass an event to the recorder, if there is one.

        A checkpoint waits for the record of its steps, which a resumed run does not repeat.
        """
        if self.recorder is None:
            return
        self.recorder.put(event)
        if isinstance(event, PhaseStarted) and event.phase == "checkpoint":
            self.recorder.flush(RECORDED_S)

    def train(self, show: Callable[[Event], None]) -> None:
        """Train on this thread, which must be the engine's: record each event, then show it."""

        def put(event: Event) -> None:
            self.record(event)
            show(event)

        try:
            require_open_files()
            from grpo_engine.trainer import run

            watch = PowerWatch()
            with awake():
                for event in run(self.config, self.control, folder=self.folder, resume=self.resume):
                    if isinstance(event, StepFinished):
                        for notice in watch.events(event.step):
                            put(notice)
                    put(event)
        except BaseException as error:  # for example a failed import, or an error in `show`
            put(
                RunFailed(
                    step=0,
                    error=type(error).__name__,
                    message=str(error),
                    traceback="" if isinstance(error, EngineError) else traceback.format_exc(),
                )
            )

    def close(self, cause: str = "") -> None:
        """Flush and close the store; `cause` is why the run failed."""
        if self.recorder is not None:
            self.recorder.close(cause)


def tried_job(config: RunConfig, store: Path, **options: Any) -> Job:
    """Prepare a new run; raise if it would fail. Call it on the engine's thread."""
    config = with_teacher(config, store)
    if launched_rank() is None:  # several machines must be connected before it can be checked
        require(config)
    return new_job(config, store, **options)


def new_job(
    config: RunConfig,
    store: Path,
    *,
    folder: Path | None = None,
    tags: tuple[str, ...] = (),
    parent: str = "",
    control: Control | None = None,
) -> Job:
    """Prepare a new run; in a folder of its own it is not stored."""
    if launched_rank():
        return follower(config, resume=False)
    config = with_pass_rates(with_teacher(config, store), store)
    control = control or Control()
    recorder = None
    if folder is None:
        start, origin = copy_starts(store, config.model_dump())
        config = build(merge(config.model_dump(mode="json"), start)) if start else config
        recorder = start_run(
            store, config, name=config.name, control=control, tags=tags, parent=parent or origin
        )
        folder = recorder.folder
    return Job(config=config, folder=folder, resume=False, recorder=recorder, control=control)


def with_pass_rates(config: RunConfig, store: Path) -> RunConfig:
    """Write the pass rates of a run that `task.pass_rates` names to a file, and name the file."""
    named = config.task.pass_rates
    if not named or Path(named).expanduser().exists():
        return config
    try:
        with StoreReader(store) as reader:
            run = reader.resolve(named)
            scores, settings = reader.scores(run.key), reader.run(run.key).config
    except StoreError as error:
        raise ConfigError(
            f"task.pass_rates {named!r} is neither a file nor a run of the store: {error}",
            "task.pass_rates",
        ) from error
    rates, answers = dict[str, float](), 0
    tasks = settings.get("task", {}).get("others", {})  # another trainer's run may have none
    for key, columns in scores.items():
        task = next((task for label, task in tasks.items() if key.startswith(f"{label}/")), None)
        rule = (task or settings.get("evaluation", {})).get("accuracy", "")
        right = Right.of(rule, "", list(columns))
        values = columns.get(right.function, ())
        if any(value is not None for value in values):
            rates[key] = fmean(map(right.accepts, values))
            answers = max(answers, len(values))
    if not rates:
        raise ConfigError(
            f"task.pass_rates: run {run.name} has no answers to training problems that are known "
            "to be right or wrong; name another run",
            "task.pass_rates",
        )
    file = inside_store(run_folder(store, run.id), "pass-rates.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"answers": answers, "pass_rates": rates}), encoding="utf-8")
    changed = config.task.model_copy(update={"pass_rates": str(file)})
    return config.model_copy(update={"task": changed})


def with_teacher(config: RunConfig, store: Path) -> RunConfig:
    """Replace `RUN` or `RUN:STEP` in `teacher.path` by a checkpoint, the best one by default."""
    named = config.teacher.path
    if not named or "/" in named or named in EMBEDDED or Path(named).expanduser().exists():
        return config
    try:
        folder, step = folder_and_step(named, store)
        target = of_run(folder, {}, step)
    except (StoreError, CheckpointError) as error:
        raise ConfigError(
            f"teacher.path {named!r} is neither a model nor a run of the store: {error}",
            "teacher.path",
        ) from error
    path = str(checkpoint_folder(folder, target.step))
    return config.model_copy(update={"teacher": TeacherConfig(path=path)})


def folder_and_step(ref: str, store: Path) -> tuple[Path, int | None]:
    """Read `RUN` or `RUN:STEP`; return the folder of the run, and the step if there is one."""
    name, colon, digits = ref.rpartition(":")
    run, step = (name, int(digits)) if colon and digits.isdigit() else (ref, None)
    with StoreReader(store) as reader:
        return run_folder(store, reader.trained(run, "load").summary.id), step


def resumed_job(
    run: str, store: Path, *, control: Control | None = None, steps: int | None = None
) -> Job:
    """Prepare a run from its last checkpoint, or from the start if it has none.

    `run` refers to one in the store, or is the folder of one that is not stored, with a `/`.
    `steps` is a new number of steps.
    """
    if launched_rank():
        return follower(RunConfig(), resume=True)
    if "/" in run and (folder := Path(run)).is_dir():
        saved, _ = latest(folder)
        if saved is None:
            raise CheckpointError(
                f"{folder} holds no checkpoint to resume from; start again with `train`"
            )
        config = _resumable(consent.build(saved.state["config"], str(folder)), steps, saved.step)
        return Job(config=config, folder=folder, resume=True)
    control = control or Control()
    with StoreReader(store) as reader:
        detail = reader.resumable(run)
        summary = detail.summary
        evaluations = reader.evaluations(summary.key)
    if summary.status == "completed" and steps is None:
        raise CheckpointError(
            f"run {summary.name} is complete at step {summary.step}; "
            f"`grpo-tui resume {summary.name} --steps N` continues it to step N"
        )
    step = newest_step(run_folder(store, summary.id))
    config = _resumable(consent.build(detail.config, f"run {summary.name}"), steps, step)
    recorder = resume_run(
        store,
        summary.key,
        from_step=step,
        control=control,
        config=None if steps is None else config,
    )
    job = Job(
        config=config,
        folder=recorder.folder,
        resume=True,
        recorder=recorder,
        control=control,
        evaluations=tuple(event for event in evaluations if event.step <= step),
    )
    if step < 0 and (redone := summary.step):
        text = f"no checkpoint: the run begins again and redoes {count_of(redone, 'step')}"
        job.record(warning(0, text))
    return job


def _resumable(config: RunConfig, steps: int | None, step: int) -> RunConfig:
    """Return the settings with a number of steps; raise if they cannot be resumed."""
    refuse_python_objects(config)
    return config if steps is None else with_steps(config, steps, step)


def refuse_python_objects(config: RunConfig) -> None:
    """Raise if only a Python process that has the run's functions can resume it."""
    named = {
        "task": [config.task.name],
        "reward": config.rewards.functions,
        "function": config.algorithm.choices,
        "tool": config.task.tools,
        "environment": config.task.environments.values(),
    }
    for role, names in named.items():
        for name in names:
            refuse_missing(name, role)


def follower(config: RunConfig, *, resume: bool) -> Job:
    """Prepare another rank's part of a run: settings, checkpoints and records are rank 0's."""
    folder = Path(tempfile.mkdtemp(prefix="grpo-tui-rank-"))
    return Job(config=config, folder=folder, resume=resume, follows=True)
