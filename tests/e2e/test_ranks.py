"""Two ranks of `mlx.launch` train what one process trains, and the death of one is reported."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import psutil
import pytest

from grpo_tui.experiments.reader import StoreReader
from tests.e2e.training import Gate, command, environment, events_in, grpo_tui, write_config
from tests.engine.environments.test_runs import STOPS, TURNS
from tests.engine.maths.custom_choices import written
from tests.engine.runs import write_world
from tests.engine.tiny import write_model
from tests.patience import PATIENCE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not mx.distributed.is_available(), reason="MLX was built without ranks"),
]

# all answers to problems with an odd number score the same, so those groups have no signal
REWARDS = """
def some(completions, answer, **_):
    return [len(set(text)) / 9 * (int(own) % 2 == 0)
            for text, own in zip(completions, answer)]
"""
CASES: dict[str, dict[str, Any]] = {
    # three prompts on two ranks: uneven shares, and answers of different lengths
    "uneven": {"rollout": {"prompts": 3}, "algorithm": {"passes": 2, "beta": 0.04}},
    # no gradient from half of the groups: a rank has none, or the whole step is skipped
    "dropped": {"rollout": {"prompts": 2}, "algorithm": {"recipe": "dr-grpo", "beta": 0.0}},
    "refilled": {"rollout": {"prompts": 2}, "algorithm": {"recipe": "dapo", "refill_rounds": 2}},
    "minibatches": {"rollout": {"prompts": 3}, "algorithm": {"minibatches": 2, "passes": 2}},
    # a problem is twice in every step, on one rank or on two
    "repeated": {"rollout": {"prompts": 4}, "task": {"train_size": 3}},
    "functions": {"rollout": {"prompts": 3}, "algorithm": {"recipe": "gspo", **written("gspo")}},
    "critic": {"rollout": {"prompts": 3}, "algorithm": {"recipe": "ppo"}},
    "demonstrated": {
        "rollout": {"prompts": 3},
        "algorithm": {"recipe": "sft"},
        "task": {"columns": {"completion": "answer"}, "options": {"chat": False}},
    },
    "teacher": {"rollout": {"prompts": 3}, "algorithm": {"teacher_weight": 0.3, "passes": 2}},
    "turns": {"rollout": {"prompts": 3, "max_new_tokens": 40, "stop": STOPS}, "task": {}},
}
NOT_EQUAL = ("time/", "memory/", "step_time", "tokens_per_second")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_world(tmp_path_factory.mktemp("world"))
    (folder / "some.py").write_text(REWARDS)
    (folder / "turns.py").write_text(TURNS)
    return folder


def launched(*words: str | Path, port: int) -> list[str]:
    """The command on two ranks of this host."""
    launcher = [sys.executable, "-c", "from mlx._distributed_utils.launch import main; main()"]
    ranks = ["-n", "2", "--backend", "ring", "--starting-port", str(port)]
    return [*launcher, *ranks, "--", *command(*words)]


@contextmanager
def started(
    home: Path, *words: str | Path, out: Path, port: int
) -> "Iterator[subprocess.Popen[bytes]]":
    """Two ranks with their output in a file; any that remain are killed at the end."""
    with (
        out.open("wb") as file,
        subprocess.Popen(
            launched(*words, port=port),
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(home),
        ) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
                process.kill()


def metrics_of(text: str) -> list[dict[str, float]]:
    """Each step's metrics, without times and memory."""
    return [
        {name: value for name, value in event["metrics"].items() if not name.startswith(NOT_EQUAL)}
        for event in events_in(text)
        if event["event"] == "StepFinished"
    ]


def adapter_of(home: Path, name: str) -> dict[str, mx.array]:
    """The trained weights of a run's last checkpoint."""
    reader = StoreReader(home / "store.db")
    run = reader.resolve(name)
    reader.close()
    folder = max((home / "runs" / run.id / "checkpoints").glob("step-*"))
    weights = mx.load(str(folder / "adapters.safetensors"))
    assert isinstance(weights, dict)
    return weights


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_train_what_one_process_trains(world: Path, tmp_path: Path, case: str) -> None:
    changes = {"rewards": {"functions": [f"{world}/some.py:some"]}, **CASES[case]}
    if case == "teacher":
        changes["teacher"] = {"path": str(write_model(world / "teacher", seed=9))}
    if case == "turns":
        changes["task"] = {"environment": f"{world}/turns.py:Turns", "max_turns": 3}
    config = write_config(world, tmp_path / "c.yaml", steps=4, **changes)
    alone = grpo_tui(tmp_path / "alone", "train", config, "--json", "--name", "r")
    assert alone.returncode == 0, alone.stderr
    port = 20000 + os.getpid() % 1000 * 8
    with started(
        tmp_path / "ranks",
        "train",
        config,
        "--json",
        "--name",
        "r",
        out=tmp_path / "out.jsonl",
        port=port,
    ) as process:
        process.wait(PATIENCE)
    expected, found = metrics_of(alone.stdout), metrics_of((tmp_path / "out.jsonl").read_text())
    assert len(found) == len(expected) == 4
    for step, (one, two) in enumerate(zip(expected, found, strict=True), 1):
        assert two == pytest.approx(one, rel=2e-3, abs=2e-4), f"step {step}"
    trained, expected_weights = (
        adapter_of(tmp_path / "ranks", "r"),
        adapter_of(tmp_path / "alone", "r"),
    )
    for name, weights in expected_weights.items():
        assert mx.allclose(trained[name], weights, rtol=1e-3, atol=2e-4), name


def test_a_rank_that_dies_ends_the_run_with_a_message_and_it_resumes(
    world: Path, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate", first=2)
    config = write_config(
        world, tmp_path / "c.yaml", steps=6, checkpoint={"every": 1}, **gate.changes
    )
    out, port = tmp_path / "out.txt", 10000 + os.getpid() % 1000 * 8
    with started(tmp_path, "train", config, "--name", "r", out=out, port=port) as process:
        gate.wait()
        rank_of(process.pid, 1).send_signal(signal.SIGKILL)
        gate.open()
        process.wait(PATIENCE)
    reader = StoreReader(tmp_path / "store.db")
    run = reader.run(reader.resolve("r").key)
    reader.close()
    assert run.summary.status == "failed"
    assert "rank 1 of the run has ended" in run.summary.error
    assert "grpo-tui resume" in out.read_text()
    with started(tmp_path, "resume", "r", out=out, port=port + 4) as process:
        process.wait(PATIENCE)
    reader = StoreReader(tmp_path / "store.db")
    run = reader.run(reader.resolve("r").key)
    assert (run.summary.status, run.summary.step) == ("completed", 6), out.read_text()
    assert [step.step for step in reader.steps(run.summary.key)] == [1, 2, 3, 4, 5, 6]
    reader.close()


def rank_of(launcher: int, rank: int) -> psutil.Process:
    """The process of a rank that has started to train."""
    return next(
        child
        for child in psutil.Process(launcher).children(recursive=True)
        if "train" in child.cmdline() and child.environ().get("MLX_RANK") == str(rank)
    )
