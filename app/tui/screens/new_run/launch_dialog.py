"""The dialog before a run is launched: what will happen, and where."""

from typing import Literal

from grpo_tui.app.tui.dialogs.choices import Choice
from grpo_tui.app.tui.screens.new_run.facts import cost_summary
from grpo_tui.app.tui.screens.new_run.view import View

PLACES: tuple[Literal["here", "detached", "queue"], ...] = ("here", "detached", "queue")


class LaunchDialog(Choice[str]):
    """Ask where to launch the run."""

    def __init__(self, view: View, busy: str) -> None:
        config = view.config
        assert config is not None
        super().__init__(f"launch {config.name or 'a new run'}", what(view, busy),
                         places(view, busy))  # fmt: skip


def what(view: View, busy: str) -> str:
    """Describe the run and any objections to it."""
    config = view.config
    assert config is not None
    rollout = config.rollout
    lines = [
        f"{config.model.path} learns {config.task.name} with {config.algorithm.recipe}: "
        f"{config.steps:,} steps of {rollout.prompts} × {rollout.group_size} answers.",
        f"{cost_summary(view)}.",
    ]
    fields = view.checked.fields
    changed = [path for path in view.checked.changed if path != "name"]
    if changed:
        more = f" and {len(changed) - 4} more" if len(changed) > 4 else ""
        lines.append(f"Differs from {view.origin.name}: {', '.join(changed[:4])}{more}.")
    if own := view.checked.own:
        said = ", ".join(f"{path.partition('.')[2]} {fields[path].text}" for path in own)
        lines.append(f"Differs from recipe {config.algorithm.recipe}: {said}.")
    found = view.verdict
    if not found:
        lines.append("It is still being checked; a run that would fail is refused.")
    elif words := found.get("problem") or found["now"] or " ".join(found["fetches"]):
        lines.append(f"▲ {words[:300]}")
    if view.lacking:
        lines.append(f"▲ {view.lacking}")
    elif busy:
        lines.append(f"{busy} trains in this process, and one process runs one at a time.")
    return "\n".join(lines)


def places(view: View, busy: str) -> list[tuple[str, str, str, str]]:
    """The ways to start it at this moment."""
    cannot = bool(view.lacking or view.verdict.get("now"))
    found = [] if cannot or busy else [
        ("here", "h", "here", "trains in this process; Watch opens")
    ]  # fmt: skip
    queue = ("queue", "q", "into the queue",
             "waits in the queue; Q on Runs starts a worker")  # fmt: skip
    aside = ("detached", "d", "detached", beside(busy))
    found += [queue] if cannot else [queue, aside] if busy else [aside, queue]
    return [*found, ("", "n", "not yet", "")]


def beside(busy: str) -> str:
    """Describe what starting the run in its own process means."""
    if not busy:
        return "in the background, even when this window closes"
    from grpo_tui.experiments.db.machine import memory_now

    held, free = memory_now()
    return f"in parallel; this process uses {held:.1f} GB, {free:.1f} GB are free"
