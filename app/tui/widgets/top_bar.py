"""The top line: the five screens, the shown run and its step."""

from textual import events
from textual.reactive import reactive

from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.text.safe_text import cell_len, clip
from grpo_tui.app.tui.widgets.panel import Bar, Line, cells

TABS = (("runs", "1", "Runs"), ("new_run", "2", "New"), ("watch", "3", "Watch"),
        ("rollouts", "4", "Rollouts"), ("compare", "5", "Compare"))  # fmt: skip
PULSE_SECONDS = 4.0
# what happens before the first step, by its phase
BEFORE_STEPS = {"load": "loading the model", "evaluate": "held-out answers"}


def pulse(now: float) -> int:
    """The current one of four brightness levels of live marks; all marks pulse together."""
    phase = (now % PULSE_SECONDS) / PULSE_SECONDS
    return (0, 1, 2, 1)[int(phase * 4)]


def status_mark(status: str, now: float) -> tuple[str, str]:
    """Symbol and colour of a run's state; the symbol alone is enough."""
    match status:
        case "running" | "loading":
            return "●", f"live.{pulse(now)}"
        case "paused":
            return "‖", "warn"
        case "failed" | "error":
            return "✗", "bad"
        case "lost" | "stalled" | "unknown":
            return "?", "warn"
        case "completed" | "imported":
            return "✓", "good"
        case "stopped" | "aborted":
            return "■", "label"
        case "queued":
            return "◌", "label"
    return "○", "label"


class TopBar(Bar):
    """One line at the top of every screen; tabs can be clicked."""

    DEFAULT_CSS = "TopBar { height: 1; dock: top; }"

    snapshot: reactive[Snapshot] = reactive(Snapshot, always_update=True)
    now: reactive[float] = reactive(0.0, repaint=False)
    active: reactive[str] = reactive("")
    mark: reactive[str] = reactive("")

    def watch_now(self, old: float, new: float) -> None:
        """Animate the live mark."""
        if self.snapshot.active and pulse(old) != pulse(new):
            self.refresh()

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
        if snapshot.active and not (snapshot.current_step or snapshot.reading):
            step = count = f"{BEFORE_STEPS.get(snapshot.board.phase, 'starting')} "
        step = f"{self.mark}  {step}" if self.mark else step
        alerts = sum(alert.severity != "info" for alert in snapshot.open_alerts)
        warning = f"▲ {alerts} alert{'s' if alerts > 1 else ''}  " if alerts else ""
        space = width - cells(tabs) - 3
        if warning and space - len(warning + step) - 2 < cell_len(name):
            warning = f"▲{alerts} "
        if space - len(warning + step) < 8 and not snapshot.reading:
            step = count
        space -= len(warning + step) + 2
        status = "" if snapshot.reading else snapshot.status
        glyph, colour = status_mark(status, self.now)
        name = clip(name, space)
        run = [(f" {glyph} ", colour), (name, "headline")]
        passes = f"{head.passes} passes" if head.passes > 1 else ""
        about = " · ".join(part for part in (head.model, head.recipe, passes) if part)
        free = space - cell_len(name) - 2
        run += [(f"  {text}", "label") for text in (about, head.recipe) if cell_len(text) < free][
            :1
        ]
        gap = width - cells([*tabs, *run]) - len(warning + step)
        return [
            [
                *tabs,
                *run,
                (" " * max(1, gap), ""),
                (warning, "bold warn"),
                (step, "text"),
            ]
        ]

    async def on_click(self, event: events.Click) -> None:
        """Switch to the screen whose tab was clicked."""
        end = 0
        for mode, key, name in TABS:
            end += len(key) + len(name) + 3
            if event.x < end:
                await self.run_action(f"app.mode('{mode}')")
                return
