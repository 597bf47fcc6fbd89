"""Handles a user's requests during a step, between tokens and between micro-batches."""

from collections.abc import Iterator
from functools import partial

from grpo_engine.events import Event, RunPaused, RunResumed
from grpo_engine.rollouts.decode import pause_or_stop
from grpo_engine.run.backend import StepContext
from grpo_engine.run.persist import save_checkpoint
from grpo_engine.run.session import EngineRun


def handle_requests(run: EngineRun) -> Iterator[Event]:
    """Save if requested, wait while the run is paused, raise `StopNow` if it should stop now."""
    with run.clock.paused():
        if run.step_state is not None and run.control.pop_checkpoint():
            yield from save_checkpoint(run)
        yield from pause_or_stop(run.control, run.step)


def step_context(run: EngineRun, step: int) -> StepContext:
    """A step, with the user's requests during it."""
    return StepContext(step=step, requests=partial(handle_requests, run))


def wait_until_recorded(run: EngineRun) -> Iterator[Event]:
    """Wait before a step while events can be written nowhere, until they can or a stop is asked."""
    if not run.control.blocked:
        return
    yield RunPaused(step=run.step, reason=run.control.blocked)
    with run.clock.paused():
        while run.control.blocked and not run.control.stop_after_step:
            run.control.wait(0.2)
    yield RunResumed(step=run.step)
