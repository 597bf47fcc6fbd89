"""The points within a step at which a run listens: between tokens, and between micro-batches."""

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import TypeVar

from grpo_engine.control import StopNow
from grpo_engine.events import Event, RunPaused, RunResumed
from grpo_engine.run.persist import save_checkpoint
from grpo_engine.run.session import Run

Result = TypeVar("Result")


def listen(run: Run, step: int) -> Iterator[Event]:
    """A safe point: wait while the run is paused, and leave it if it is to stop at once."""
    if run.control.paused:
        yield RunPaused(step=run.step)
        run.clock.halt()
        while run.control.wait_while_paused(0.2):
            pass
        run.clock.go_on()
        yield RunResumed(step=run.step)
    if run.control.stop_now:
        raise StopNow(f"step {step} was dropped")
    yield from save_if_asked(run)


def relay(
    run: Run, step: int, events: Generator[Event, None, Result]
) -> Generator[Event, None, Result]:
    """Pass on the events of sampling as those of `step`; its pauses stop the clock."""
    while True:
        try:
            event = next(events)
        except StopIteration as end:
            result: Result = end.value
            return result
        if isinstance(event, RunPaused):
            run.clock.halt()
        elif isinstance(event, RunResumed):
            run.clock.go_on()
        yield replace(event, step=step)
        yield from save_if_asked(run)


def save_if_asked(run: Run) -> Iterator[Event]:
    """Write what the last finished step left, where a checkpoint was asked for within a step."""
    if run.kept is None or not run.control.take_checkpoint():
        return
    run.clock.halt()
    yield from save_checkpoint(run)
    run.clock.go_on()
