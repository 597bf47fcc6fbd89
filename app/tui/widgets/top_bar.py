"""The top line: the five screens, the shown run and its step."""

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.message import Message
from textual.reactive import reactive

from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.text.run_columns import HEALTH_COLOURS
from grpo_tui.app.text.safe_text import cell_len, clip, safe
from grpo_tui.app.tui.widgets.pages import name_at, strip_of_titles
from grpo_tui.app.tui.widgets.panel import BarPanel, Line, cells, justified
from grpo_tui.experiments.values import RunSummary

TABS = {
    "runs": "1 Runs",
    "new_run": "2 New",
    "watch": "3 Watch",
    "rollouts": "4 Rollouts",
    "compare": "5 Compare",
}
MARKS = {
    **dict.fromkeys(("running", "loading"), ("●", "live")),
    "paused": ("‖", "warn"),
    "failed": ("✗", "bad"),
    "error": ("✗", "bad"),
    **dict.fromkeys(("lost", "stalled", "unknown"), ("?", "warn")),
    **dict.fromkeys(("completed", "imported"), ("✓", "good")),
    **dict.fromkeys(("stopped", "aborted"), ("■", "label")),
    "queued": ("◌", "label"),
}


# Of an alert or a line of the log.
SEVERITIES = {"info": ("·", "label"), "warning": ("▲", "warn"), "error": ("✗", "bad")}
# What a narrow terminal leaves out, in this order, before it shortens the name further.
CUT_FIRST = ("mark", "other", "alerts", "step", "health", "key")
LEAST_NAME, OTHER = 10, 14  # cells of the name of the shown run, and of another at most


def severity_mark(severity: str) -> tuple[str, str]:
    """Symbol and colour of an alert; of an unknown severity, which a store may have, its name."""
    return SEVERITIES.get(severity) or (safe(severity, " "), "warn")


def status_mark(status: str) -> tuple[str, str]:
    """Symbol and colour of a run's state; the symbol alone is enough."""
    return MARKS.get(status, ("○", "label"))


def run_line(
    snapshot: Snapshot, mark: str, elsewhere: Sequence[RunSummary], width: int, key: str = ""
) -> Line:
    """The shown run and other live ones in so many cells, without what is cut first.

    `key` goes to the first of the others.
    """
    parts = _parts(snapshot, mark, elsewhere, key)
    name = snapshot.head.name or snapshot.head.id
    is_empty = snapshot.status == "empty"
    needed = 0 if is_empty else min(LEAST_NAME, cell_len(name)) + 4
    for part in CUT_FIRST:
        if sum(map(cells, parts.values())) + needed <= width:
            break
        parts.pop(part, None)
    right = [span for line in parts.values() for span in line]
    if is_empty:
        return justified([], right, width) if right else []
    space = width - cells(right) - 4
    glyph, colour = status_mark("" if snapshot.reading else snapshot.status)
    name = clip(name, space)
    run = [(f" {glyph} ", colour), (name, "headline")]
    subtitle = " · ".join(filter(None, (snapshot.head.model, snapshot.head.recipe)))
    if cell_len(subtitle) < space - cell_len(name) - 2:
        run.append((f"  {subtitle}", "label"))
    return justified(run, right, width)


def _parts(
    snapshot: Snapshot, mark: str, elsewhere: Sequence[RunSummary], key: str
) -> dict[str, Line]:
    """What is at the right end, in its order, without what there is nothing to say of."""
    head, parts = snapshot.head, dict[str, Line]()
    if snapshot.reading:
        parts["step"] = [("reading ", "text")]
    elif snapshot.status != "empty":
        if alerts := sum(alert.severity != "info" for alert in snapshot.open_alerts):
            parts["alerts"] = [(f"{severity_mark('warning')[0]}{alerts}  ", "bold warn")]
        word = snapshot.health.label
        parts["health"] = [(f"{word}  ", HEALTH_COLOURS.get(word, "label"))]
        parts["mark"] = [(f"{mark}  ", "text")] if mark else [("step ", "text")]
        total = f"/{head.total_steps}" if head.total_steps else ""
        parts["step"] = [(f"{snapshot.current_step}{total} ", "text")]
    if elsewhere:
        run, *further = elsewhere
        glyph, colour = status_mark(run.status)
        more = f" +{len(further)}" * bool(further)
        parts["key"] = [(f" {key}", "bold headline")] if key else []
        parts["elsewhere"] = [(f" {glyph} ", colour)]
        parts["other"] = [(f"{clip(run.title, OTHER)}{more} ", "text")]
    return parts


class TopBar(BarPanel):
    """One line at the top of every screen; tabs can be clicked."""

    DEFAULT_CSS = "TopBar { height: 1; dock: top; }"

    @dataclass
    class TabClicked(Message):
        """The app is to switch to a screen."""

        mode: str

    snapshot: reactive[Snapshot] = reactive(Snapshot, always_update=True)
    active: reactive[str] = reactive("")
    mark: reactive[str] = reactive("")
    elsewhere: reactive[tuple[RunSummary, ...]] = reactive(())  # other runs that are training
    key: reactive[str] = reactive("")  # goes to the first of them

    def paint(self, width: int, _height: int) -> list[Line]:
        """Tabs on the left, then the run, its health and its step, and what else is training."""
        tabs = strip_of_titles(TABS, self.active)
        available = width - cells(tabs)
        return [[*tabs, *run_line(self.snapshot, self.mark, self.elsewhere, available, self.key)]]

    def on_click(self, event: events.Click) -> None:
        """Switch to the screen whose tab was clicked."""
        if mode := name_at(TABS, event.x):
            self.post_message(self.TabClicked(mode))
