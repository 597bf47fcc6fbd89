"""Held-out evaluations from Python."""

from grpo_engine import errors, trainer
from grpo_engine.api.thread import Interrupts, enter
from grpo_engine.control import Control
from grpo_engine.errors import EngineError, RunError
from grpo_engine.evaluation.target import Target
from grpo_engine.events import EvaluationFinished, RunFailed
from grpo_engine.platform.scratch import scratch
from grpo_engine.run.user_objects import UserObjects


def evaluate_target(target: Target, objects: UserObjects) -> dict[str, EvaluationFinished]:
    """Evaluate a model; return the evaluation of each mode."""
    enter()
    control = Control()
    results: dict[str, EvaluationFinished] = {}
    with (
        scratch("eval") as folder,
        Interrupts(control, print).handled(),
    ):
        events = trainer.evaluate_only(
            target.config, control, folder=folder, step=target.step, objects=objects
        )
        for event in events:
            if isinstance(event, EvaluationFinished):
                results[event.mode] = event
            if isinstance(event, RunFailed):
                raise failure(event)
    return results


def failure(failed: RunFailed) -> EngineError:
    """The error of a failed run in its own class, with the traceback of one that was unexpected."""
    error_class = getattr(errors, failed.error, None)
    if isinstance(error_class, type) and issubclass(error_class, EngineError):
        return error_class(failed.message)
    text = f"the run failed with {failed.error}: {failed.message}"
    return RunError(f"{text}\n{failed.traceback}".rstrip())
