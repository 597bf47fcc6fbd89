"""A GPU that fails, by MLX's own texts, raised where MLX waits for the device."""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from grpo_engine.config.parse import build, merge
from grpo_engine.config.settings import RunConfig
from grpo_engine.events import (
    CheckpointSaved,
    Event,
    GroupScored,
    NoteWritten,
    RunFailed,
    StepFinished,
)
from grpo_engine.platform.faults import Fault, fault_of
from grpo_engine.policy import checkpointing, memory
from grpo_engine.presets import preset
from grpo_engine.run import checkpoint, recovery
from grpo_engine.training import step
from tests.engine.runs import completed, events_of, of, settings, timeless, write_world

FAILED = "[METAL] Command buffer execution failed: {}."
TEXTS: dict[Fault, str] = {
    "memory": FAILED.format(
        "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"
    ),
    "size": (
        "[metal::malloc] Attempting to allocate 9663676416 bytes which is greater than the "
        "maximum allowed buffer size of 8589934592 bytes."
    ),
    "watchdog": FAILED.format(
        "Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)"
    ),
    "victim": FAILED.format(
        "Innocent Victim of GPU error/recovery "
        "(00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)"
    ),
    "lost": FAILED.format(
        "Ignored (for causing prior/excessive GPU errors) "
        "(00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)"
    ),
}
WAITS = ("eval", "async_eval", "synchronize", "maximum")  # the last one in comparisons of a probe
PROBES = {
    "load": "load_parts",
    "probe of trunk and head": "split_model",
    "probe of shared prompts": "prefix_caches",
}
REPEATED = {
    "probe of the batch": "_works",
    "self-check": "check_itself",
    "sampling": "_sampled",
    "scoring": "scored_batches",
    "micro-batch": "measure",
    "evaluation": "evaluate",
}
ENDING = {"optimiser": "apply", "save": "save_checkpoint"}


class Injection:
    """Raises a text at some waits for the device that are made inside a function."""

    def __init__(self, function: str, text: str, *, times: int = 1, after: int = 0) -> None:
        self.function, self.text, self.times, self.after = function, text, times, after
        self.raised = 0

    def wrap(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        def waiting(*arguments: Any, **keywords: Any) -> Any:
            if self.raised < self.times and self._is_inside():
                self.after -= 1
                if self.after < 0:
                    self.raised += 1
                    raise RuntimeError(self.text)
            return wait(*arguments, **keywords)

        return waiting

    def _is_inside(self) -> bool:
        frame = sys._getframe(2)
        names = set()
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back  # type: ignore[assignment]
        return self.function in names


Inject = Callable[..., Injection]


@pytest.fixture(name="inject")
def fixture_inject(monkeypatch: pytest.MonkeyPatch) -> Inject:
    monkeypatch.setattr(recovery, "PAUSE_S", 0.0)

    def inject(
        function: str, fault: Fault, waits: Sequence[str] = WAITS, **options: int
    ) -> Injection:
        injection = Injection(function, TEXTS[fault], **options)
        for name in waits:
            monkeypatch.setattr(mx, name, injection.wrap(getattr(mx, name)))
        return injection

    return inject


@pytest.fixture(name="world", scope="module")
def fixture_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(name="unbroken", scope="module")
def fixture_unbroken(world: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    return events_of(config(world), tmp_path_factory.mktemp("unbroken"))


QUIET = {"problems": 2, "pinned": 0, "before_and_after": False}


def config(world: Path, **changes: Any) -> RunConfig:
    model = {"path": str(world / "model"), "lora_rank": 4, "compute": "graph"}
    evaluation = {"problems": 2, "pinned": 1, "pinned_every": 4, "before_and_after": True}
    base = {"model": model, "evaluation": evaluation, "algorithm": {"beta": 0.1}, "steps": 2}
    return settings(world, **base | changes)


def facts(events: Sequence[Event]) -> Iterator[Any]:
    """Answers with their advantages, and the metrics of each step without times and memory."""
    for event in events:
        if isinstance(event, GroupScored):
            yield [(c.ids, c.advantage) for c in event.group.rollouts]
        elif isinstance(event, StepFinished):
            yield timeless(event.metrics)


def failure(config: RunConfig, folder: Path, *, resume: bool = False) -> RunFailed:
    """The end of a run that a device ends."""
    *_, failed = events_of(config, folder, resume=resume)
    assert isinstance(failed, RunFailed)
    assert failed.error == "DeviceFaultError"
    return failed


def saved_step(folder: Path) -> tuple[int, Any]:
    """The step and the state of the last checkpoint, where none is damaged."""
    saved, problems = checkpoint.latest(folder)
    assert saved is not None
    assert problems == []
    return saved.step, saved.state


def notes(events: Sequence[Event]) -> str:
    return "\n".join(event.text for event in of(NoteWritten, events))


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        *TEXTS.items(),
        ("memory", "[malloc] Unable to allocate 17179869184 bytes."),
        ("memory", "[metal::malloc] Resource limit (499000) exceeded."),
        ("watchdog", FAILED.format("Impacting Interactivity (0e:kIOGPU…ImpactingInteractivity)")),
        ("lost", FAILED.format("Caused GPU Hang Error (03:kIOGPUCommandBufferCallbackErrorHang)")),
        ("lost", FAILED.format("Caused GPU Address Fault Error (0b:kIOGPU…PageFault)")),
        ("lost", FAILED.format("Internal Error (0000000e:Internal Error)")),
        (None, "[broadcast_shapes] Shapes (2,3) and (4,5) cannot be broadcast."),
    ],
)
def test_texts_of_mlx_are_told_apart(fault: Fault | None, text: str) -> None:
    assert fault_of(RuntimeError(text)) == fault
    assert fault_of(ValueError(text)) is None


