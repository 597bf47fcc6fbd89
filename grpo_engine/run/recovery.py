"""A part of a step that is repeated after the GPU failed, with less work at a time.

What was computed is discarded, so no number of a failed command buffer is ever a fact. A smaller
memory plan stays for the rest of the run and is kept in checkpoints; resume to the bit holds for
runs whose plan never changed.
"""

import os
import sys
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import mlx.core as mx

from grpo_engine.errors import DeviceFaultError
from grpo_engine.events import Event, warning
from grpo_engine.paths import inside
from grpo_engine.platform.faults import Fault, fault_of
from grpo_engine.policy.memory import HEAD_TILE, MemoryPlan, free_cache
from grpo_engine.run.persist import SAME_TO_TOLERANCE
from grpo_engine.run.session import EngineRun

Part = TypeVar("Part")

HAPPENED: Final[Mapping[Fault, str]] = {
    "memory": "the GPU ran out of memory",
    "size": "an array was larger than one buffer of the GPU may be",
    "watchdog": "the system ended work of the GPU that held up the screen",
    "victim": "the GPU dropped work because another program's failed",
    "lost": "the GPU stopped working",
}
LESS: Final = "Lower rollout.max_new_tokens or rollout.group_size, or take a smaller model"
REMEDY: Final[Mapping[Fault, str]] = {
    "memory": f"{LESS}, or one with model.quantized=keep",
    "size": LESS,
    "watchdog": (
        "Resume it in a new process, which gives the GPU shorter pieces of work; it happens almost "
        "only while the display is on: let it sleep, or train over ssh"
    ),
    "victim": "Close other programs that use the GPU, and resume the run",
    "lost": "Restart the machine if it happens again, and resume the run",
}
REPEATS: Final = 2  # attempts at a part under the same plan
PAUSE_S: Final = 3.0  # lets the system draw the screen after the watchdog
WATCHDOG_FILE: Final = "gpu-watchdog"
SHORT_BUFFERS: Final = {"MLX_MAX_OPS_PER_BUFFER": "8", "MLX_MAX_MB_PER_BUFFER": "16"}


def repeated(
    run: EngineRun,
    step: int,
    part: Callable[[], Generator[Event, None, Part]],
    smaller: Callable[[], bool],
) -> Generator[Event, None, Part]:
    """What a part of a step returns; after a fault of the GPU it is called again.

    `smaller` lets it take less at a time, and returns whether it could.
    """
    unchanged = 0
    while True:
        try:
            result = yield from part()
            mx.synchronize()
        except RuntimeError as error:
            fault, before = fault_of(error), run.plan
            if fault is None or fault == "lost" or run.ranks.size > 1:
                raise
            if fault == "watchdog":
                _mark(run.folder)
                run.control.wait(PAUSE_S)
            shrunk = fault != "victim" and smaller()
            unchanged = 0 if shrunk else unchanged + 1
            if unchanged >= REPEATS:
                raise
        else:
            return result
        free_cache()
        yield warning(step, _repeated(run, fault, before, shrunk=shrunk))


def _repeated(run: EngineRun, fault: Fault, before: MemoryPlan, *, shrunk: bool) -> str:
    text = f"{HAPPENED[fault]}; what it computed is discarded and computed again"
    if run.plan != before:
        return f"{text}. The memory plan is {run.plan}, it was {before}: {SAME_TO_TOLERANCE}"
    return f"{text}, {run.sampling.max_rows} answers at a time" if shrunk else text


def fewer_sampled(run: EngineRun, rows: int) -> bool:
    """Halve the answers that are sampled at a time, of as many `rows`."""
    at_a_time = min(run.sampling.max_rows or rows, rows)
    if at_a_time < 2:
        return False
    run.sampling = replace(run.sampling, max_rows=at_a_time // 2)
    _plan(run, run.plan._replace(max_rows=min(run.plan.max_rows, at_a_time // 2)))
    return True


def fewer_scored(run: EngineRun, *, gradient: bool = False) -> bool:
    """Halve the rows of a micro-batch, recompute layers, then halve the positions of the head."""
    plan = run.plan
    recompute = gradient and run.config.model.grad_checkpoint != "off"
    changed = plan._replace(
        micro_rows=max(1, plan.micro_rows // 2),
        grad_checkpoint=plan.grad_checkpoint or recompute,
    )
    if changed == plan:
        tiles = plan.head_chunk // HEAD_TILE
        changed = plan._replace(head_chunk=max(1, tiles // 2) * HEAD_TILE)
    if changed == plan:
        return False
    _plan(run, changed)
    return True


def _plan(run: EngineRun, plan: MemoryPlan) -> None:
    run.is_planned_anew = run.is_planned_anew or plan != run.plan
    run.plan = plan
    plan.apply(run.policy)


def as_engine_error(error: BaseException, step: int) -> BaseException:
    """A fault of the GPU that ends a run, in a sentence; any other error as it is."""
    fault = fault_of(error)
    if fault is None:
        return error
    text = str(error).strip().rstrip(".")
    return DeviceFaultError(f"{HAPPENED[fault]} in step {step} ({text}). {REMEDY[fault]}")


def _mark(folder: Path) -> None:
    try:
        inside(folder, WATCHDOG_FILE).touch()
    except OSError:  # the next resume only takes MLX's own sizes
        return


def shorten_buffers(folder: Path, environment: dict[str, str] | os._Environ[str]) -> bool:
    """Give the GPU shorter pieces of work if the system has ended some of this run's.

    MLX reads these variables once, before its first work on the GPU.
    """
    if sys.platform != "darwin" or not inside(folder, WATCHDOG_FILE).exists():
        return False
    for name, value in SHORT_BUFFERS.items():
        environment.setdefault(name, value)
    return True
