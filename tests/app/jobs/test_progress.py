"""What `train` shows on a terminal of any width: phase, step, numbers and remaining time."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pyte
import pytest

from grpo_engine import events as ev
from grpo_tui.app.jobs.progress import RunProgress

ROOT = Path(__file__).resolve().parents[3]
SHOWN = """
import sys
from grpo_tui.app.jobs.progress import printer
from grpo_engine import events as ev

show = printer(as_json=False)
show.show(ev.RunStarted(step=0, config={}, total_steps=4000, resumed=False, versions={},
          device="cpu", threads=1, dataset_fingerprint="", recipe="grpo"))
metrics = {"reward": 0.607, "kl": 0.1186, "completions/mean_length": 10.7,
           "tokens_per_second": 33701.0, "step_time": 0.42}
show.show(ev.StepFinished(step=7, metrics=metrics, tokens=1, elapsed=1.0))
show.show(ev.PhaseStarted(step=8, phase="update", total=32))
show.show(ev.PhaseAdvanced(step=8, phase="update", done=2, total=32))
show.write("a note")
sys.stdin.readline()
"""


def screen(columns: int) -> list[str]:
    """The lines of a terminal on which a run has reached step 7."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", SHOWN],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=ROOT,
        env={**env, "TERM": "xterm-256color"},
    )
    os.close(theirs)
    terminal = pyte.Screen(columns, 24)
    stream = pyte.ByteStream(terminal)
    try:
        while not any("min" in line for line in terminal.display):
            stream.feed(os.read(ours, 65536))
        return [line.rstrip() for line in terminal.display]
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize("columns", [80, 100])
def test_the_bar_has_phase_step_speed_reward_kl_and_time_left(columns: int) -> None:
    lines = screen(columns)
    bar = next(place for place, line in enumerate(lines) if "7/4000" in line)
    assert lines[bar - 1] == "a note"
    assert lines[bar].startswith("update 2/32 ")
    expected = "reward 0.607  kl 0.1186  length 10.7  33,701 tok/s  0.42 s/step  28 min left"
    assert lines[bar + 1] == expected[: columns - 5]


def test_the_numbers_begin_with_what_is_awaited_of_a_server() -> None:
    progress = RunProgress()
    progress.add(ev.StepFinished(step=1, metrics={"reward": 0.5}, tokens=1, elapsed=1.0))
    progress.add(ev.ServerAwaited(step=2, detail="gradient awaited"))
    assert progress.numbers() == "gradient awaited  reward 0.500"
    progress.add(ev.PhaseStarted(step=2, phase="checkpoint"))
    assert progress.numbers() == "reward 0.500"


def test_no_time_is_left_of_a_last_step_after_which_answers_are_evaluated() -> None:
    progress = RunProgress()
    progress.step, progress.total = 5, 6
    progress.add(ev.StepFinished(step=5, metrics={"step_time": 2.0}, tokens=1, elapsed=1.0))
    assert progress.numbers().endswith("2.0s left")
    progress.add(ev.StepFinished(step=6, metrics={"step_time": 2.0}, tokens=1, elapsed=1.0))
    assert "left" not in progress.numbers()
