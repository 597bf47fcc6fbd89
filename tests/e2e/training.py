"""Runs of the real command for tests: a tiny world, a separate process, and facts by step."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_engine.config.parse import write_yaml
from tests.patience import until

ROOT = Path(__file__).resolve().parents[2]
FACTS = {"GroupScored", "TokensScored", "PassFinished", "StepFinished"}
TIMED = ("time/", "memory/", "step_time", "tokens_per_second")


def write_config(world: Path, file: Path, **changes: Any) -> Path:
    """Write the settings of a small run as YAML."""
    from tests.engine.runs import settings  # loads MLX, which readers of events must not load

    file.write_text(write_yaml(settings(world, **changes)))
    return file


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-P", "-m", "grpo_tui", *map(str, words)]


def _own_path() -> list[str]:
    return [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]


def environment(home: Path) -> dict[str, str]:
    """One thread, the tree's packages, and a separate store."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *_own_path()]),
        "GRPO_TUI_DB": str(home / "store.db"),
        "OPENBLAS_NUM_THREADS": "1",
        "HOME": str(home),
    }


def grpo_tui(
    home: Path, *words: str | Path, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run the command to completion."""
    return subprocess.run(
        command(*words),
        capture_output=True,
        text=True,
        timeout=240,
        env=environment(home) | variables,
        check=False,
    )


def start(home: Path, *words: str | Path, out: Path) -> "subprocess.Popen[bytes]":
    """Start the command with its output in a file."""
    with out.open("wb") as file:
        return subprocess.Popen(
            command(*words), stdout=file, stderr=subprocess.STDOUT, env=environment(home)
        )


def wait_for(file: Path, text: str) -> None:
    """Wait until a growing file contains the text."""

    def held() -> str:
        return file.read_text(errors="replace")

    until(lambda: text in held(), lambda: f"no {text!r} in:\n{held()}")


HELD = """
import time
from pathlib import Path

folder = Path(__file__).parent

def held(completions, trainer_state, **_):
    while trainer_state.global_step >= FIRST and (folder / "closed").exists():
        (folder / "held").touch()
        time.sleep(0.01)
    return [float(len(set(text))) for text in completions]
"""


class Gate:
    """A reward function that holds a run while the gate is closed and `first` steps are done."""

    def __init__(self, folder: Path, first: int = 0) -> None:
        folder.mkdir()
        self._closed, self._held = folder / "closed", folder / "held"
        (folder / "gate.py").write_text(HELD.replace("FIRST", str(first)))
        self.changes: dict[str, Any] = {
            "rewards": {"functions": [f"{folder}/gate.py:held"], "time_limit": 600.0},
            "evaluation": {"pinned": 0},
        }
        if first:
            self._closed.touch()

    def close(self) -> None:
        """Close the gate, and wait until the run is held."""
        self._held.unlink(missing_ok=True)
        self._closed.touch()
        self.wait()

    def wait(self) -> None:
        """Wait until the run is held."""
        until(self._held.exists)

    def open(self) -> None:
        """Let the run continue."""
        self._closed.unlink()


def events_in(text: str) -> list[dict[str, Any]]:
    """The events of JSON lines, without a truncated last line."""
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return [event for event in found if isinstance(event, dict) and "event" in event]


def facts_by_step(events: Sequence[Mapping[str, Any]]) -> dict[int, list[Any]]:
    """What must be equal in each finished step: all facts but times and memory."""
    found: dict[int, list[Any]] = {}
    finished = {event["step"] for event in events if event["event"] == "StepFinished"}
    for event in events:
        if event["event"] not in FACTS or event["step"] not in finished or event["step"] == 0:
            continue
        kept = {key: value for key, value in event.items() if key != "elapsed"}
        if "metrics" in kept:
            kept["metrics"] = {
                name: value for name, value in kept["metrics"].items() if not name.startswith(TIMED)
            }
        found.setdefault(event["step"], []).append(kept)
    return found
