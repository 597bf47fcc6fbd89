"""kill -9 at any moment: `grpo-tui resume` continues bit for bit as if it had not happened."""

import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.experiments.reader import StoreReader
from tests.e2e.training import (
    environment,
    events_in,
    facts_by_step,
    grpo_tui,
    write_config,
)
from tests.engine.runs import mixture

CASES: dict[str, dict[str, Any]] = {
    "grpo": {"recipe": "grpo", "passes": 2, "minibatches": 2},
    "dapo": {"recipe": "dapo", "refill_rounds": 2},
    "grpo-iterative": {"recipe": "grpo-iterative", "ref_refresh_every": 4},
    "grpo-sequence": {"recipe": "grpo-sequence", "sampler_sync_every": 4},
    "ppo": {"recipe": "ppo", "passes": 2},
    "several tasks": {"recipe": "dapo", "refill_rounds": 2},
}

# `python -m grpo_tui` that kills itself shortly after a given number of phases has started.
KILLED = """
import os, signal, sys, threading
from grpo_tui.app.cli.main import main
from grpo_tui.experiments.record.recorder import Recorder

phase, times, delay = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
put = Recorder.put

def noted(self, event):
    global times
    put(self, event)
    if type(event).__name__ == "PhaseStarted" and event.phase == phase and event.step > 0:
        times -= 1
        if times == 0:
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()

Recorder.put = noted
sys.exit(main(sys.argv[4:]))
"""
PHASES = ("checkpoint", "generate", "update", "score")


def write_case(world: Path, tmp_path: Path, name: str, steps: int) -> Path:
    changes: dict[str, Any] = {"steps": steps, "algorithm": CASES[name], "checkpoint": {"every": 3}}
    if name == "dapo":
        changes["rewards"] = {"functions": [f"{world}/rewards.py:accuracy"]}
    if name == "several tasks":
        changes = {**mixture(world), "steps": steps}
    return write_config(world, tmp_path / f"{name}.yaml", **changes)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", CASES)
def test_a_run_that_is_killed_four_times_resumes_bit_for_bit(
    world: Path, tmp_path: Path, name: str
) -> None:
    """Each time at a random moment of a phase; the facts are those of an uninterrupted run."""
    steps, kills = 36, 4
    for folder in ("whole", "cut"):
        (tmp_path / folder).mkdir()
    config = write_case(world, tmp_path, name, steps)
    whole = grpo_tui(tmp_path / "whole", "train", config, "--json")
    assert whole.returncode == 0, whole.stderr
    expected = facts_by_step(events_in(whole.stdout))
    dice, home, found = random.Random(len(name)), tmp_path / "cut", {}
    words: list[str | Path] = ["train", config, "--json", "--name", "cut"]
    for turn in range(kills):
        out = tmp_path / f"out{turn}.jsonl"
        phase = PHASES[turn % len(PHASES)]
        times, delay = dice.randint(1, 2 if phase == "checkpoint" else 6), dice.uniform(0, 0.03)
        with out.open("wb") as file:
            killed = subprocess.run(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    KILLED,
                    phase,
                    str(times),
                    str(delay),
                    *map(str, words),
                ],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment(home),
                check=False,
            )
        assert killed.returncode == -signal.SIGKILL, out.read_text()[-2000:]
        for step, facts in facts_by_step(events_in(out.read_text())).items():
            found[step] = facts
            assert facts == expected[step], f"step {step} in turn {turn}"
        words = ["resume", "cut", "--json"]
    last = grpo_tui(home, *words)
    assert last.returncode == 0, last.stderr
    found |= facts_by_step(events_in(last.stdout))
    assert found[steps] == expected[steps]
    reader = StoreReader(home / "store.db")
    run = reader.resolve("cut")
    assert (run.status, run.step) == ("completed", steps)
    assert [step.step for step in reader.steps(run.key)] == list(range(1, steps + 1))
    reader.close()
