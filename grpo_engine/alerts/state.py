"""Turns the events of a run into alerts.

`Alerts` keeps only the metrics of recent steps, so that its state fits in a checkpoint. A rule that
still holds is raised again every `REPEAT` steps.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from grpo_engine.alerts.rules import RULES, Facts, Finding
from grpo_engine.config.mismatch import ROUNDING, Gap
from grpo_engine.config.settings import AlertsConfig
from grpo_engine.events import AlertRaised, EvaluationFinished, Event, StepFinished

WINDOW, REPEAT = 40, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the rules need to know about the run besides its metrics; None where not applicable."""

    updates_per_step: int = 1
    has_bounds: bool = True
    accuracy: str | None = None
    sampler_gap: Gap = ROUNDING["float32"]
    corrected: bool = False
    memory_gb: float | None = None
    thresholds: AlertsConfig = field(default_factory=AlertsConfig)


class Alerts:
    """A fold of events into alerts."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._history: list[dict[str, float]] = []
        self._start: list[dict[str, float]] = []
        self._evaluations: list[tuple[int, float]] = []
        self._raised: dict[str, int] = {}

    def observe(self, event: Event) -> Iterator[AlertRaised]:
        """Process an event and yield the alerts that it raises."""
        match event:
            case StepFinished():
                numbers = {key: float(value) for key, value in event.metrics.items()}
                self._history = [*self._history, numbers][-WINDOW:]
                if len(self._start) < 10:
                    self._start.append(numbers)
                yield from self._raise(event.step)
            case EvaluationFinished() if "eval/accuracy" in event.metrics:
                if event.mode == "sampled" or event.samples == 1:
                    self._evaluations.append((event.step, event.metrics["eval/accuracy"]))

    def _raise(self, step: int) -> Iterator[AlertRaised]:
        facts = Facts(
            history=self._history,
            start=self._start,
            evaluations=self._evaluations,
            updates_per_step=self._limits.updates_per_step,
            has_bounds=self._limits.has_bounds,
            accuracy=self._limits.accuracy,
            sampler_gap=self._limits.sampler_gap,
            corrected=self._limits.corrected,
            memory_gb=self._limits.memory_gb,
            limits=self._limits.thresholds,
        )
        for rule in RULES:
            finding = rule(facts)
            if finding is None:
                self._raised.pop(rule.__name__, None)
            elif step - self._raised.get(rule.__name__, -REPEAT) >= REPEAT:
                self._raised[rule.__name__] = step
                yield raised(step, rule.__name__, finding)

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "history": self._history,
            "start": self._start,
            "evaluations": self._evaluations,
            "raised": self._raised,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self._history = [dict(row) for row in state["history"]]
        self._start = [dict(row) for row in state["start"]]
        self._evaluations = [(int(step), float(value)) for step, value in state["evaluations"]]
        self._raised = dict(state["raised"])


def raised(step: int, rule: str, finding: Finding, group: int | None = None) -> AlertRaised:
    """Return the event for a finding."""
    return AlertRaised(step=step, rule=rule, group=group, **asdict(finding))
