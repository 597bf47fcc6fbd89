"""What the Runs screen changes in the store: archive, tags, names and notes."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from textual.reactive import reactive

from app.screens.ask import Ask
from app.screens.base import WorkbenchScreen
from app.screens.runs import writes
from app.screens.runs.view import View
from experiments.errors import StoreError
from experiments.values import RunSummary


class ChangeActions(WorkbenchScreen):
    """Actions on the marked runs, or on the one under the cursor; each writes in a thread."""

    view: reactive[View] = reactive(View, repaint=False)

    def __init__(self) -> None:
        super().__init__()
        self._archived_last: tuple[RunSummary, ...] = ()

    def refresh_runs(self) -> None:
        """Read the table again."""
        raise NotImplementedError

    def _write(self, call: Callable[[], None], done: str) -> None:
        if self.workbench.read_only:
            self.notify("This view is read-only.", severity="warning")
            return

        def guarded() -> None:
            try:
                call()
            except StoreError as error:
                self.app.call_from_thread(self.notify, str(error), severity="error")
                return
            self.app.call_from_thread(self._written, done)

        self.run_worker(guarded, thread=True, group="write")

    def _written(self, done: str) -> None:
        self.notify(done)
        self.refresh_runs()

    def action_archive(self) -> None:
        """Hide the marked runs, or bring archived ones back."""
        picked, path = self.view.picked, self.workbench.store
        going = [run for run in picked if run.active]
        if not picked:
            return
        if going:
            self.notify(f"{going[0].name or going[0].id} is going on; stop it first (s).")
            return
        back = all(run.archived for run in picked)
        self._archived_last = () if back else picked
        count = f"{len(picked)} run{'s' if len(picked) > 1 else ''}"
        done = f"{count} back in the list" if back else f"{count} archived; u brings them back"
        self.view = replace(self.view, marks=frozenset())
        self._write(partial(writes.set_archived, path, picked, not back), done)

    def action_undo(self) -> None:
        """Bring back what was archived last."""
        runs, self._archived_last = self._archived_last, ()
        if runs:
            call = partial(writes.set_archived, self.workbench.store, runs, False)
            self._write(call, f"{len(runs)} brought back")
        else:
            self.notify("Nothing was archived here; A shows archived runs.")

    def action_tags(self) -> None:
        """Ask for tags to add and to remove."""
        picked = self.view.picked
        if not picked:
            return
        hint = f"Tags for {len(picked)} run(s), separated by spaces; -tag removes one."
        now = " ".join(dict.fromkeys(tag for run in picked for tag in run.tags))

        def done(text: str | None) -> None:
            if text is not None and text.strip():
                call = partial(writes.change_tags, self.workbench.store, picked, text)
                self._write(call, "tags changed")

        self.app.push_screen(Ask("tags", f"{hint}\nNow: {now or 'none'}"), done)

    def action_rename(self) -> None:
        """Ask for another name."""
        run = self.view.chosen
        if run is None:
            return
        chosen: RunSummary = run

        def done(text: str | None) -> None:
            if text is not None and text.strip() and text != chosen.name:
                call = partial(writes.rename, self.workbench.store, chosen, text.strip())
                self._write(call, f"renamed to {text.strip()}")

        self.app.push_screen(Ask("name", "Another name for this run.", chosen.name), done)

    def action_note(self) -> None:
        """Ask for a note."""
        run = self.view.chosen
        if run is None:
            return
        chosen: RunSummary = run

        def done(text: str | None) -> None:
            if text is not None and text != chosen.note:
                self._write(partial(writes.annotate, self.workbench.store, chosen, text), "noted")

        self.app.push_screen(
            Ask("note", "What is worth knowing about this run.", chosen.note), done
        )
