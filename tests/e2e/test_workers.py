"""Local workers train what one process trains, and the death of one ends the run resumably."""

import math
import shutil
import signal
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np
import psutil
import pytest

from grpo_engine.config.parse import merge
from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.distributed import workers
from grpo_engine.events import (
    EvaluationFinished,
    Event,
    GroupScored,
    NoteWritten,
    PhaseStarted,
    RunFailed,
    RunFinished,
    RunPaused,
    RunResumed,
    StepFinished,
    TokensScored,
)
from grpo_engine.probe import PromptsProbed, probe
from grpo_engine.trainer import evaluate_only, run
from grpo_tui.experiments.reader import StoreReader
from tests.e2e.training import Gate, grpo_tui, start, write_config
from tests.engine.environments.test_runs import STOPS, TURNS
from tests.engine.runs import events_of, mixture, settings, write_world
from tests.patience import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(mx.default_device() != mx.cpu, reason="workers are for the CPU"),
]

CASES: dict[str, dict[str, Any]] = {
    "uneven": {"rollout": {"prompts": 3}, "algorithm": {"passes": 2, "beta": 0.04}},
    "dropped": {"rollout": {"prompts": 2}, "algorithm": {"recipe": "dr-grpo", "beta": 0.0}},
    "refilled": {"rollout": {"prompts": 2}, "algorithm": {"recipe": "dapo", "refill_rounds": 2}},
    "minibatches": {"rollout": {"prompts": 3}, "algorithm": {"minibatches": 2, "passes": 2}},
    "critic": {"rollout": {"prompts": 3}, "algorithm": {"recipe": "ppo"}},
    "lagged": {"algorithm": {"sampler_sync_every": 2, "beta": 0.04, "ref_refresh_every": 2}},
    "full": {"model": {"tuning": "full"}, "algorithm": {"beta": 0.04}},
    "dora": {"model": {"tuning": "dora"}, "algorithm": {"beta": 0.04}},
    "target": {"algorithm": {"signal": "group_sign", "trust": "target", "passes": 2}},
    "bnpo": {"algorithm": {"weight": "per_batch_token"}},
    "several tasks": {},  # see mixture()
    "dialogues": {
        "rollout": {"prompts": 3, "stop": STOPS, "max_new_tokens": 40},
        "task": {"max_turns": 4},
        "algorithm": {"beta": 0.04},
    },
}
Fact = TypeVar("Fact")
NOT_EQUAL = ("time/", "memory/", "step_time", "tokens_per_second")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(autouse=True)
def few_rows_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let several workers sample the few rows of these runs."""
    monkeypatch.setattr(workers, "LEAST_SAMPLED", 2)


def with_workers(world: Path, count: int, **changes: Any) -> RunConfig:
    return settings(world, run={"workers": count}, **changes)


def of(kind: type[Fact], events: Sequence[Event]) -> list[Fact]:
    return [event for event in events if isinstance(event, kind)]


def tokens_of(events: Sequence[Event]) -> list[tuple[int, ...]]:
    """The ids of all answers, in the order in which they were recorded."""
    groups = [event.group for event in of(GroupScored, events)]
    return [rollout.ids for group in groups for rollout in group.rollouts]


def metrics_of(events: Sequence[Event]) -> list[dict[str, float]]:
    """Each step's metrics, without times and memory."""
    return [
        {name: value for name, value in event.metrics.items() if not name.startswith(NOT_EQUAL)}
        for event in of(StepFinished, events)
    ]


def weights_of(folder: Path) -> dict[str, mx.array]:
    newest = max((folder / "checkpoints").glob("step-*"))
    weights = mx.load(str(newest / "trained.safetensors"))
    assert isinstance(weights, dict)
    return weights


def distance(found: dict[str, mx.array], expected: dict[str, mx.array]) -> float:
    """|found - expected| / |expected|: Adam makes much of the smallest gradients' last digits."""
    apart = sum(np.square(np.array(found[name] - one)).sum() for name, one in expected.items())
    whole = sum(np.square(np.array(one)).sum() for one in expected.values())
    return math.sqrt(apart / whole)


def changes_of(world: Path, case: str) -> dict[str, Any]:
    """The settings of a case, and the files that it reads."""
    if case == "several tasks":
        return mixture(world)
    if case != "dialogues":
        return CASES[case]
    (world / "turns.py").write_text(TURNS)
    return merge(CASES[case], {"task": {"environment": f"{world}/turns.py:Turns"}})


