"""Start runs outside this process: detached, or handed over when the workbench closes."""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_tui.app.jobs.detach import command
from grpo_tui.experiments.processes import environment

if TYPE_CHECKING:
    from grpo_engine.config.settings import RunConfig

PATIENCE = 600.0
CLONE_OF = "clone of"  # the setting of a queued run that names its parent


class LaunchError(RuntimeError):
    """A run could not be started in its own process."""


def detached(config: "RunConfig", store: Path, parent: str = "") -> str:
    """Start a run in the background, wait until it has begun, and return its name."""
    from grpo_engine.config.parse import write_yaml

    with tempfile.TemporaryDirectory(prefix="grpo-tui-") as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(write_yaml(config, only_changed=False), encoding="utf-8")
        return _start(["train", str(path)], store, parent)


def resume_detached(ref: str, store: Path) -> str:
    """Resume a stored run in the background, wait until it has begun, and return its name."""
    return _start(["resume", ref], store)


def _start(arguments: list[str], store: Path, parent: str = "") -> str:
    from grpo_tui.experiments.record.recorder import PARENT

    done = subprocess.run(
        command(*arguments, "--detach", "--json", "--db", str(store)),
        capture_output=True, text=True, timeout=PATIENCE,
        stdin=subprocess.DEVNULL, env={**environment(), PARENT: parent}, check=False,
    )  # fmt: skip
    if done.returncode:
        raise LaunchError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else
                          f"the new process ended with status {done.returncode}")  # fmt: skip
    return str(json.loads(done.stdout.strip().splitlines()[-1])["name"])


def enqueue(config: "RunConfig", store: Path, parent: str = "") -> str:
    """Queue a run and return its name."""
    from grpo_tui.experiments.queue import RunQueue
    from grpo_tui.experiments.store import ExperimentStore

    opened = ExperimentStore(store)
    try:
        cloned = {CLONE_OF: parent} if parent else {}
        key = RunQueue(opened).add(config, name=config.name, settings=cloned)
    finally:
        opened.close()
    return config.name or f"run {key}"


def start_queue_worker(store: Path) -> None:
    """Start a detached process that trains the queued runs."""
    subprocess.Popen(
        command("sweep", "--queue", "--db", str(store)), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        env=environment(),
    )  # fmt: skip
