"""Where a run goes: a row and a folder of the store, or a folder alone."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.jobs.headless import Job
from experiments.db.paths import run_folder, runs_folder, store_path
from experiments.values import RunDetail
from grpo_engine.config.run_config import RunConfig
from grpo_engine.config.settings import build
from grpo_engine.control import Control
from grpo_engine.errors import CheckpointError
from grpo_engine.platform.threads import launched_rank
from grpo_engine.run.checkpoint import latest, newest_step


def new_job(
    config: RunConfig, *, db: Path | None, folder: Path | None, store: bool, tags: tuple[str, ...]
) -> Job:
    """A run from the start."""
    if follows():
        return follower(config, resume=False)
    if not store:
        return Job(config=config, folder=folder or loose_folder(config, db), resume=False)
    from experiments.record.recorder import Recorder
    from grpo_engine.versions import versions

    control = Control()
    recorder = Recorder(store_path(db))
    with closing_on_error(recorder):
        handle = recorder.start_run(
            config,
            name=config.name,
            control=control,
            code_version=versions().get("grpo-tui", ""),
            tags=tags,
        )
    return Job(
        config=config, folder=handle.folder, resume=False, recorder=recorder, handle=handle,
        control=control,
    )  # fmt: skip


def resumed_job(run: str, *, db: Path | None, folder: Path | None) -> Job:
    """A run from its last checkpoint, or from the start where it has none."""
    if follows():
        return follower(RunConfig(), resume=True)
    if folder is not None:
        saved, _ = latest(folder)
        if saved is None:
            raise CheckpointError(f"{folder} holds no checkpoint to resume from; train anew")
        return Job(config=build(saved.state["config"], str(folder)), folder=folder, resume=True)
    from experiments.record.recorder import Recorder

    control, path = Control(), store_path(db)
    found = find_run(run, path)
    recorder = Recorder(path)
    with closing_on_error(recorder):
        config = build(found.config, f"run {found.summary.name}")
        step = newest_step(run_folder(path, found.summary.id))
        handle = recorder.resume_run(found.summary.id, from_step=step, control=control)
    return Job(
        config=config, folder=handle.folder, resume=True, recorder=recorder, handle=handle,
        control=control,
    )  # fmt: skip


def follows() -> bool:
    """Whether a launcher made this process a rank that does not record the run."""
    return bool(launched_rank())


def follower(config: RunConfig, *, resume: bool) -> Job:
    """A rank's part of a run: settings, checkpoints and records are rank 0's."""
    folder = Path(tempfile.mkdtemp(prefix="grpo-tui-rank-"))
    return Job(config=config, folder=folder, resume=resume, follows=True)


def find_run(run: str, path: Path) -> RunDetail:
    """The stored run of a name or id; one that is being worked on cannot be resumed."""
    from experiments.reader import StoreReader

    reader = StoreReader(path)
    try:
        found = reader.run(reader.resolve(run).key)
    finally:
        reader.close()
    summary = found.summary
    if summary.active:
        raise CheckpointError(
            f"run {summary.name} is {summary.status}: `grpo-tui stop {summary.name}` first"
        )
    return found


def loose_folder(config: RunConfig, db: Path | None) -> Path:
    """A fresh folder beside the stored runs' for a run that is not stored."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return runs_folder(store_path(db)) / f"{config.name or 'run'}-{stamp}"


@contextmanager
def closing_on_error(recorder: object) -> Iterator[None]:
    """Let the store go where a run cannot begin."""
    try:
        yield
    except BaseException:
        recorder.close()  # type: ignore[attr-defined]
        raise