@pytest.mark.slow
@pytest.mark.parametrize("place", REPEATED.values(), ids=REPEATED)
def test_work_dropped_for_another_programs_fault_is_computed_again_to_the_bit(
    place: str, world: Path, unbroken: list[Event], inject: Inject, tmp_path: Path
) -> None:
    injection = inject(place, "victim")
    events = completed(config(world), tmp_path)

    assert injection.raised == 1
    assert list(facts(events)) == list(facts(unbroken))
    assert "another program's failed" in notes(events)
    assert "memory plan is" not in notes(events)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["memory", "size", "watchdog"])
@pytest.mark.parametrize("place", REPEATED.values(), ids=REPEATED)
def test_a_part_is_computed_again_with_less_at_a_time(
    place: str, fault: Fault, world: Path, unbroken: list[Event], inject: Inject, tmp_path: Path
) -> None:
    inject(place, fault)
    events = completed(config(world), tmp_path)

    assert recovery.HAPPENED[fault] in notes(events)
    for ours, expected in zip(facts(events), facts(unbroken), strict=True):
        if isinstance(expected, dict):
            assert ours == pytest.approx(expected, rel=1e-3, abs=1e-4, nan_ok=True)
        else:
            assert [ids for ids, _ in ours] == [ids for ids, _ in expected]


@pytest.mark.slow
@pytest.mark.parametrize("fault", TEXTS)
@pytest.mark.parametrize("place", (PROBES | ENDING).values(), ids=PROBES | ENDING)
def test_a_fault_where_nothing_can_be_repeated_ends_the_run_in_one_sentence(
    place: str, fault: Fault, world: Path, inject: Inject, tmp_path: Path
) -> None:
    injection = inject(place, fault, after=2 if place == "apply" else 0)
    failed = failure(config(world, steps=3), tmp_path)

    assert injection.raised == 1
    assert failed.message.startswith(recovery.HAPPENED[fault])
    assert recovery.REMEDY[fault] in failed.message
    assert not failed.traceback
    _, problems = checkpoint.latest(tmp_path)
    assert problems == []


@pytest.mark.slow
@pytest.mark.parametrize("place", REPEATED.values(), ids=REPEATED)
def test_a_lost_device_is_not_asked_again(
    place: str, world: Path, inject: Inject, tmp_path: Path
) -> None:
    injection = inject(place, "lost", times=5)
    failed = failure(config(world), tmp_path)

    assert injection.raised == 1
    assert failed.message.startswith("the GPU stopped working")


@pytest.mark.parametrize("place", ["_sampled", "scored_batches", "measure"])
def test_a_fault_that_stays_at_the_smallest_plan_ends_the_run_with_its_last_step_saved(
    place: str, world: Path, inject: Inject, tmp_path: Path
) -> None:
    """Rows 4, 2, 1 with layers recomputed, then chunks of the head; twice at the smallest."""
    settled = config(world, checkpoint={"every": 1}, steps=1, evaluation=QUIET)
    completed(settled, tmp_path)
    longer = settled.model_copy(update={"steps": 3})
    injection = inject(place, "memory", times=1000)
    failed = failure(longer, tmp_path, resume=True)

    assert failed.message.startswith("the GPU ran out of memory in step 2")
    assert injection.raised < 20
    assert saved_step(tmp_path)[0] == 1


