"""The dialogs of Runs: the queue; archive or delete; name, tags and note; the columns."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from textual import work
from textual.app import ComposeResult
from textual.reactive import reactive

from grpo_engine.metrics import METRICS, spec
from grpo_tui.app.jobs.launch import start_queue_worker
from grpo_tui.app.text.safe_text import cell_len, pad, safe
from grpo_tui.app.text.words import first_of
from grpo_tui.app.tui.dialogs.ask import InputDialog
from grpo_tui.app.tui.dialogs.choices import Choice
from grpo_tui.app.tui.dialogs.dialog import Dialog
from grpo_tui.app.tui.dialogs.help.subject import HelpSubject
from grpo_tui.app.tui.dialogs.picker import PickerItem
from grpo_tui.app.tui.keys import bindings
from grpo_tui.app.tui.store.reader import reporting
from grpo_tui.app.tui.store.writes import shared_tags
from grpo_tui.app.tui.widgets.field import Field
from grpo_tui.app.tui.widgets.key_bar import KeyBar
from grpo_tui.app.tui.widgets.list_panel import ListPanel
from grpo_tui.app.tui.widgets.panel import Line, list_row, paragraph
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.values import QueueItemView, RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.queue import RunQueue

    Change = Callable[[RunQueue, QueueItemView], object]
    from grpo_tui.experiments.reader import StoreReader

ENDED = 20  # how many runs are listed that are no longer in the queue
AGAIN = ("skipped", "failed", "cancelled")
EMPTY = "The queue is empty. New run (2) and `grpo-tui sweep` add runs to it."
NEED_ITEMS = frozenset({"start_worker", "remove", "train_anyway"})


class QueuePanel(ListPanel):
    """One line per run in the queue."""

    items: reactive[tuple[QueueItemView, ...]] = reactive(())

    def count(self) -> int:
        return len(self.items)

    @property
    def item(self) -> QueueItemView | None:
        """The run under the cursor."""
        return self.items[self.selected] if self.items else None

    def paint(self, width: int, height: int) -> list[Line]:
        """State, name, differing settings, and the run it became; below, the whole note."""
        self.note = f"{sum(item.state == 'queued' for item in self.items)} waiting"
        if self.item is None:
            return paragraph(EMPTY, width, height, "label")
        note = paragraph(self.item.note, width, height // 2, "text") if self.item.note else []
        blocks = []
        names = [safe(item.name or item.sweep or "run") for item in self.items]
        name_width = min(24, max(map(cell_len, names)))
        for index, (item, name) in enumerate(zip(self.items, names, strict=True)):
            settings = ", ".join(
                f"{path.rpartition('.')[2]}={value}" for path, value in item.settings.items()
            )
            line = [
                (pad("running" if item.state == "leased" else item.state, 11), "label"),
                (pad(name, name_width) + "  ", "headline"),
                (pad(item.note or settings, max(1, width - name_width - 23)) + "  ", "text"),
                (pad(item.run or "", 8), "label"),
            ]
            blocks.append([list_row(line, width, selected=index == self.selected)])
        height -= len(note)
        lines = self.listed(blocks, height, self.selected)
        return [*lines, *([[]] * (height - len(lines))), *note]


class QueueScreen(Dialog[None]):
    """Show waiting runs and the worker that takes them."""

    DEFAULT_CSS = "QueueScreen { background: $background; }"
    BINDINGS = bindings("queue")

    def compose(self) -> ComposeResult:
        yield QueuePanel("queue")
        yield KeyBar()

    def on_mount(self) -> None:
        """Read the queue, and poll for changes."""
        self.query_one(QueuePanel).focus()
        self.query_one(KeyBar).hidden = NEED_ITEMS  # Nothing is read yet.
        self.refresh_queue()
        self.set_interval(1.0, self.refresh_queue)

    @work(exclusive=True)
    async def refresh_queue(self) -> None:
        """Read the queue."""
        try:
            items = await self.read("queue", lambda reader: reader.queue(ended=ENDED))
        except (StoreError, asyncio.CancelledError):
            return
        self.query_one(QueuePanel).items = items
        self.query_one(KeyBar).hidden = frozenset() if items else NEED_ITEMS

    def action_explain(self) -> None:
        """Explain the queue and its keys."""
        from grpo_tui.app.tui.dialogs.help.screen import HelpScreen

        self.app.push_screen(HelpScreen(HelpSubject("screen:queue"), self, "queue"))

    def action_start_worker(self) -> None:
        """Start a process that works through the queue."""
        if self.refused():
            return
        start_queue_worker(self.workbench.store)
        self.workbench.follows_queue = True
        self.notify("A worker trains the waiting runs, one after another.")

    def action_remove(self) -> None:
        """Remove the run under the cursor from the queue."""
        self._change(
            ("queued",), lambda queue, item: queue.finish(item.key, "cancelled"), "no longer waits"
        )

    def action_train_anyway(self) -> None:
        """Queue the run under the cursor once more."""
        self._change(
            AGAIN,
            lambda queue, item: queue.requeue(item.state, item=item.key),
            "waits again; ⏎ starts a worker",
        )

    def _change(self, states: Sequence[str], change: "Change", result: str) -> None:
        """Change the run under the cursor if it is in one of the states."""
        item = self.query_one(QueuePanel).item
        if item is None or self.refused():
            return
        name = item.name or "The run"
        if item.state in states:
            self._write(lambda queue: change(queue, item), f"{name} {result}.")
        else:
            self.notify(f"{name} is {item.state}.")

    @work(group="write")
    async def _write(self, change: "Callable[[RunQueue], object]", done: str) -> None:
        from grpo_tui.experiments.queue import RunQueue

        with reporting(self):
            await self.workbench.write(lambda store: change(RunQueue(store)))
            self.notify(done)
            self.refresh_queue()


def remove_dialog(runs: Sequence[RunSummary]) -> Choice[str]:
    """Ask whether to archive or to delete runs."""
    names = first_of([run.title for run in runs], 5)
    archive = ("archive", "a", "archive", "hide from the list; nothing is removed")
    if all(run.archived for run in runs):
        archive = ("restore", "a", "bring back", "list them again")
    delete = (
        "delete",
        "d",
        "delete",
        "everything that was recorded, with checkpoints; u undoes it until the workbench closes",
    )
    return Choice("remove runs" if len(runs) > 1 else "remove the run", names, [archive, delete])


def describe_dialog(runs: Sequence[RunSummary]) -> InputDialog:
    """Ask for the name, tags and note of a run, or for the shared tags of several."""
    tags = Field(" ".join(shared_tags(runs)), select_on_focus=False)
    if len(runs) > 1:
        return InputDialog(
            f"{len(runs)} runs", {"tags that all of them have, separated by spaces": tags}
        )
    note = Field(runs[0].note, select_on_focus=False)
    fields = {"name": Field(runs[0].name), "tags, separated by spaces": tags, "note": note}
    return InputDialog("the run", fields)


def column_items(
    reader: "StoreReader", columns: Sequence[str], groups: Sequence[str] = ()
) -> list[PickerItem]:
    """What to choose from: these columns and properties of runs, the settings and the metrics."""
    from grpo_engine.config.parse import settings
    from grpo_tui.experiments.read.columns import Names

    names, declared = Names(reader.column), settings()
    paths = sorted(names.settings)  # those of other versions come last
    metrics = sorted(names.metrics)

    def about(path: str) -> str:
        return declared[path].help.replace("`", "") if path in declared else ""

    items = [
        *(
            PickerItem(f"={path}", (path, about(path)))
            for path in sorted(paths, key=[*declared, *paths].index)
            if path not in groups
        ),
        *(
            PickerItem(f"{stat} {key}", (f"{stat} {key}", spec(key).help), also=spec(key).also)
            for key in sorted(metrics, key=[*METRICS, *metrics].index)
            for stat in ("best", "last")
        ),
    ]
    listed = {item.value for item in items}
    first = [(text, safe(text)) for text in columns if text not in listed]
    first += [(text, text or "no groups") for text in groups]
    return [*(PickerItem(value, (text, "")) for value, text in first), *items]
