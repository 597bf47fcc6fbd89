"""How backward passes use memory is decided once, the same on all ranks, and kept."""

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from grpo_engine import trainer
from grpo_engine.config.parse import build
from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.distributed.ranks import Ranks
from grpo_engine.events import (
    CheckpointSaved,
    Event,
    GroupScored,
    NoteWritten,
    PassFinished,
    PhaseStarted,
    StepFinished,
)
from grpo_engine.policy import memory
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.memory import Lengths, MemoryPlan
from grpo_engine.rollouts import decode
from grpo_engine.run import checkpoint, persist
from grpo_engine.setup import opening, preflight
from grpo_engine.trainer import run
from tests.engine.policy.helpers import CHOSEN_AND_GRAPH
from tests.engine.runs import completed, events_of, of, settings

LENGTHS = Lengths(8, 12)


def auto(world: Path, **changes: Any) -> RunConfig:
    return settings(world, optimizer={"micro_rows": 0}, **changes)


def state(folder: Path) -> dict[str, Any]:
    saved, _ = checkpoint.latest(folder)
    assert saved is not None
    return dict(saved.state)


def weights(folder: Path) -> dict[str, mx.array]:
    saved, _ = checkpoint.latest(folder)
    assert saved is not None
    return saved.tensors("trained")


def notes(events: list[Event]) -> str:
    return "\n".join(event.text for event in of(NoteWritten, events))


def use(monkeypatch: pytest.MonkeyPatch, plan: MemoryPlan) -> None:
    """Let memory allow this plan."""
    monkeypatch.setattr(preflight, "choose_plan", lambda *_, **__: plan)


@pytest.mark.slow
def test_a_resumed_run_keeps_its_plan_to_the_bit(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, MemoryPlan(3, True, 16, 5))
    events = events_of(auto(world), tmp_path / "whole")
    assert (
        "5 answers sampled at a time, 3 per backward pass, layers recomputed, logits of 16"
        in notes(events)
    )
    control = Control()
    for event in run(auto(world), control, folder=tmp_path / "halves"):
        if event.step == 2:
            control.ask("stop_after_step")
    use(monkeypatch, MemoryPlan(8, False, 64, 8))  # another machine, with more memory
    events = completed(auto(world), tmp_path / "halves", resume=True)
    assert "the memory plan was" not in notes(events)
    expected = weights(tmp_path / "whole")
    assert all(mx.array_equal(a, expected[n]) for n, a in weights(tmp_path / "halves").items())
    kept = {"micro_rows": 3, "grad_checkpoint": True, "head_chunk": 16, "max_rows": 5}
    assert state(tmp_path / "halves").items() >= kept.items()


