"""Textual's command palette with our own input field."""

import asyncio
from contextlib import suppress

from textual import on, work
from textual.app import ComposeResult
from textual.command import CommandInput, CommandPalette
from textual.reactive import var
from textual.widgets import Input
from textual.worker import WorkerCancelled

from grpo_tui.app.tui.dialogs.dialog import DismissedOnce
from grpo_tui.app.tui.widgets.field import Field

TYPING_S = 0.05  # between two keys that are typed in one go; nothing is searched between them


class ActionField(CommandInput, Field):
    """The palette's search field; Textual's style sheets match the first base class."""


class ActionPalette(DismissedOnce, CommandPalette):
    """The command palette, listing every action."""

    ready = var(True)  # False between enter and the choice of the first hit

    def compose(self) -> ComposeResult:
        """Textual's widgets, with its field replaced."""
        for widget in super().compose():
            if isinstance(widget, CommandInput):
                yield ActionField(placeholder=self._placeholder, select_on_focus=False)
            else:
                yield widget

    def on_mount(self) -> None:
        """Show the field at once; Textual waits for the first hits."""
        self.add_class("-ready")

    @on(Input.Changed)
    def search(self, event: Input.Changed) -> None:
        """Search once nothing more is typed; overrides Textual, which searches for each letter."""
        event.stop()
        event.prevent_default()
        self._cancel_gather_commands()
        self._stop_no_matches_countdown()
        self._search_soon(event.value.strip())

    @work(exclusive=True, group="typing")
    async def _search_soon(self, text: str) -> None:
        await asyncio.sleep(TYPING_S)
        self._gather_commands(text)

    @on(Input.Submitted)
    def choose(self, event: Input.Submitted) -> None:
        """Take the first hit once there are hits; overrides Textual, which needs them by now."""
        event.stop()
        event.prevent_default()
        if self.ready:
            self.ready = False
            self._choose()

    @work
    async def _choose(self) -> None:
        groups = ("typing", self._GATHER_COMMANDS_GROUP)
        while open_ := [w for w in self.workers if w.group in groups and not w.is_finished]:
            with suppress(WorkerCancelled):  # by esc
                await self.workers.wait_for_complete(open_)
        self.ready = not self._hit_count  # else the choice closes the palette
        self._select_or_command()
