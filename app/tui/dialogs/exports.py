"""`e`: asks which of the things that a screen shows is written, and writes it."""

import asyncio
from collections.abc import Iterable

from textual import work

from grpo_tui.app.tui.dialogs.choices import Choice
from grpo_tui.app.tui.dialogs.dialog import AppScreen
from grpo_tui.app.tui.exporting import Export, written
from grpo_tui.app.tui.store.reader import reporting


class ExportingScreen(AppScreen):
    """A base class for screens that can be written to files; list it before `Screen`."""

    def exports(self) -> Iterable[Export]:
        """What `e` writes of this screen."""
        return ()

    def action_export(self) -> None:
        """Ask what is to be written, where there is more than one thing."""
        if self.refused():
            return
        options = list(self.exports())
        if not options:
            self.notify("There is nothing here to write to a file yet.")
        elif len(options) == 1:
            self._export(options[0])
        else:
            question = "A new file, in the folder that the program was started in."
            choices = [(option, option.key, option.name, option.description) for option in options]
            dialog = Choice[Export]("export", question, choices)
            self.app.push_screen(dialog, self._export_chosen)

    def _export_chosen(self, export: Export | None) -> None:
        if export is not None:
            self._export(export)

    @work(exclusive=True, group="export")
    async def _export(self, export: Export) -> None:
        """Write a file, and name it."""
        with reporting(self):
            self.notify(f"Wrote {await asyncio.to_thread(written, export)}")
