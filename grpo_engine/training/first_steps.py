"""Names the rewards that made no difference in a run's first steps."""

from collections.abc import Iterator, Mapping, Sequence

from grpo_engine.alerts.rules import EARLY, mean_of
from grpo_engine.events import NoteWritten, warning
from grpo_engine.numbers import short
from grpo_engine.run.session import EngineRun


def reward_notes(run: EngineRun, step: int) -> Iterator[NoteWritten]:
    """After the first steps, a warning for each function whose scores were all equal or missing."""
    if step != min(EARLY, run.config.steps):
        return
    metrics = run.alerts.start[:EARLY]
    if all(row.get("environment/errors") == 1 for row in metrics):
        return  # no function was called
    when = "the first step" if len(metrics) == 1 else f"the first {len(metrics)} steps"
    for part in run.parts:
        if len(run.parts) > 1 and not any(row.get(f"task/{part.label}/groups") for row in metrics):
            continue
        for name in part.scorer.names:
            if outcome := _without_effect(metrics, name):
                text = f"reward {name} {outcome} of {when}, so it has had no effect. "
                text += part.scorer.advice(name)
                yield warning(step, text.rstrip(". "))


def _without_effect(metrics: Sequence[Mapping[str, float]], name: str) -> str:
    """How a function scored, if its scores cannot have mattered; else empty."""
    means = {row[mean_of(name)] for row in metrics if mean_of(name) in row}
    if not means:
        has_failed = any(f"rewards/{name}/failed" in row for row in metrics)
        return "scored no answer" if has_failed else "gave None to every answer"
    if len(means) == 1 and all(row.get(f"rewards/{name}/std") == 0 for row in metrics):
        return f"scored {short(means.pop())} for every answer"
    return ""
