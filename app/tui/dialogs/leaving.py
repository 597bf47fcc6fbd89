"""The questions before quitting: what to do with the run, or just whether to quit."""

from typing import Literal

from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.tui.dialogs.choices import Choice

Plan = Literal["", "stay", "hand_over", "stop", "now", "leave"]


def quit_dialog(name: str) -> Choice[Plan]:
    """Ask what to do with the run in this process."""
    return Choice(
        "leave the workbench",
        f"{name} trains in this process.",
        [
            ("stay", "n", "stay", "change nothing"),
            ("hand_over", "h", "hand over and leave", "it continues in the background"),
            ("stop", "s", "checkpoint, stop and leave", "resume continues from there"),
        ],
    )


def wait_dialog(snapshot: Snapshot, name: str) -> Choice[Plan]:
    """Ask whether to wait for the run to stop."""
    step = snapshot.current_step
    question = f"{name} finishes step {step} first. That takes a moment."
    return Choice(
        "leave the workbench",
        question,
        [
            ("stay", "w", "wait", "for the step and its checkpoint"),
            ("now", "x", "do not wait", f"drop step {step}"),
        ],
    )


def leave_dialog(watching: str, *, deleted: bool) -> Choice[Plan]:
    """Ask whether to quit when no run would be lost."""
    question = "Leave the workbench?"
    if deleted:
        question += " Runs that were deleted are then removed for good."
    if watching:
        question += f" {watching} continues without it; `grpo-tui watch {watching}` shows it."
    return Choice("quit", question, [("leave", "y", "leave", ""), ("stay", "n", "stay", "")])
