"""The top line: the five screens, the shown run and its step."""

from typing import ClassVar

from textual import events
from textual.reactive import reactive

from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.text.safe_text import cell_len, clip
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.widgets.panel import Line, Panel

TABS = (("runs", "1", "Runs"), ("new_run", "2", "New"), ("watch", "3", "Watch"),
        ("rollouts", "4", "Rollouts"), ("compare", "5", "Compare"))  # fmt: skip
PULSE_SECONDS = 4.0


def pulse(now: float) -> int:
    """The current one of four brightness levels of live marks; all marks pulse together."""
    phase = (now % PULSE_SECONDS) / PULSE_SECONDS
    return (0, 1, 2, 1)[int(phase * 4)]


def live_colour(palette: Palette, now: float) -> int:
    """The colour of a live run's mark."""
    shades = {158: (158, 115, 72), 23: (23, 29, 66), 81: (81, 74, 67), 87: (87, 80, 73)}
    return shades.get(palette.good, (palette.good,) * 3)[pulse(now)]


def status_mark(status: str, palette: Palette, now: float) -> tuple[str, int]:
    """Symbol and colour of a run's state; the symbol alone is enough."""
    match status:
        case "running" | "loading":
            return "●", live_colour(palette, now)
        case "paused":
            return "‖", palette.warn
        case "failed" | "error":
            return "✗", palette.bad
        case "lost" | "stalled" | "unknown":
            return "?", palette.warn
        case "completed" | "imported":
            return "✓", palette.good
        case "stopped" | "aborted":
            return "■", palette.label
        case "queued":
            return "◌", palette.label
    return "○", palette.label


def top_line(
    active: str, snapshot: Snapshot, width: int, palette: Palette, now: float, mark: str = ""
) -> Line:
    """Tabs on the left, then the run, its step on the right."""
    tabs: Line = []
    for mode, key, name in TABS:
        if mode == active:
            tabs += [("▌", style(palette.accent)),
                     (f"{key} {name}", style(palette.headline, bold=True)),
                     ("▐", style(palette.accent))]  # fmt: skip
        else:
            tabs += [(f" {key} ", style(palette.text)), (name, style(palette.label)), (" ", None)]
    used = sum(cell_len(text) for text, _ in tabs)
    head = snapshot.head
    if snapshot.status == "empty":
        return [*tabs, (" " * max(0, width - used), None)]
    step = f"step {snapshot.current_step}/{head.total_steps} "
    step = "reading " if snapshot.reading else step
    alerts = sum(alert.severity != "info" for alert in snapshot.open_alerts)
    warning = f"▲ {alerts} alert{'s' if alerts > 1 else ''}  " if alerts else ""
    if mark:
        step = f"{mark}  {step}"
    glyph, colour = status_mark("" if snapshot.reading else snapshot.status, palette, now)
    what = [head.recipe, f"{head.passes} passes" if head.passes > 1 else ""]
    about = " · ".join(part for part in (head.model, *what) if part)
    room = width - used - len(warning + step) - 3
    if warning and room - 2 < cell_len(head.name or head.id):
        warning = f"▲{alerts} "
        room = width - used - len(warning + step) - 3
    if room < 8 and not snapshot.reading:
        step = f"{snapshot.current_step}/{head.total_steps} "
        room = width - used - len(warning + step) - 3
    name = clip(head.name or head.id, room - 2)
    run: Line = [(" ", None), (f"{glyph} ", style(colour)), (name, style(palette.headline))]
    left = room - 2 - cell_len(name)
    if left > cell_len(about) + 2:
        run.append((f"  {about}", style(palette.label)))
    gap = width - used - len(warning + step) - sum(cell_len(text) for text, _ in run)
    return [*tabs, *run, (" " * max(1, gap), None), (warning, style(palette.warn, bold=True)),
            (step, style(palette.text))]  # fmt: skip


class TopBar(Panel, can_focus=False):
    """One line at the top of every screen; tabs can be clicked."""

    DEFAULT_CSS = "TopBar { height: 1; dock: top; }"
    framed: ClassVar[bool] = False
    ALLOW_MAXIMIZE = False

    snapshot: reactive[Snapshot] = reactive(Snapshot, always_update=True)
    now: reactive[float] = reactive(0.0, repaint=False)
    active: reactive[str] = reactive("")
    mark: reactive[str] = reactive("")

    def watch_now(self, old: float, new: float) -> None:
        """Animate the live mark."""
        if self.snapshot.active and pulse(old) != pulse(new):
            self.refresh()

    def paint(self, width: int, height: int) -> list[Line]:  # noqa: ARG002 - the base class has it
        return [top_line(self.active, self.snapshot, width, self.palette, self.now, self.mark)]

    async def on_click(self, event: events.Click) -> None:
        """Switch to the screen whose tab was clicked."""
        place = 0
        for mode, key, name in TABS:
            place += len(key) + len(name) + 3
            if event.x < place:
                await self.run_action(f"app.mode('{mode}')")
                return
