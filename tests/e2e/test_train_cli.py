"""`grpo-tui train` for its users: output, exit status, signals, background runs."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from grpo_engine.events import RunFinished, from_json
from grpo_engine.platform.private import is_intact
from grpo_engine.run import checkpoint
from grpo_tui.experiments.reader import StoreReader
from tests.e2e.training import Gate, events_in, grpo_tui, start, wait_for, write_config
from tests.patience import PATIENCE


@pytest.mark.slow
def test_a_run_is_told_in_lines_recorded_and_summed_up_in_a_table(
    world: Path, tmp_path: Path
) -> None:
    evaluation = {"problems": 4, "pinned": 1, "before_and_after": True}
    config = write_config(world, tmp_path / "c.yaml", steps=2, evaluation=evaluation)
    done = grpo_tui(tmp_path, "train", config, "--name", "first", "--tag", "t1")
    assert done.returncode == 0, done.stderr
    assert "step 2/2  reward" in done.stderr
    assert "before (step 0)" in done.stdout
    assert "after (step 2)" in done.stdout
    assert "adapter: " in done.stdout
    reader = StoreReader(tmp_path / "store.db")
    run = reader.resolve("first")
    assert (run.status, run.step, run.tags) == ("completed", 2, ("t1",))
    assert [step.step for step in reader.steps(run.key)] == [1, 2]
    assert len(reader.groups(run.key, step=1, origin="train")) == 2
    reader.close()
    log = tmp_path / "runs" / run.id / "log.txt"
    assert "completed at step 2" in log.read_text()


@pytest.mark.slow
def test_json_lines_are_the_events_themselves(world: Path, tmp_path: Path) -> None:
    config = write_config(world, tmp_path / "c.yaml", steps=1)
    done = grpo_tui(tmp_path, "train", config, "--json", "--no-store", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    events = [from_json(json.loads(line)) for line in done.stdout.splitlines()]
    assert isinstance(events[-1], RunFinished)
    kinds = {type(event).__name__ for event in events}
    needed = {"RunStarted", "RolloutsAdvanced", "GroupScored", "TokensScored"}
    assert needed <= kinds, f"{done.stdout[:1500]}\n{done.stderr[-800:]}"
    assert not (tmp_path / "store.db").exists()


@pytest.mark.slow
@pytest.mark.parametrize("twice", [False, True])
def test_ctrl_c_stops_after_the_step_with_a_checkpoint_and_twice_at_once(
    world: Path, tmp_path: Path, twice: bool
) -> None:
    gate = Gate(tmp_path / "gate", first=2)
    config = write_config(
        world, tmp_path / "c.yaml", steps=50, checkpoint={"every": 2}, **gate.changes
    )
    folder, out = tmp_path / "run", tmp_path / "out.txt"
    process = start(tmp_path, "train", config, "--no-store", folder, out=out)
    gate.wait()
    process.send_signal(signal.SIGINT)
    wait_for(out, "stopping after this step")
    if twice:
        process.send_signal(signal.SIGINT)
    else:
        gate.open()
    assert process.wait(PATIENCE) == (130 if twice else 0)
    assert ("stopped at step 3" in out.read_text()) != twice
    assert checkpoint.latest(folder)[0] is not None
    assert checkpoint.steps(folder) == ([2] if twice else [2, 3])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_while_it_starts_is_not_lost(
    number: signal.Signals, world: Path, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    (tmp_path / "gate" / "closed").touch()  # holds the check that comes before the record
    config = write_config(world, tmp_path / "c.yaml", steps=50, **gate.changes)
    out = tmp_path / "out.txt"
    process = start(tmp_path, "train", config, "--name", "early", out=out)
    gate.wait()
    process.send_signal(number)
    wait_for(out, "stopping before the first step")
    gate.open()
    assert process.wait(PATIENCE) == 130
    reader = StoreReader(tmp_path / "store.db")
    run = reader.resolve("early")
    reader.close()
    assert (run.status, run.step) == ("aborted", 0)


@pytest.mark.slow
def test_a_detached_run_prints_its_name_and_goes_on_alone(world: Path, tmp_path: Path) -> None:
    config = write_config(world, tmp_path / "c.yaml", steps=2)
    done = grpo_tui(tmp_path, "train", config, "--detach", "--name", "apart")
    assert (done.returncode, done.stdout) == (0, "apart\n"), done.stderr
    reader = StoreReader(tmp_path / "store.db")
    run = reader.resolve("apart")
    reader.close()
    wait_for(tmp_path / "runs" / run.id / "log.txt", "completed at step 2")


@pytest.mark.slow
def test_events_of_a_failed_run_end_with_the_reason(world: Path, tmp_path: Path) -> None:
    # the check before the run tries it on two answers
    (world / "bad.py").write_text(
        "def bad(completions, **_):\n    return [1 / (len(completions) < 3)] * len(completions)\n"
    )
    config = write_config(
        world, tmp_path / "c.yaml", rewards={"functions": [f"{world}/bad.py:bad"]}
    )
    done = grpo_tui(tmp_path, "train", config, "--json", "--name", "failing")
    assert done.returncode == 1
    last = events_in(done.stdout)[-1]
    assert last["event"] == "RunFailed"
    assert "ZeroDivisionError" in last["message"]
    assert f"{world}/bad.py:2" in last["message"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Metal's kernels are compiled in memory")
@pytest.mark.skipif(shutil.which("g++") is None, reason="MLX compiles with g++")
def test_kernels_that_are_planted_or_cut_off_end_no_run(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def train() -> None:
        words = ("--set", "steps=1", "--no-store", tmp_path / uuid4().hex)
        done = grpo_tui(tmp_path, "train", *words, TMPDIR=str(temporary))
        assert done.returncode == 0, done.stderr

    train()
    kept = temporary / f"grpo-tui-{os.getuid()}" / "kernels"
    libraries = sorted(kept.rglob("*.so"))
    assert libraries
    for library in libraries:
        planted = temporary / library.relative_to(kept)
        planted.parent.mkdir(parents=True, exist_ok=True)
        planted.write_bytes(library.read_bytes()[:4096])  # loading it ends a process with SIGBUS
        os.truncate(library, 4096)
    train()
    assert all(is_intact(library) for library in libraries)
