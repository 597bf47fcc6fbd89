"""Turns the events of a run into alerts.

`Alerts` keeps only the metrics of recent steps, so that its state fits in a checkpoint. A rule that
still holds is raised again every `REPEAT` steps. Evaluations are kept by mode: greedy and sampled
accuracy differ, so they are never compared with each other.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any

from grpo_engine.alerts.change import SPAN, Evaluation
from grpo_engine.alerts.rules import (
    RULES,
    Alert,
    MonitoredRun,
    RunLimits,
    memory_swapped,
)
from grpo_engine.events import AlertEnded, AlertRaised, EvaluationFinished, Event, StepFinished

WINDOW, REPEAT = 40, 10
SAMPLED = "sampled/"  # means over all answers, where those of the kept groups are a selection


class Alerts:
    """A fold of events into alerts."""

    def __init__(self, limits: RunLimits) -> None:
        self._limits = limits
        self._history: list[dict[str, float]] = []
        self.start: list[dict[str, float]] = []  # metrics of the first ten steps
        self._evaluations: dict[str, list[Evaluation]] = {}
        self._raised: dict[str, int] = {}

    def observe(self, event: Event) -> Iterator[AlertRaised | AlertEnded]:
        match event:
            case StepFinished():
                numbers = {key: float(value) for key, value in event.metrics.items()}
                for key in [key for key in numbers if key.startswith(SAMPLED)]:
                    numbers[key.removeprefix(SAMPLED)] = numbers.pop(key)
                self._history = [*self._history, numbers][-WINDOW:]
                if len(self.start) < SPAN:
                    self.start.append(numbers)
                yield from self._raise(event.step)
            case EvaluationFinished(metrics={"eval/accuracy": accuracy} as metrics) if (
                math.isfinite(accuracy)
            ):
                answers = metrics.get("eval/scored/accuracy", event.problems * event.samples)
                evaluation = Evaluation.of(event.step, accuracy, answers)
                self._evaluations.setdefault(event.mode, []).append(evaluation)
                if self._history:
                    yield from self._raise(event.step)

    def is_solving(self, step: int) -> bool:
        """Whether most answers became right, so that groups without signal are to be expected."""
        return bool(self._history) and self._state(step).solves

    def is_swapping(self, step: int) -> bool:
        """Whether the run's memory is swapped to disk, more in each step."""
        return bool(self._history) and memory_swapped(self._state(step)) is not None

    def _state(self, step: int) -> MonitoredRun:
        by_mode = self._evaluations
        return MonitoredRun(
            step=step,
            history=self._history,
            start=self.start,
            evaluations=by_mode.get("sampled") or by_mode.get("greedy") or (),
            **{limit.name: getattr(self._limits, limit.name) for limit in fields(RunLimits)},
        )

    def _raise(self, step: int) -> Iterator[AlertRaised | AlertEnded]:
        run = self._state(step)
        for name, rule in RULES.items():
            alert = rule(run)
            if alert is None:
                if self._raised.pop(name, None) is not None:
                    yield AlertEnded(step=step, rule=name)
            elif step - self._raised.get(name, -REPEAT) >= REPEAT:
                self._raised[name] = step
                yield raised(step, name, alert)

    def state(self) -> dict[str, Any]:
        return {
            "history": self._history,
            "start": self.start,
            "evaluations": {
                mode: list(map(asdict, evaluations))
                for mode, evaluations in self._evaluations.items()
            },
            "raised": self._raised,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._history = list(map(dict, state["history"]))
        self.start = list(map(dict, state["start"]))
        by_mode = state["evaluations"]
        if isinstance(by_mode, list):  # older versions kept greedy and sampled values in one list
            by_mode = {}
        self._evaluations = {
            mode: [Evaluation(**evaluation) for evaluation in evaluations]
            for mode, evaluations in by_mode.items()
        }
        self._raised = dict(state["raised"])


def raised(step: int, rule: str, alert: Alert, group: int | None = None) -> AlertRaised:
    return AlertRaised(step=step, rule=rule, group=group, **asdict(alert))
