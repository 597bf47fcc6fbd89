"""The questions before quitting: what to do with the run, or just whether to quit."""

from typing import Literal

from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.tui.dialogs.choices import Choice

Plan = Literal["", "stay", "hand_over", "stop", "now", "leave"]


class QuitDialog(Choice[Plan]):
    """What to do with the run in this process."""

    def __init__(self, snapshot: Snapshot, name: str, waiting: Plan) -> None:
        step = snapshot.current_step
        if waiting:
            question = f"{name} finishes step {step} first. That takes a moment."
            answers: list[tuple[Plan, str, str, str]] = [
                ("stay", "w", "wait", "for the step and its checkpoint"),
                ("now", "x", "do not wait", f"drop step {step}"),
            ]
        else:
            question = f"{name} trains in this process, at step {step} of " \
                f"{snapshot.head.total_steps}."  # fmt: skip
            answers = [
                ("stay", "n", "stay", "change nothing"),
                ("hand_over", "h", "hand over and leave", "it continues in the background"),
                ("stop", "s", "checkpoint, stop and leave", "resume continues from there"),
            ]
        super().__init__("leave the workbench", question, answers)


class LeaveDialog(Choice[Plan]):
    """Whether to quit when no run would be lost."""

    def __init__(self, watching: str, *, deleted: bool = False) -> None:
        question = "Leave the workbench?"
        if deleted:
            question += " Runs that were deleted are then removed for good."
        if watching:
            question += f" {watching} continues without it; `grpo-tui watch {watching}` shows it."
        super().__init__("quit", question, [
            ("leave", "y", "leave", ""), ("stay", "n", "stay", ""),
        ])  # fmt: skip
