"""Keys that steer a run, the same on Runs and Watch: pause, stop, checkpoint."""

from typing import TYPE_CHECKING, ClassVar, Final

from textual.binding import Binding

if TYPE_CHECKING:
    from app.app import Workbench
    from app.run_state import Snapshot

CONTROL_BINDINGS: Final = (
    Binding("full_stop", "pause", "pause run", id="run.pause",
            tooltip="Let the engine hold at the next token or micro-batch, or go on"),
    Binding("w", "checkpoint", "checkpoint", id="run.checkpoint",
            tooltip="Save everything needed to go on, when the step in hand is done"),
    Binding("s", "stop", "stop…", id="run.stop",
            tooltip="Stop after this step, or now; asks first"),
)  # fmt: skip


class ControlActions:
    """Actions of `CONTROL_BINDINGS` for the shown run."""

    workbench: "Workbench"
    snapshot: "Snapshot"
    _steers: ClassVar[bool] = True

    def action_pause(self) -> None:
        """Ask the engine to hold, or to go on."""
        waiting = self.snapshot.status == "paused" or self.snapshot.asked == "pause"
        self.workbench.control("continue" if waiting else "pause")

    def action_checkpoint(self) -> None:
        """Ask for a checkpoint."""
        self.workbench.control("checkpoint")

    def action_stop(self) -> None:
        """Ask how to stop."""
        from app.screens.dialogs import StopDialog

        if self.snapshot.active:
            self.workbench.push_screen(StopDialog(self.snapshot), self._stop)
        else:
            self.workbench.notify("No run is going on.", severity="warning")

    def _stop(self, verb: str | None) -> None:
        if verb == "stop_now":
            self.workbench.control("stop_now")
        elif verb == "stop_after_step":
            self.workbench.control("stop_after_step")