@pytest.mark.parametrize("case", CASES)
def test_workers_train_what_one_process_trains(world: Path, tmp_path: Path, case: str) -> None:
    changes = changes_of(world, case)
    alone = events_of(with_workers(world, 1, **changes), tmp_path / "1")
    assert isinstance(alone[-1], RunFinished), alone[-1]
    for count in (2, 3) if case == "uneven" else (2,):
        folder = tmp_path / str(count)
        found = events_of(with_workers(world, count, **changes), folder)
        assert isinstance(found[-1], RunFinished), found[-1]
        assert tokens_of(found) == tokens_of(alone)
        for step, (one, many) in enumerate(
            zip(metrics_of(alone), metrics_of(found), strict=True), 1
        ):
            assert many == pytest.approx(one, rel=2e-3, abs=2e-4), f"step {step}"
        assert distance(weights_of(folder), weights_of(tmp_path / "1")) < 1e-3


@pytest.mark.parametrize("case", ["uneven", "lagged", "full", "dora"])
def test_weights_that_workers_share_train_the_same_to_the_bit(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    own = events_of(with_workers(world, 2, **CASES[case]), tmp_path / "own")
    monkeypatch.setattr(workers, "LEAST_SHARED", 1)
    shared = events_of(with_workers(world, 2, **CASES[case]), tmp_path / "shared")
    assert isinstance(shared[-1], RunFinished), shared[-1]
    assert facts_of(shared, 0) == facts_of(own, 0)
    left, right = weights_of(tmp_path / "own"), weights_of(tmp_path / "shared")
    assert all(mx.array_equal(left[name], right[name]) for name in left)


def test_held_out_answers_do_not_depend_on_the_number_of_workers(
    world: Path, tmp_path: Path
) -> None:
    evaluation = {"problems": 6, "samples": 3, "greedy": True}
    found = {}
    for count in (1, 2, 3):
        config = with_workers(world, count, evaluation=evaluation)
        events = list(evaluate_only(config, Control(), folder=tmp_path / str(count)))
        said = [note.text for note in of(NoteWritten, events) if "worker processes" in note.text]
        assert len(said) == (count > 1)
        done = [replace(one, seconds=0.0) for one in of(EvaluationFinished, events)]
        assert [one.mode for one in done] == ["greedy", "sampled"]
        found[count] = tokens_of(events), done
    assert found[2] == found[1]
    assert found[3] == found[1]


def test_a_probe_finds_the_same_with_workers(world: Path, tmp_path: Path) -> None:
    def probed(count: int) -> list[PromptsProbed]:
        events = probe(
            with_workers(world, count), Control(), folder=tmp_path / str(count), prompts=4,
            samples=4, temperatures=[1.0],
        )  # fmt: skip
        return [replace(one, seconds=0.0) for one in events if isinstance(one, PromptsProbed)]

    assert probed(2) == probed(1) != []


def facts_of(events: Sequence[Event], first: int) -> list[Any]:
    """Tokens, token numbers and metrics from a step on."""
    late = [event for event in events if event.step >= first]
    scored = [event for event in late if isinstance(event, TokensScored)]
    return [tokens_of(late), scored, metrics_of(late)]


def broken_off(config: RunConfig, folder: Path) -> None:
    """Train up to the first checkpoint and drop the run there, in the next step."""
    events = run(config, Control(), folder=folder)
    for event in events:
        if isinstance(event, PhaseStarted) and event.step == 3:
            break
    events.close()  # type: ignore[attr-defined]


def of_workers(app: psutil.Process) -> list[psutil.Process]:
    """A process's workers, and before them the process that forked them."""
    found = [
        child for child in app.children(recursive=True)
        if any("training.worker" in word for word in child.cmdline())
    ]  # fmt: skip
    return sorted(found, key=lambda process: process.pid)


def our_processes() -> list[psutil.Process]:
    return of_workers(psutil.Process())


def test_a_resumed_run_keeps_its_number_of_workers_and_equals_an_unbroken_one(
    world: Path, tmp_path: Path
) -> None:
    whole = events_of(with_workers(world, 2), tmp_path / "whole")
    broken_off(with_workers(world, 2), tmp_path / "kept")
    assert our_processes() == []
    shutil.copytree(tmp_path / "kept", tmp_path / "other")
    kept = events_of(with_workers(world, 0), tmp_path / "kept", resume=True)
    assert facts_of(kept, 3) == facts_of(whole, 3)
    other = events_of(with_workers(world, 3), tmp_path / "other", resume=True)
    (said,) = [note.text for note in of(NoteWritten, other) if "number of workers" in note.text]
    assert "was 2 and is 3" in said
    assert "to float tolerance, not to the bit" in said
    assert tokens_of(other) == tokens_of(kept)
    for one, many in zip(metrics_of(kept), metrics_of(other), strict=True):
        assert many == pytest.approx(one, rel=2e-3, abs=2e-4)


@pytest.mark.parametrize(("case", "last"), [("uneven", "update"), ("dialogues", "generate")])
def test_a_run_waits_and_stops_with_workers(
    world: Path, tmp_path: Path, case: str, last: str
) -> None:
    control, seen = Control(), []
    for event in run(with_workers(world, 2, **changes_of(world, case)), control, folder=tmp_path):
        seen.append(event)
        if isinstance(event, PhaseStarted) and (event.phase, event.step) == ("generate", 1):
            control.ask("pause")
        if isinstance(event, RunPaused):
            control.ask("continue")
        if isinstance(event, PhaseStarted) and (event.phase, event.step) == (last, 2):
            control.ask("stop_now")
    assert of(RunResumed, seen)
    assert isinstance(seen[-1], RunFinished)
    assert seen[-1].reason == "aborted"
    assert our_processes() == []


def test_a_model_that_workers_cannot_load_is_named_as_without_them(
    world: Path, tmp_path: Path
) -> None:
    model = {"path": str(world / "nothing")}
    alone, many = (
        events_of(with_workers(world, count, model=model), tmp_path / str(count))[-1]
        for count in (1, 2)
    )
    assert isinstance(alone, RunFailed)
    assert isinstance(many, RunFailed)
    assert (many.error, many.message) == (alone.error, alone.message)


@pytest.mark.parametrize("which", ["first", "worker"])
def test_a_killed_worker_ends_the_run_with_its_name_and_the_run_resumes(
    world: Path, tmp_path: Path, which: str
) -> None:
    seen = []
    for event in run(with_workers(world, 2), Control(), folder=tmp_path):
        seen.append(event)
        if isinstance(event, PhaseStarted) and (event.phase, event.step) == ("update", 3):
            first, *others = our_processes()
            assert len(others) == 2
            (first if which == "first" else others[1]).kill()
    failed = seen[-1]
    assert isinstance(failed, RunFailed)
    assert failed.error == "WorkerLostError"
    if which == "worker":
        assert "worker 2 of 2 was killed by SIGKILL" in failed.message
    assert "grpo-tui resume" in failed.message
    assert our_processes() == []
    resumed = events_of(with_workers(world, 0), tmp_path, resume=True)
    assert isinstance(resumed[-1], RunFinished)
    assert [event.step for event in of(StepFinished, resumed)] == [3, 4]


def test_nothing_is_left_of_workers_whose_app_is_killed(world: Path, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate", first=1)
    changes = {**gate.changes, "run": {"workers": 2}}
    config = write_config(world, tmp_path / "c.yaml", steps=6, checkpoint={"every": 1}, **changes)
    before = set(Path("/dev/shm").iterdir())
    app = start(tmp_path, "train", config, "--name", "r", out=tmp_path / "out.txt")
    gate.wait()
    left = psutil.Process(app.pid).children(recursive=True)
    assert len(of_workers(psutil.Process(app.pid))) == 3
    app.kill()
    app.wait()
    until(lambda: not any(lives(process) for process in left))
    assert set(Path("/dev/shm").iterdir()) == before
    gate.open()
    done = grpo_tui(tmp_path, "resume", "r")
    assert done.returncode == 0, done.stderr


def test_a_run_without_a_screen_and_its_workers_outlive_a_hangup(
    world: Path, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate", first=1)
    changes = {**gate.changes, "run": {"workers": 2}}
    config = write_config(world, tmp_path / "c.yaml", steps=4, **changes)
    app = start(tmp_path, "train", config, "--name", "r", out=tmp_path / "out.txt")
    gate.wait()
    for process in (psutil.Process(app.pid), *of_workers(psutil.Process(app.pid))):
        process.send_signal(signal.SIGHUP)
    gate.open()
    assert app.wait(240) == 0, (tmp_path / "out.txt").read_text()
    with closing(StoreReader(tmp_path / "store.db")) as reader:
        assert (reader.resolve("r").status, reader.resolve("r").step) == ("completed", 4)


def lives(process: psutil.Process) -> bool:
    """Whether it runs; one that only waits for its new parent to notice does not."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False
