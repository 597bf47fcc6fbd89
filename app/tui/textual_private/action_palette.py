"""Textual's command palette with our own input field."""

import asyncio
from contextlib import suppress

from textual import on
from textual.app import ComposeResult
from textual.command import CommandInput, CommandPalette
from textual.widgets import Input
from textual.worker import WorkerCancelled

from grpo_tui.app.tui.dialogs.dialog import DismissedOnce
from grpo_tui.app.tui.widgets.field import Field

HITS_S = 2.0  # how long enter waits


class ActionField(CommandInput, Field):
    """The palette's search field; Textual's style sheets match the first base class."""


class ActionPalette(DismissedOnce, CommandPalette):
    """The command palette, listing every action."""

    def compose(self) -> ComposeResult:
        """Textual's widgets, with its field replaced."""
        for widget in super().compose():
            if isinstance(widget, CommandInput):
                yield ActionField(placeholder=self._placeholder, select_on_focus=False)
            else:
                yield widget

    @on(Input.Submitted)
    async def wait_for_hits(self) -> None:
        """Let an early enter wait for the hits; Textual takes the first one afterwards.

        A search may wait for this field in turn, so that the wait has an end.
        """
        group = self._GATHER_COMMANDS_GROUP
        open_ = [one for one in self.workers if one.group == group and not one.is_finished]
        with suppress(WorkerCancelled, TimeoutError):  # by the next key
            await asyncio.wait_for(self.workers.wait_for_complete(open_), HITS_S)
