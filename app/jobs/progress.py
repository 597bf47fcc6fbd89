"""Output of `train` and `resume`: a live bar on a terminal, plain lines in a pipe, or JSON lines.

`RunProgress` folds events into a few numbers; the three printers only write them.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from grpo_engine import events as ev
from grpo_tui.app.jobs.report_table import before_and_after
from grpo_tui.app.text.event_text import sentence, severity
from grpo_tui.app.text.numbers import seconds
from grpo_tui.app.text.safe_text import safe
from grpo_tui.app.text.stderr import print_stderr


class Printer:
    """Shows the events of a run; this one prints nothing."""

    def show(self, event: ev.Event) -> None: ...

    def write(self, text: str) -> None: ...

    def close(self) -> None: ...


NUMBERS = {
    "reward": "reward {:.3f}",
    "kl": "kl {:.4f}",
    "completions/mean_length": "length {:.1f}",
    "tokens_per_second": "{:,.0f} tok/s",
    "step_time": "{:.2f} s/step",
}


class RunProgress:
    """The latest step and phase of a run, and the numbers of its last step."""

    def __init__(self, evaluations: Sequence[ev.EvaluationFinished] = ()) -> None:
        self.step = self.total = 0
        self.phase, self.share, self.awaited = "start", "", ""
        self.metrics: Mapping[str, float] = {}
        self.evaluations = list(evaluations)  # begins with those of earlier attempts
        self.adapter = ""

    def add(self, event: ev.Event) -> None:
        """Update from an event."""
        match event:
            case ev.RunStarted():
                self.step, self.total = event.step, event.total_steps or 0
            case ev.PhaseStarted():
                self.phase, self.share, self.awaited = event.phase, "", ""
            case ev.PhaseAdvanced(done=done, total=total) if total:
                self.share = f" {done}/{total}"
            case ev.RolloutsAdvanced(finished=done, total=total):
                self.share = f" {done}/{total}"
            case ev.ServerAwaited(detail=text):
                self.awaited = text
            case ev.StepFinished():
                self.step, self.metrics = event.step, event.metrics
            case ev.EvaluationFinished():
                self.evaluations.append(event)
            case ev.CheckpointSaved():
                self.adapter = event.path

    def numbers(self) -> str:
        """Format what is awaited of a server, reward, KL, speed and remaining time."""
        parts = [self.awaited] * bool(self.awaited)
        parts += [
            form.format(self.metrics[key]) for key, form in NUMBERS.items() if key in self.metrics
        ]
        left = self.total - self.step
        if "step_time" in self.metrics and left > 0:  # what follows the last step is announced
            parts.append(f"{seconds(self.metrics['step_time'] * left)} left")
        return "  ".join(parts)


def line_of(event: ev.Event, progress: RunProgress) -> str:
    """Return the line for an event; empty for progress events."""
    match event:
        case ev.StepFinished():
            return f"step {event.step}/{progress.total}  {progress.numbers()}"
        case ev.AlertRaised():
            text = f"{event.explanation} {event.remedy}"
        case _:
            text = sentence(event)
    level = severity(event)
    return text if level == "info" or not text else f"{level}: {text}"


class LinePrinter(Printer):
    """Prints plain lines to stderr, and the table of results to stdout at the end."""

    def __init__(self, evaluations: Sequence[ev.EvaluationFinished]) -> None:
        self.run = RunProgress(evaluations)

    def show(self, event: ev.Event) -> None:
        self.run.add(event)
        if text := line_of(event, self.run):
            self.write(text)

    def write(self, text: str) -> None:
        print_stderr(text)

    def close(self) -> None:
        """Print the table of the first and last evaluation, and the adapter's path."""
        if table := before_and_after(self.run.evaluations):
            print(table)
        if self.run.adapter:
            print(f"adapter: {self.run.adapter}")
        sys.stdout.flush()


class StepBar(Progress):
    """The bar with a line of numbers below it.

    Both leave space at the right edge: a terminal echoes `^C` there, and must not wrap the line.
    """

    numbers = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return what is drawn several times a second."""
        yield from super().get_renderables()
        if self.numbers:
            width = max(1, self.console.width - len("^C^C") - 1)
            yield Text(self.numbers[:width], no_wrap=True)


class BarPrinter(LinePrinter):
    """Shows a bar with phase and steps, and numbers below it; events scroll by above."""

    # These events have no line: the bar shows them.
    _IN_THE_BAR = ev.StepFinished | ev.CheckpointSaved

    def __init__(self, evaluations: Sequence[ev.EvaluationFinished]) -> None:
        super().__init__(evaluations)
        self._console = Console(stderr=True, highlight=False)
        self._progress = StepBar(
            TextColumn("{task.fields[phase]:<18}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            console=self._console,
            refresh_per_second=8,
        )
        self._task = self._progress.add_task("run", total=None, phase="start")
        self._progress.start()

    def show(self, event: ev.Event) -> None:
        if isinstance(event, self._IN_THE_BAR):
            self.run.add(event)
        else:
            super().show(event)
        self._progress.numbers = self.run.numbers()
        self._progress.update(
            self._task,
            completed=self.run.step,
            total=self.run.total or None,
            phase=self.run.phase + self.run.share,
        )

    def write(self, text: str) -> None:
        self._console.print(safe(text), markup=False)

    def close(self) -> None:
        self._progress.stop()
        super().close()


class JsonPrinter(Printer):
    """Prints every event as one line of JSON, and nothing else, to stdout."""

    def show(self, event: ev.Event) -> None:
        sys.stdout.write(json.dumps(ev.to_json(event), ensure_ascii=True) + "\n")
        sys.stdout.flush()

    def write(self, text: str) -> None:
        print_stderr(text)


def printer(evaluations: Sequence[ev.EvaluationFinished] = (), *, as_json: bool) -> Printer:
    """Choose the printer by the kind of output; `evaluations` are those of earlier attempts."""
    if as_json:
        return JsonPrinter()
    if sys.stdout.isatty() and sys.stderr.isatty():
        return BarPrinter(evaluations)
    return LinePrinter(evaluations)
