"""Start runs in other processes: in the background, or from the queue."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_engine.platform.scratch import scratch
from grpo_tui.app.jobs.detach import spawn, start_detached

if TYPE_CHECKING:
    from grpo_engine.config.settings import RunConfig
    from grpo_tui.app.jobs.sweep import Point, Sweep

CLONE_OF = "clone of"  # the setting of a queued run that names its parent


def detached(config: "RunConfig", store: Path, parent: str = "") -> str:
    """Start a run in the background, wait until it has begun, and return its name."""
    from grpo_engine.config.parse import write_yaml

    with scratch("launch") as folder:
        path = folder / "config.yaml"
        path.write_text(write_yaml(config, only_changed=False), encoding="utf-8")
        return _start("train", str(path), store, parent)


def resume_detached(ref: str, store: Path) -> str:
    """Resume a stored run in the background, wait until it has begun, and return its name."""
    return _start("resume", ref, store)


def _start(verb: str, subject: str, store: Path, parent: str = "") -> str:
    from grpo_tui.experiments.record.recorder import PARENT

    started = start_detached(verb, "--db", str(store), "--", subject, **{PARENT: parent})
    return str(started["name"])


def checked_sweep(
    points: "Sequence[Point]", seeds: int, store: Path, *, later: bool = True
) -> "tuple[Sweep, tuple[str, ...]]":
    """A sweep of these points, and the downloads of its runs; raise if a run would fail."""
    from grpo_engine import consent
    from grpo_tui.app.jobs.start import with_teacher
    from grpo_tui.app.jobs.sweep import sweep_of
    from grpo_tui.app.trial.ready import require_apart

    points = [(point, with_teacher(config, store)) for point, config in points]
    downloads = require_apart([config for _, config in points], later=later)
    for _, config in points:
        consent.begins(config)
    return sweep_of(points, seeds), downloads


def enqueue(config: "RunConfig", store: Path, parent: str = "") -> str:
    """Queue a run and return its name; raise if it would fail."""
    from grpo_engine import consent
    from grpo_tui.app.jobs.start import with_teacher
    from grpo_tui.app.trial.ready import require_apart
    from grpo_tui.experiments.queue import RunQueue
    from grpo_tui.experiments.store import ExperimentStore

    config = with_teacher(config, store)
    require_apart([config], later=True)
    consent.begins(config)
    cloned = {CLONE_OF: parent} if parent else {}
    with ExperimentStore(store) as opened:
        key = RunQueue(opened).add(config, name=config.name, settings=cloned)
    return config.name or f"run {key}"


def enqueue_sweep(
    name: str, points: "Sequence[Point]", seeds: int, store: Path, parent: str = ""
) -> int:
    """Queue a sweep, unless it is queued already, and return the number of its runs."""
    from grpo_tui.experiments.queue import RunQueue
    from grpo_tui.experiments.store import ExperimentStore

    sweep, _ = checked_sweep(points, seeds, store)
    cloned = {CLONE_OF: parent} if parent else {}
    runs = [({**point, **cloned}, tree) for point, tree in sweep.runs]
    with ExperimentStore(store) as opened:
        RunQueue(opened).sweep(name, sweep.axes, runs)
    return len(sweep.runs)


def start_queue_worker(store: Path) -> None:
    """Start a detached process that trains the queued runs."""
    spawn("sweep", "--queue", "--db", str(store))
