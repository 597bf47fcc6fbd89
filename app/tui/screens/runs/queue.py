"""The queue: waiting runs, and the worker that takes them."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.reactive import reactive

from grpo_tui.app.jobs.launch import start_queue_worker
from grpo_tui.app.text.safe_text import cell_len, pad, wrap
from grpo_tui.app.tui.lifecycle import RunApp
from grpo_tui.app.tui.looks.colours import style
from grpo_tui.app.tui.textual_private.screens import Dialog
from grpo_tui.app.tui.widgets.key_bar import KeyBar
from grpo_tui.app.tui.widgets.panel import Line, Panel
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.values import QueueItemView

if TYPE_CHECKING:
    from grpo_tui.experiments.queue import RunQueue

ENDED = 20  # how many runs are listed that are no longer in the queue
AGAIN = ("skipped", "failed", "cancelled")
EMPTY = "The queue is empty. New run (2) and `grpo-tui sweep` add runs to it."


class QueuePanel(Panel):
    """One line per run in the queue."""

    items: reactive[tuple[QueueItemView, ...]] = reactive(())
    cursor: reactive[int] = reactive(0)

    def paint(self, width: int, height: int) -> list[Line]:
        """State, name, differing settings, and the run it became."""
        self.note = f"{sum(item.state == 'queued' for item in self.items)} waiting"
        palette = self.palette
        if not self.items:
            return [[(part, style(palette.label))] for part in wrap(EMPTY, width, height)]
        chosen = self.items[min(self.cursor, len(self.items) - 1)]
        told = self._told(chosen, width, height // 2)
        height -= len(told)
        top = max(0, self.cursor - height + 1)
        lines: list[Line] = []
        for place, item in enumerate(self.items[top : top + height], top):
            back = palette.cursor if place == self.cursor else palette.paper
            settings = ", ".join(f"{path}={value}" for path, value in item.settings.items())
            lines.append(
                [
                    (pad(item.state, 11), style(palette.label, back)),
                    (pad(item.name or item.sweep or "run", 24), style(palette.headline, back)),
                    (pad(item.note or settings, note_width(width)), style(palette.text, back)),
                    (pad(item.run or "", 10), style(palette.label, back)),
                ]
            )
        blank: Line = [("", None)]
        return [*lines, *[blank] * (height - len(lines)), *told]

    def _told(self, item: QueueItemView, width: int, most: int) -> list[Line]:
        """The whole note of a run, if its line has no room for it."""
        if cell_len(item.note) <= note_width(width):
            return []
        look = style(self.palette.text)
        return [[(part, look)] for part in ("", *wrap(item.note, width, most))]


def note_width(width: int) -> int:
    """The cells that a line has for a note beside state, name and run."""
    return max(1, width - 45)


NEED_ITEMS = frozenset({"work", "cancel", "again"})


class QueueScreen(Dialog[None]):
    """Show waiting runs and the worker that takes them."""

    DEFAULT_CSS = "QueueScreen { background: $background; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", "down", id="queue.down", show=False, tooltip="Next"),
        Binding("up,k", "move(-1)", "up", id="queue.up", show=False, tooltip="Previous"),
        Binding("enter", "work", "start a worker", id="queue.work",
                tooltip="Train the waiting runs, one after another, in a background process"),
        Binding("x", "cancel", "remove", id="queue.cancel",
                tooltip="Remove a waiting run from the queue"),
        Binding("a", "again", "train anyway", id="queue.again",
                tooltip="Train a run that was skipped, failed or removed after all"),
        Binding("escape,q,Q", "close", "close", id="queue.close", tooltip="Back to the runs"),
    ]  # fmt: skip

    @property
    def workbench(self) -> RunApp:
        """The app with its own type."""
        assert isinstance(self.app, RunApp)
        return self.app

    def compose(self) -> ComposeResult:
        yield QueuePanel("queue")
        yield KeyBar()

    def on_mount(self) -> None:
        """Read the queue, and poll for changes."""
        self.query_one(KeyBar).hidden = NEED_ITEMS
        self._look()
        self.set_interval(1.0, self._look)

    def _look(self) -> None:
        self._read()

    @work(exclusive=True)
    async def _read(self) -> None:
        try:
            items = await self.workbench.reader.ask(
                lambda reader: reader.queue(ended=ENDED), "queue"
            )
        except (StoreError, asyncio.CancelledError):
            return
        self.query_one(QueuePanel).items = items
        self.query_one(KeyBar).hidden = frozenset() if items else NEED_ITEMS

    def action_move(self, by: int) -> None:
        panel = self.query_one(QueuePanel)
        panel.cursor = max(0, min(len(panel.items) - 1, panel.cursor + by))

    def action_work(self) -> None:
        """Start a process that works through the queue."""
        if self.workbench.read_only:
            self.notify("This view is read-only.", severity="warning")
            return
        start_queue_worker(self.workbench.store)
        self.notify("A worker trains the waiting runs, one after another.")

    def action_cancel(self) -> None:
        """Remove the run under the cursor from the queue."""
        panel = self.query_one(QueuePanel)
        if not panel.items or self.workbench.read_only:
            return
        item = panel.items[min(panel.cursor, len(panel.items) - 1)]
        if item.state != "queued":
            self.notify(f"Only a waiting run can be removed; this one is {item.state}.")
            return
        self._write(lambda queue: queue.cancel(item.key))

    def action_again(self) -> None:
        """Queue the run under the cursor once more."""
        panel = self.query_one(QueuePanel)
        if not panel.items or self.workbench.read_only:
            return
        item = panel.items[min(panel.cursor, len(panel.items) - 1)]
        if item.state not in AGAIN:
            self.notify(
                f"This run is {item.state}; what was skipped or failed can be queued again."
            )
            return
        done = f"{item.name or 'The run'} waits again; ⏎ starts a worker."
        self._write(lambda queue: queue.requeue(item.state, item=item.key), done)

    @work(group="write")
    async def _write(self, change: "Callable[[RunQueue], object]", done: str = "") -> None:
        path = self.workbench.store

        def write() -> None:
            from grpo_tui.experiments.queue import RunQueue
            from grpo_tui.experiments.store import ExperimentStore

            with closing(ExperimentStore(path)) as store:
                change(RunQueue(store))

        try:
            await self.workbench.write(write)
        except StoreError as error:
            self.notify(str(error), severity="error")
            return
        if done:
            self.notify(done)
        self._look()

    def action_close(self) -> None:
        """Return to the runs."""
        self.dismiss(None)