def test_a_plan_that_no_longer_fits_is_replaced_and_noted(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, MemoryPlan(8, False, 64, 8))
    events_of(auto(world, steps=2), tmp_path)
    policy = load_policy(auto(world).model, seed=5)
    small, large = (
        preflight.estimated(auto(world), policy, LENGTHS, MemoryPlan(rows, False, 64, 8)).peak
        for rows in (1, 8)
    )
    assert small < large
    monkeypatch.setattr(preflight, "memory_limit", lambda: (small + large) // 2)
    use(monkeypatch, MemoryPlan(1, False, 64, 8))
    events = events_of(auto(world, steps=4), tmp_path, resume=True)
    assert (
        "the memory plan was 8 answers sampled at a time, 8 per backward pass, layers kept, "
        "logits of 64 tokens at a time and is 8 answers sampled at a time, 1 per" in notes(events)
    )
    assert state(tmp_path)["micro_rows"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("compute", CHOSEN_AND_GRAPH)
def test_a_step_under_a_limit_has_the_tokens_and_the_loss_of_one_without(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compute: str
) -> None:
    """Room for a part of the rows, and for one row of a backward pass."""
    config = auto(
        world, steps=1, model={"compute": compute}, rollout={"max_new_tokens": 40, "group_size": 16}
    )
    events = events_of(config, tmp_path / "unlimited")
    policy = load_policy(config.model, seed=5)
    lengths = Lengths(8, 40)
    smallest = preflight.plan_memory(config, policy, lengths, 1)
    assert smallest[0] == smallest.max_rows == 1
    budget = int(1.05 * preflight.estimated(config, policy, lengths, smallest).training)
    monkeypatch.setattr(preflight, "memory_limit", lambda: budget)
    decoded: list[int] = []
    advance = decode._Decoding.advance

    def recorded(state: decode._Decoding) -> None:
        decoded.append(len(state.active))
        advance(state)

    monkeypatch.setattr(decode._Decoding, "advance", recorded)
    limited = events_of(config, tmp_path / "limited")
    assert "answers sampled at a time, 1 per backward pass" in notes(limited)
    assert 1 < max(decoded) == state(tmp_path / "limited")["max_rows"] < 32
    assert rollouts(limited) == rollouts(events)
    assert loss(limited) == pytest.approx(loss(events), rel=1e-4, abs=1e-6)


def rollouts(events: list[Event]) -> list[tuple[int, ...]]:
    groups = [event.group for event in of(GroupScored, events)]
    return [
        rollout.ids for group in groups if group.origin == "train" for rollout in group.rollouts
    ]


def loss(events: list[Event]) -> float | None:
    (finished,) = of(PassFinished, events)
    return finished.loss


def test_a_checkpoint_without_a_plan_has_layers_as_set_and_64_positions(world: Path) -> None:
    early = {"micro_rows": 4}
    assert persist.saved_plan(settings(world), early) == (4, False, 64, 8)
    config = settings(world, model={"grad_checkpoint": "on"})
    assert persist.saved_plan(config, early) == (4, True, 64, 8)


@dataclass(frozen=True)
class Two(Ranks):
    """This rank beside another, which has sent these values."""

    sent: tuple[Any, ...] = ()

    @property
    def size(self) -> int:
        return 2

    def gather(self, value: Any) -> list[Any]:
        return [json.loads(json.dumps(value)), *self.sent]


def planned(events: Iterator[Event]) -> Any:
    while True:
        try:
            next(events)
        except StopIteration as stopped:
            return stopped.value


@pytest.mark.parametrize("limit", [1, 10**15])
def test_the_rank_with_least_memory_decides(world: Path, limit: int) -> None:
    config = auto(world)
    policy = load_policy(config.model, seed=5)
    context = opening.RunContext(
        config=config,
        control=Control(),
        folder=world,
        stack=ExitStack(),
        ranks=Two(sent=([limit, 2, True, 32, 3],)),
    )
    plan, _ = planned(opening._planned(context, policy, LENGTHS))
    if limit == 1:
        assert plan == (2, True, 32, 3)
        assert policy.grad_checkpoint
        assert type(policy.model.layers[0]).__name__.endswith("Checkpointed")
    else:
        assert plan == (4, False, policy.head_chunk, 8)  # of 8 answers a rank has 4
    assert policy.head_chunk == plan.head_chunk


@dataclass
class Machine:
    """One whose memory is, after the first step, a share of what its backward passes took.

    It is plenty at any other time, or always with a share of 0. `peaks` are those of each step.
    """

    monkeypatch: pytest.MonkeyPatch
    share: float = 0
    peaks: list[int] = field(default_factory=list)

    def run(self, config: RunConfig, folder: Path) -> list[Event]:
        plan = opening.plan_next_step

        def measured(current: Any) -> Any:
            self.peaks.append(current.update_peak)
            limit = int(self.share * current.update_peak) if current.step == 1 else 0
            self.monkeypatch.setattr(preflight, "memory_limit", lambda: limit or 10**12)
            changed = yield from plan(current)
            self.monkeypatch.setattr(preflight, "memory_limit", lambda: 10**12)
            return changed

        self.monkeypatch.setattr(trainer, "plan_next_step", measured)
        events = events_of(config, folder, resume=folder.exists())
        self.monkeypatch.undo()
        return events


@pytest.mark.slow
@pytest.mark.parametrize("compute", CHOSEN_AND_GRAPH)
def test_after_a_backward_pass_that_took_too_much_the_next_steps_take_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compute: str
) -> None:
    """The starter has the tokens and the loss of a run with memory, and resumes to the bit."""
    config = build(
        {
            "steps": 3,
            "model": {"compute": compute},
            "task": {"held_out_size": 8},
            "rollout": {"prompts": 4, "group_size": 8, "max_new_tokens": 12},
            "checkpoint": {"every": 0},
            "evaluation": {"pinned": 0, "before_and_after": False},
        }
    )
    plenty = Machine(monkeypatch)
    expected = plenty.run(config, tmp_path / "plenty")
    short = Machine(monkeypatch, share=0.6)
    events = short.run(config, tmp_path / "short")
    text = notes(events)
    assert "from step 2 on the memory plan is" in text
    assert "from step 2 on the memory plan is" not in notes(expected)
    saved = [event.step for event in of(CheckpointSaved, events)]
    assert saved == [1, 3]
    less, enough = (
        checkpoint.open_folder(tmp_path / name).state
        for name in ("short/checkpoints/step-000001", "plenty/checkpoints/step-000003")
    )
    assert (enough["micro_rows"], enough["grad_checkpoint"]) == (32, False)
    assert less["micro_rows"] < 32 or less["grad_checkpoint"]
    assert short.peaks[0] == pytest.approx(plenty.peaks[0], rel=0.1)
    assert max(short.peaks[1:]) < 0.75 * min(plenty.peaks[1:])
    assert rollouts(events) == rollouts(expected)
    assert losses(events) == pytest.approx(losses(expected), rel=1e-3, abs=1e-6)
    name = "checkpoints/step-000001"
    shutil.copytree(tmp_path / "short" / name, tmp_path / "halves" / name)
    Machine(monkeypatch).run(config, tmp_path / "halves")
    assert state(tmp_path / "halves")["micro_rows"] == less["micro_rows"]
    final = weights(tmp_path / "short")
    assert all(mx.array_equal(a, final[name]) for name, a in weights(tmp_path / "halves").items())


def losses(events: list[Event]) -> list[float | None]:
    return [event.loss for event in of(PassFinished, events)]


@pytest.mark.slow
def test_rows_that_are_set_stay_and_layers_are_recomputed(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for chosen, recomputed in (("auto", True), ("off", False)):
        model = {"compute": "graph", "grad_checkpoint": chosen}
        config = settings(world, steps=2, model=model)
        machine = Machine(monkeypatch, share=0.5)
        events = machine.run(config, tmp_path / chosen)
        assert (machine.peaks[1] < 0.9 * machine.peaks[0]) == recomputed, machine.peaks
        saved = state(tmp_path / chosen)
        assert (saved["micro_rows"], saved["grad_checkpoint"]) == (4, recomputed)
        assert ("the memory plan is" in notes(events)) == recomputed


@pytest.mark.slow
def test_the_peak_of_a_step_is_that_of_sampling_where_this_takes_more(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout = {"prompts": 2, "group_size": 64, "max_new_tokens": 40}
    model = {"compute": "graph"}
    config = settings(world, steps=1, model=model, rollout=rollout, optimizer={"micro_rows": 1})
    machine = Machine(monkeypatch)
    events = machine.run(config, tmp_path / "run")
    (finished,) = of(StepFinished, events)
    assert finished.metrics["memory/peak_gb"] * 1e9 > 1.1 * machine.peaks[0] > 0


@dataclass(frozen=True)
class Short(Two):
    """Beside a rank whose backward pass took too much."""

    def gather(self, value: Any) -> list[Any]:
        return [value, (False, True)] if len(value) == 2 else super().gather(value)


def test_a_rank_takes_the_smaller_plan_of_the_one_that_is_short_of_memory(world: Path) -> None:
    config = auto(world)
    policy = load_policy(config.model, seed=5)
    current: Any = SimpleNamespace(
        config=config,
        policy=policy,
        lengths=LENGTHS,
        plan=MemoryPlan(4, False, 64, 8),
        step=1,
        is_complete=False,
        is_planned_anew=False,
        alerts=SimpleNamespace(is_swapping=lambda _: False),
        update_peak=1,
        ranks=Short(sent=([1, 2, False, 64, 8],)),
    )
    assert planned(opening.plan_next_step(current)) is True
    assert current.plan == (2, False, 64, 8)
    current.ranks = Ranks()
    assert planned(opening.plan_next_step(current)) is False


@pytest.mark.slow
def test_freed_memory_is_dropped_between_phases_on_a_gpu_only(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[str] = []
    monkeypatch.setattr(mx, "clear_cache", lambda: dropped.append(""))
    events_of(auto(world, steps=1), tmp_path / "cpu")
    assert dropped == []
    monkeypatch.setattr(memory, "on_cpu", lambda: False)
    order: list[str] = []
    monkeypatch.setattr(mx, "clear_cache", lambda: order.append("drop"))
    config = auto(world, steps=1, algorithm={"beta": 0.1})
    for event in run(config, Control(), folder=tmp_path / "gpu"):
        if isinstance(event, PhaseStarted) and event.step == 1:
            order.append(event.phase)
    for before, after in (("generate", "score"), ("logprobs", "update"), ("update", "checkpoint")):
        assert "drop" in order[order.index(before) : order.index(after)]


def test_limits_of_a_gpu_are_set_from_what_a_run_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: dict[str, int] = {}
    for name in ("set_memory_limit", "set_cache_limit"):
        monkeypatch.setattr(mx, name, lambda limit, name=name: limits.update({name: limit}))
    monkeypatch.setattr(preflight, "memory_limit", lambda: 8000)
    preflight.set_limits()
    assert limits == {}
    monkeypatch.setattr(preflight, "on_cpu", lambda: False)
    preflight.set_limits()
    assert limits == {"set_memory_limit": 8000, "set_cache_limit": 2000}
