"""Keys that control a run, the same on Runs and Watch: pause, stop, checkpoint."""

from dataclasses import dataclass

from grpo_tui.app.feed.snapshot import Request, Snapshot
from grpo_tui.app.tui.dialogs.choices import Choice
from grpo_tui.app.tui.screens.base import WorkbenchScreen

CONTROLS = frozenset(("pause", "checkpoint", "stop"))
CONTINUE_KEY = {"pause": "continue"}  # the pause key's label while the run is paused


@dataclass(frozen=True, slots=True)
class ControlledRun:
    """The run that the keys act on."""

    name: str
    active: bool
    pausing: bool

    @classmethod
    def of(cls, snapshot: Snapshot) -> "ControlledRun":
        """The run of a snapshot; a requested pause counts as paused."""
        pausing = snapshot.requested == "pause" or (
            snapshot.status == "paused" and snapshot.requested != "continue"
        )
        return cls(snapshot.head.name, snapshot.active, pausing)


class ControlScreen(WorkbenchScreen):
    """A screen with the keys of `CONTROLS`, for the shown run unless it names another."""

    def controlled_run(self) -> ControlledRun | None:
        """The run that the keys act on at this moment."""
        session = self.workbench.session
        return ControlledRun.of(session.state.snapshot()) if session is not None else None

    def unused_controls(self, *, active: bool) -> frozenset[str]:
        """The keys that change nothing: without an active run, or where the view is read-only."""
        return frozenset() if active and not self.workbench.read_only else CONTROLS

    def send(self, verb: Request) -> None:
        """Send a request to that run."""
        self.workbench.control(verb)

    def action_pause(self) -> None:
        """Ask the engine to pause or to continue."""
        run = self.controlled_run()
        self.send("continue" if run is not None and run.pausing else "pause")

    def action_checkpoint(self) -> None:
        """Ask for a checkpoint."""
        self.send("checkpoint")

    def action_stop(self) -> None:
        """Ask how to stop."""

        def stop(verb: Request | None) -> None:
            if verb:
                self.send(verb)

        run = self.controlled_run()
        if run is None or not run.active:
            self.warn("No run is active.")
        elif not self.refused():
            self.app.push_screen(stop_dialog(run), stop)


def stop_dialog(run: ControlledRun) -> Choice[Request]:
    """Ask how to stop a run; without the number of its step, since it trains on meanwhile."""
    return Choice(
        "stop the run",
        f"Stop {run.name or 'the run'}? r on Runs resumes it from its last checkpoint.",
        [
            ("stop_after_step", "s", "after this step", "finish this step and save it"),
            ("stop_now", "x", "now", "drop this step and those since the last checkpoint"),
            ("", "n", "keep running", "change nothing"),
        ],
    )
