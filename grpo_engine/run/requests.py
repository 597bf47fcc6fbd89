"""Handles a user's requests during a step, between tokens and between micro-batches."""

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import TypeVar

from grpo_engine.control import StopNow
from grpo_engine.events import Event, RunPaused, RunResumed
from grpo_engine.run.persist import save_checkpoint
from grpo_engine.run.session import Run

Result = TypeVar("Result")


def answer_requests(run: Run, step: int) -> Iterator[Event]:
    """Wait while the run is paused, raise `StopNow` if it should stop now, save if requested."""
    if run.control.paused:
        yield RunPaused(step=run.step)
        run.clock.pause()
        while run.control.wait_while_paused(0.2):
            pass
        run.clock.resume()
        yield RunResumed(step=run.step)
    if run.control.stop_now:
        raise StopNow(f"step {step} was dropped")
    yield from save_if_requested(run)


def wait_until_recorded(run: Run) -> Iterator[Event]:
    """Wait before a step while events can be written nowhere, until they can or a stop is asked."""
    if not run.control.blocked:
        return
    yield RunPaused(step=run.step, reason=run.control.blocked)
    run.clock.pause()
    while run.control.blocked and not run.control.stop_after_step:
        run.control.wait(0.2)
    run.clock.resume()
    yield RunResumed(step=run.step)


def relay(
    run: Run, step: int, events: Generator[Event, None, Result]
) -> Generator[Event, None, Result]:
    """Forward the events of sampling with the number of `step`; pauses stop the clock."""
    while True:
        try:
            event = next(events)
        except StopIteration as end:
            result: Result = end.value
            return result
        if isinstance(event, RunPaused):
            run.clock.pause()
        elif isinstance(event, RunResumed):
            run.clock.resume()
        yield replace(event, step=step)
        yield from save_if_requested(run)


def save_if_requested(run: Run) -> Iterator[Event]:
    """During a step: save the held state if a checkpoint is requested."""
    if run.held_state is None or not run.control.take_checkpoint():
        return
    run.clock.pause()
    yield from save_checkpoint(run)
    run.clock.resume()
