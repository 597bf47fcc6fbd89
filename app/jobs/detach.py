"""Start this program in another process, for example for a run in the background."""

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from grpo_engine.platform.scratch import scratch
from grpo_engine.platform.spawn import NULL, Child, Scope, start
from grpo_tui.app import exit_codes
from grpo_tui.experiments.processes import environment

READY = "GRPO_TUI_READY"  # names the file in which the new process reports its start
PATIENCE = 600.0  # seconds; a model may have to be downloaded
TICK = 0.05


class LaunchError(RuntimeError):
    """A run could not be started in its own process; `log` is the output of that process."""

    def __init__(self, log: str, code: int) -> None:
        super().__init__(log.rpartition("\n")[2] or f"the new process ended with status {code}")
        self.log, self.code = log, code


def start_detached(*arguments: str, **variables: str) -> dict[str, Any]:
    """Start `grpo-tui ARGUMENTS` detached, wait until its run has begun, and return its names."""
    with scratch("detach") as folder:
        ready, log = folder / "ready.json", folder / "log.txt"
        with log.open("wb") as output:
            child = spawn(
                *arguments,
                streams=(NULL, NULL, output.fileno()),
                scope="session",
                **{READY: str(ready)},
                **variables,
            )
        deadline = time.monotonic() + PATIENCE
        while not ready.exists() and child.poll() is None and time.monotonic() < deadline:
            time.sleep(TICK)
        if not ready.exists():
            text = log.read_text(encoding="utf-8", errors="replace").strip()
            raise LaunchError(text, child.returncode or exit_codes.FAILED)
        started: dict[str, Any] = json.loads(ready.read_text(encoding="utf-8"))
        if started["failed"]:
            raise LaunchError(f"grpo-tui: {started['failed']}", child.wait() or exit_codes.FAILED)
    return {**started, "pid": child.pid}


def spawn(
    *arguments: str,
    streams: Sequence[int] = (NULL, NULL, NULL),
    scope: Scope = "session",
    **variables: str,
) -> Child:
    """Start `grpo-tui ARGUMENTS`, with these variables of the environment."""
    return start(command(*arguments), {**environment(), **variables}, streams, scope=scope)


def command(*arguments: str) -> list[str]:
    """Return the command line of `grpo-tui ARGUMENTS`; it ignores modules in the working folder."""
    return [sys.executable, "-P", "-m", "grpo_tui", *arguments]