@pytest.mark.slow
def test_a_smaller_plan_is_in_the_checkpoint_and_is_what_a_resume_takes(
    world: Path, inject: Inject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recomputed: list[Any] = []
    apply = checkpointing.checkpoint_layers

    def checkpoint_layers(model: Any) -> None:
        recomputed.append(model)
        apply(model)

    monkeypatch.setattr(memory, "checkpoint_layers", checkpoint_layers)
    settled = config(world, steps=2, checkpoint={"every": 0})
    inject("measure", "memory")
    events = events_of(settled, tmp_path)

    assert len(recomputed) == 1
    assert [event.step for event in of(CheckpointSaved, events)] == [1, 2]
    _, state = saved_step(tmp_path)
    assert (state["micro_rows"], state["grad_checkpoint"]) == (2, True)
    events = completed(settled.model_copy(update={"steps": 3}), tmp_path, resume=True)
    assert "2 per backward pass, layers recomputed" in notes(events)


@pytest.mark.slow
def test_full_weights_after_a_fault_of_the_optimiser_are_those_of_the_last_checkpoint(
    world: Path, inject: Inject, tmp_path: Path
) -> None:
    model = {"path": str(world / "model"), "tuning": "full", "compute": "graph"}
    full = config(world, model=model, checkpoint={"every": 1}, steps=3)
    unbroken = events_of(full, tmp_path / "unbroken")
    inject("apply", "memory", after=4)
    failure(full, tmp_path / "broken")
    resumed = completed(full, tmp_path / "broken", resume=True)

    steps = of(StepFinished, resumed)
    expected = of(StepFinished, unbroken)[-len(steps) :]
    assert list(facts(steps)) == list(facts(expected))


@pytest.mark.slow
def test_work_that_the_system_ended_is_given_in_shorter_pieces_when_the_run_is_resumed(
    world: Path, inject: Inject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    environment = {"MLX_MAX_MB_PER_BUFFER": "30"}
    assert not recovery.shorten_buffers(tmp_path, environment)
    monkeypatch.undo()
    monkeypatch.setattr(recovery, "PAUSE_S", 0.0)
    inject("measure", "watchdog")
    events_of(config(world), tmp_path)
    monkeypatch.setattr(sys, "platform", "darwin")

    assert recovery.shorten_buffers(tmp_path, environment)
    assert environment == {"MLX_MAX_OPS_PER_BUFFER": "8", "MLX_MAX_MB_PER_BUFFER": "30"}


@pytest.mark.slow
def test_a_run_that_swaps_takes_a_smaller_plan_which_its_checkpoint_has(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped = iter(range(1, 100))
    numbers = {"memory/footprint_gb": 5.0, "memory/pressure": 2.0}
    monkeypatch.setattr(
        step, "memory_metrics", lambda: numbers | {"memory/swap_gb": float(next(swapped))}
    )
    events = events_of(config(world, steps=5, checkpoint={"every": 0}, evaluation=QUIET), tmp_path)

    assert "memory is swapped to disk; from step 5 on the memory plan is 4 answers" in notes(events)
    assert "before it was 8 answers sampled at a time, 4 per backward pass" in notes(events)
    plan = {"max_rows": 4, "micro_rows": 2, "grad_checkpoint": True}
    assert plan.items() <= saved_step(tmp_path)[1].items()


@pytest.mark.parametrize("place", ["groups_scored", "apply", "finish_step", "save"])
def test_the_device_is_waited_for_before_anything_of_a_step_is_recorded_or_saved(
    place: str, world: Path, inject: Inject, tmp_path: Path
) -> None:
    """A buffer that failed after the last read is noticed by nothing but this wait."""
    inject(place, "memory", waits=("synchronize",))
    events = events_of(config(world, steps=1, evaluation=QUIET), tmp_path)

    assert isinstance(events[-1], RunFailed)
    assert events[-1].error == "DeviceFaultError"
    recorded = {"groups_scored": GroupScored, "finish_step": StepFinished}.get(place)
    assert recorded is None or not any(isinstance(event, recorded) for event in events)


@pytest.mark.slow
def test_a_fault_while_a_checkpoint_is_written_is_no_full_disk(
    world: Path, inject: Inject, tmp_path: Path
) -> None:
    inject("_save", "lost", waits=("save_safetensors",))
    events = events_of(config(world), tmp_path)

    assert isinstance(events[-1], RunFailed)
    assert events[-1].error == "DeviceFaultError"
    assert "cannot be written" not in notes(events)


@pytest.mark.slow
def test_dialogues_begin_again_with_their_environments(
    inject: Inject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "PAUSE_S", 0.0)
    changes = {
        "steps": 1,
        "model": {"compute": "graph"},
        "rollout": {"prompts": 2},
        "evaluation": {"before_and_after": False, "pinned": 0},
    }
    dialogue = build(merge(preset("guess").tree, changes))
    unbroken = events_of(dialogue, tmp_path / "unbroken")
    injection = inject("_sampled", "victim", after=12)  # in the middle of the dialogues
    events = completed(dialogue, tmp_path / "broken")

    assert injection.raised == 1
    assert list(facts(events)) == list(facts(unbroken))
    assert "what it computed is discarded" in notes(events)
