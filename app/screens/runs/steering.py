"""The keys that steer a run on Runs: they act on the run under the cursor, wherever it trains."""

from functools import partial
from typing import Final

from app.run_state import Asked
from app.screens.control import ControlActions, Steered
from app.screens.runs import writes
from app.screens.runs.changes import ChangeActions
from app.session import Session
from experiments.errors import StoreError
from experiments.values import RunSummary

WORDS: Final = {
    "pause": "a pause", "continue": "going on", "checkpoint": "a checkpoint",
    "stop_after_step": "a stop after this step", "stop_now": "a stop now",
}  # fmt: skip


class SteerActions(ControlActions, ChangeActions):
    """Pause, stop and checkpoint for the run under the cursor."""

    def _session(self, run: RunSummary) -> Session | None:
        """The run as this process holds it: trained here, or on screen."""
        bench = self.workbench
        if bench.live is not None and bench.live.run == run.key:
            return bench.live
        return bench.session if bench.session and bench.session.run == run.key else None

    def steered(self) -> Steered | None:
        """The run under the cursor."""
        run = self.view.chosen
        if run is None:
            return None
        session = self._session(run)
        if session is not None and session.feed.mark == "":
            return Steered.of(session.state.snapshot())
        return Steered(run.name or run.id, run.active, run.status == "paused", run.step,
                       run.total_steps)  # fmt: skip

    def steer(self, verb: Asked) -> None:
        """Ask it; the answer names the run."""
        run, found = self.view.chosen, self.steered()
        if run is None or found is None:
            self.notify("No run is under the cursor.", severity="warning")
        elif self.workbench.read_only:
            self.notify("This view is read-only.", severity="warning")
        elif not found.active:
            self.notify(f"{found.name} has ended.", severity="warning", markup=False)
        else:
            self.notify(f"{found.name} is asked for {WORDS[verb]}.", markup=False)
            session = self._session(run)
            if session is not None and session.feed.may_control:
                session.ask(verb)
                self.workbench.frame_now()
            else:
                self.run_worker(partial(self._leave_request, run, verb), thread=True,
                                group="steer", exit_on_error=False)  # fmt: skip

    def _leave_request(self, run: RunSummary, verb: str) -> None:
        """Ask the process that trains it, through the store; called on a thread."""
        try:
            problem = writes.request(self.workbench.store, run, verb)
        except StoreError as error:
            problem = str(error)
        if problem and self.workbench.is_running:
            self.workbench.call_from_thread(
                self.notify, f"{run.name or run.id}: {problem}", severity="warning", markup=False
            )
