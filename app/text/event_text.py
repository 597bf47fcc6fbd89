"""Events in a sentence, for the log on Watch, the run's log file and the command line."""

from math import isnan

from grpo_engine import events as ev
from grpo_engine.metrics import spec
from grpo_tui.app.text.numbers import share, short
from grpo_tui.app.text.words import count_of, step_of


def sentence(event: ev.Event) -> str:
    """Say what happened; empty for progress, and for what a table or a panel shows."""
    match event:
        case ev.RunStarted():
            begun = "resumed after" if event.resumed else "started at"
            device = f" on {device_text(event.device)}" if event.device else ""
            recipe = f", recipe {event.recipe}" if event.recipe else ""
            return f"{begun} {step_of(event.step, event.total_steps)}{device}{recipe}"
        case ev.ModelLoaded(parameters=0):  # on a server, whose notes follow
            return f"tokenizer of {event.path} loaded and server reached in {event.seconds:.1f} s"
        case ev.ModelLoaded():
            return (
                f"model {event.path} in memory after {event.seconds:.1f} s: {event.parameters:,} "
                f"weights, {share(event.trainable / max(1, event.parameters))} of them trained, "
                f"{event.dtype}"
            )
        case ev.PassFinished(stop_reason=reason) if reason:
            return f"pass {event.index} was the last: {reason}"
        case ev.StepSkipped():
            return f"step {event.step} made no update: {event.reason}"
        case ev.EvaluationFinished():
            known = count_of(event.problems, "held-out problem")
            problems = known if event.problems else "held-out"
            return f"{problems} ({event.mode}){_results(event)}"
        case ev.BenchmarksMeasured():
            names = dict.fromkeys(score.task for score in event.scores)
            return f"{event.program} measured {', '.join(names)} in {event.seconds:.0f} s"
        case ev.CheckpointSaved():
            return f"checkpoint of step {event.step} saved{_best(event)}"
        case ev.NoteWritten():
            return event.text
        case ev.RunPaused():
            return f"paused: {event.reason}" if event.reason else "paused"
        case ev.RunResumed():
            return "resumed"
        case ev.RunFinished():
            return f"run {event.reason} at step {event.step}"
        case ev.RunFailed():
            return f"failed at step {event.step}: {event.message}"
    return ""


def _best(event: ev.CheckpointSaved) -> str:
    """By which metric a checkpoint is the best; the untrained model has none."""
    if not event.best:
        return ""
    metric = (
        f" by {spec(event.best_by).label.removesuffix(', sampled')}" if event.best_by else ""
    )  # older runs do not say
    return f", the best checkpoint so far{metric}"


def severity(event: ev.Event) -> ev.Severity:
    """How a line about the event is marked."""
    match event:
        case ev.NoteWritten() | ev.AlertRaised():
            return event.severity
        case ev.StepSkipped():
            return "warning"
        case ev.RunFailed():
            return "error"
    return "info"


def _results(event: ev.EvaluationFinished) -> str:
    accuracy = event.metrics.get(
        "eval/accuracy", event.metrics.get("accuracy")
    )  # Older runs have the second name.
    reward = event.metrics.get("eval/reward")
    right = f", {share(accuracy)} right" if accuracy is not None else ""
    if reward is None:
        return right
    scored = event.metrics.get("eval/scored/reward")
    count = "" if scored is None else f" (n={scored:.0f})"
    return right + (
        ", no answer has a score" if isnan(reward) else f", reward {short(reward)}{count}"
    )


def device_text(name: str) -> str:
    """A device in words; MLX calls one `Device(cpu, 0)`."""
    device = name.removeprefix("Device(").partition(",")[0]
    return f"the {device.upper()}" if device in ("cpu", "gpu") else name
