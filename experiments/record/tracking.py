"""Live trackers: a process each, which reads the store, so that none can delay or end a run."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from grpo_tui.experiments.processes import environment


def start(tracker: str, store: Path, run: str, after: int, warn: Callable[[str], None]) -> None:
    """Start a tracker's process for a run; `say` is told once if it fails."""
    process = subprocess.Popen(
        [
            sys.executable, "-P", "-m", "grpo_tui.experiments.export.follow",
            store, run, tracker, str(after),
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        start_new_session=True, env=environment(),
    )  # fmt: skip

    def wait() -> None:
        output = process.communicate()[1].decode(errors="replace").split("\n")
        if status := process.returncode:
            reason = next((line for line in reversed(output) if line.strip()), "")
            end = f"signal {-status}" if status < 0 else f"status {status}"
            warn(
                f"{tracker} ended with {end}{': ' if reason else ''}{reason.strip()}; "
                f"the run continues, and `grpo-tui export {run} --format {tracker} --out FOLDER` "
                "writes all of it"
            )

    threading.Thread(target=wait, name=f"tracker {tracker}", daemon=True).start()
