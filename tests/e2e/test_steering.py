"""Keys that control a run in a real terminal: the screen responds and the run obeys."""

import json
import sys
from pathlib import Path

import pytest

from tests.e2e.terminal import LAUNCH, Terminal
from tests.e2e.training import Gate
from tests.engine.runs import write_world

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs a pty")


@pytest.mark.slow
def test_keys_are_acknowledged_before_the_run_can_obey(tmp_path: Path) -> None:
    world, gate = write_world(tmp_path / "world"), Gate(tmp_path / "gate")
    # a checkpoint of the schedule, shown late, would answer the request for one
    changes = json.dumps(gate.changes | {"checkpoint": {"every": 0}})
    run = [str(tmp_path / "grpo.db"), str(world), "5000", "calm-otter", changes]
    with Terminal(["-c", LAUNCH, *run]) as terminal:
        terminal.until_step(3)
        gate.close()
        terminal.press(".")
        terminal.until("Pausing at")
        gate.open()
        terminal.until("paused")  # at the next token or micro-batch
        terminal.press(".")
        terminal.until(". pause run")
        terminal.until(lambda: "paused" not in terminal.text())
        gate.close()
        terminal.press("w")
        terminal.until("Saving a checkpoint")
        gate.open()
        terminal.until(lambda: "Saving a checkpoint" not in terminal.text())
        gate.close()
        terminal.press("S")
        terminal.until("stop the run")
        terminal.press("x")
        terminal.until("The run was stopped")  # even while its answers were being scored
