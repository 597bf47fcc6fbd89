"""The top line: the five screens, the shown run and its step."""

from textual import events
from textual.reactive import reactive

from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.text.safe_text import cell_len, clip
from grpo_tui.app.tui.widgets.panel import Bar, Line, cells

TABS = (("runs", "1", "Runs"), ("new_run", "2", "New"), ("watch", "3", "Watch"),
        ("rollouts", "4", "Rollouts"), ("compare", "5", "Compare"))  # fmt: skip
MARKS = {
    **dict.fromkeys(("running", "loading"), ("●", "live")),
    "paused": ("‖", "warn"), "failed": ("✗", "bad"), "error": ("✗", "bad"),
    **dict.fromkeys(("lost", "stalled", "unknown"), ("?", "warn")),
    **dict.fromkeys(("completed", "imported"), ("✓", "good")),
    **dict.fromkeys(("stopped", "aborted"), ("■", "label")),
    "queued": ("◌", "label"),
}  # fmt: skip


def status_mark(status: str) -> tuple[str, str]:
    """Symbol and colour of a run's state; the symbol alone is enough."""
    return MARKS.get(status, ("○", "label"))


class TopBar(Bar):
    """One line at the top of every screen; tabs can be clicked."""

    DEFAULT_CSS = "TopBar { height: 1; dock: top; }"

    snapshot: reactive[Snapshot] = reactive(Snapshot, always_update=True)
    active: reactive[str] = reactive("")
    mark: reactive[str] = reactive("")

    def paint(self, width: int, height: int) -> list[Line]:  # noqa: ARG002 - the base class has it
        """Tabs on the left, then the run, its alerts and its step on the right."""
        snapshot, head = self.snapshot, self.snapshot.head
        tabs = []
        for mode, key, name in TABS:
            if mode == self.active:
                tabs += [("▌", "accent"), (f"{key} {name}", "bold headline"), ("▐", "accent")]
            else:
                tabs += [(f" {key} ", "text"), (name, "label"), (" ", "")]
        if snapshot.status == "empty":
            return [tabs]
        name = head.name or ("" if snapshot.reading else head.id)
        count = f"{snapshot.current_step}/{head.total_steps} "
        step = "reading " if snapshot.reading else f"step {count}"
        step = f"{self.mark}  {step}" if self.mark else step
        alerts = sum(alert.severity != "info" for alert in snapshot.open_alerts)
        warning = f"▲{alerts}  " if alerts else ""
        space = width - cells(tabs) - len(warning) - 5
        if space - len(step) < 6 and not snapshot.reading:
            step = count
        space -= len(step)
        status = "" if snapshot.reading else snapshot.status
        glyph, colour = status_mark(status)
        name = clip(name, space)
        run = [(f" {glyph} ", colour), (name, "headline")]
        subtitle = " · ".join(filter(None, (head.model, head.recipe)))
        if cell_len(subtitle) < space - cell_len(name) - 2:
            run.append((f"  {subtitle}", "label"))
        gap = max(1, width - cells([*tabs, *run]) - len(warning + step))
        return [[*tabs, *run, (" " * gap, ""), (warning, "bold warn"), (step, "text")]]

    async def on_click(self, event: events.Click) -> None:
        """Switch to the screen whose tab was clicked."""
        end = 0
        for mode, key, name in TABS:
            end += len(key) + len(name) + 3
            if event.x < end:
                await self.run_action(f"app.mode('{mode}')")
                return
