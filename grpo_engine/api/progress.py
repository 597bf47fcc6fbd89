"""A progress bar for runs in notebooks and on terminals, with lines above it for what matters."""

import sys
from collections.abc import Mapping
from typing import Any

from tqdm.auto import tqdm

from grpo_engine import events as ev

SHOWN = (("reward", "reward"), ("kl", "kl"), ("completions/mean_length", "length"))


class ProgressBar:
    """One bar over the steps of a run; without a notebook or a terminal only the lines."""

    def __init__(self, total: int, visible: bool | None) -> None:
        if visible is None:
            hidden = not (sys.stderr.isatty() or "ipykernel.kernelapp" in sys.modules)
        else:
            hidden = not visible
        self._silent = visible is False
        self._bar: Any = tqdm(total=total, unit="step", disable=hidden)

    def show(self, event: ev.Event) -> None:
        """Move the bar, or print a line."""
        match event:
            case ev.RunStarted():
                self._bar.update(event.step - self._bar.n)
            case ev.PhaseStarted():
                self._bar.set_description_str(event.phase)
            case ev.StepFinished():
                self._bar.set_postfix(_numbers(event.metrics), refresh=False)
                self._bar.update(event.step - self._bar.n)
            case ev.EvaluationFinished():
                label = "accuracy" if "eval/accuracy" in event.metrics else "reward"
                value, count = (event.metrics[f"eval/{part}{label}"] for part in ("", "scored/"))
                self.write(
                    f"{event.moment} (step {event.step}), {event.mode}: {label} {value:.3f} "
                    f"(n={count:.0f})"
                )
            case ev.AlertRaised():
                self.write(f"{event.severity}: {event.explanation} {event.remedy}")
            case ev.NoteWritten(severity="info"):
                self.write(event.text)
            case ev.NoteWritten():
                self.write(f"{event.severity}: {event.text}")
            case ev.RunFinished():
                self.write(f"{event.reason} at step {event.step}")

    def write(self, text: str) -> None:
        """Print a line above the bar."""
        if not self._silent:
            self._bar.write(text, file=sys.stderr)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()


def _numbers(metrics: Mapping[str, float]) -> dict[str, str]:
    return {label: f"{metrics[key]:.3f}" for key, label in SHOWN if key in metrics}
