"""Start a run in the background: the same command in its own session."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence

from grpo_engine.platform.scratch import scratch
from grpo_tui.app import exit_codes
from grpo_tui.app.text.stderr import print_stderr
from grpo_tui.experiments.db.texts import visible
from grpo_tui.experiments.processes import environment

READY = "--ready-file"
PATIENCE = 600.0  # seconds; a model may have to be downloaded
TICK = 0.05


def start_detached(arguments: Sequence[str], *, as_json: bool) -> int:
    """Start `grpo-tui ARGUMENTS` detached from this terminal and print the run's name."""
    # options end at --, after which even a name such as --help is one
    end = arguments.index("--") if "--" in arguments else len(arguments)
    with scratch("detach") as folder:
        ready, log = folder / "ready.json", folder / "said.txt"
        with log.open("wb") as output:
            child = subprocess.Popen(
                command(*arguments[:end], READY, str(ready), *arguments[end:]),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
                start_new_session=True,
                env=environment(),
            )
        deadline = time.monotonic() + PATIENCE
        while not ready.exists() and child.poll() is None and time.monotonic() < deadline:
            time.sleep(TICK)
        if not ready.exists():
            print_stderr(log.read_text(encoding="utf-8", errors="replace").rstrip("\n"))
            return child.returncode or exit_codes.FAILED
        started = json.loads(ready.read_text(encoding="utf-8"))
        if started["failed"]:
            print_stderr(f"grpo-tui: {started['failed']}")
            return child.wait() or exit_codes.FAILED
    sys.stdout.write(
        (json.dumps({**started, "pid": child.pid}) if as_json else visible(started["name"])) + "\n"
    )
    return exit_codes.OK


def command(*arguments: str) -> list[str]:
    """Return the command line of `grpo-tui ARGUMENTS`; it ignores modules in the working folder."""
    return [sys.executable, "-P", "-m", "grpo_tui", *arguments]
