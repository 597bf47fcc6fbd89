"""Active alerts, then the log, newest first; ⏎ explains an alert, m mutes its kind."""

from typing import Any, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.reactive import reactive

from app.feed.run_state import clock
from app.feed.snapshot import LogLine, Snapshot
from app.text.safe_text import safe
from app.tui.looks.colours import Palette, style
from app.tui.messages import ExplainRequested, MuteRequested
from app.tui.widgets.panel import Line, Panel
from experiments.values import AlertView

SIGNS = {"info": "·", "warning": "▲", "error": "✗"}


def colour_of(severity: str, palette: Palette) -> int:
    return {"info": palette.label, "warning": palette.warn, "error": palette.bad}[severity]


def alert_line(alert: AlertView, palette: Palette, marked: bool) -> Line:
    """An alert's time, severity, message and duration."""
    held = alert.last_step - alert.first_step
    since = f" since step {alert.first_step}" if held else f" at step {alert.first_step}"
    sign = style(colour_of(alert.severity, palette), bold=True)
    return [
        ("▌" if marked else " ", style(palette.accent)),
        (f"{clock(alert.at)} ", style(palette.label)),
        (f"{SIGNS[alert.severity]} ", sign),
        (f"{safe(alert.explanation, ' ')} {safe(alert.remedy, ' ')}", style(palette.headline)),
        (since, style(palette.label)),
        ("  ⏎", style(palette.accent)),
    ]


def muted_line(alert: AlertView, palette: Palette, marked: bool) -> Line:
    """An active alert that is muted."""
    text = f"{clock(alert.at)} – {safe(alert.explanation, ' ')}  muted in this run  "
    return [
        ("▌" if marked else " ", style(palette.accent)),
        (text, style(palette.label)),
        ("m", style(palette.accent)),
    ]


def log_line(line: LogLine, palette: Palette, marked: bool) -> Line:
    """A line of the log."""
    look = style(palette.text if line.severity == "info" else colour_of(line.severity, palette))
    return [
        ("▌" if marked else " ", style(palette.accent)),
        (f"{clock(line.at)} ", style(palette.label)),
        (f"{SIGNS[line.severity]} ", style(colour_of(line.severity, palette))),
        (safe(line.text, " "), look),
    ]


def counted(snapshot: Snapshot) -> str:
    """The number of active alerts, and how many of them are muted."""
    count, muted = len(snapshot.open_alerts), len(snapshot.muted_alerts)
    shown = f"{count} open" if count else "all quiet"
    return f"{shown} · {muted} muted" if muted else shown


class AlertsLog(Panel):
    """The panel with alerts and the log."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "step(-1)", "line", id="log.up", key_display="↑↓",
                tooltip="Choose the line above"),
        Binding("down,j", "step(1)", "line below", id="log.down", show=False,
                tooltip="Choose the line below"),
        Binding("enter", "explain_alert", "explain", id="log.explain",
                tooltip="Explain the alert and what to try"),
        Binding("m", "mute", "mute", id="log.mute",
                tooltip="Mute this kind of alert in this run, or unmute it"),
    ]  # fmt: skip

    snapshot: reactive[Snapshot] = reactive(Snapshot, always_update=True)
    cursor: reactive[int] = reactive(0)
    needle: reactive[str] = reactive("")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("alerts · log", **kwargs)
        self._top = 0

    def watch_needle(self) -> None:
        """Show only what matches the search."""
        self.set_reactive(AlertsLog.cursor, 0)

    @property
    def entries(self) -> list[AlertView | LogLine]:
        """Active alerts, muted ones, then log lines from the newest on, filtered by the search."""
        shown = self.snapshot
        found: list[AlertView | LogLine] = [*shown.open_alerts, *shown.muted_alerts]
        found += reversed(shown.log)
        needle = self.needle.casefold()
        if not needle:
            return found
        return [entry for entry in found if needle in _text(entry).casefold()]

    def topic(self) -> str:
        """Return the topic of the selected alert."""
        entry = self._entry()
        return f"alert:{entry.rule}" if isinstance(entry, AlertView) else "panel:log"

    def _entry(self) -> AlertView | LogLine | None:
        entries = self.entries
        return entries[min(self.cursor, len(entries) - 1)] if entries else None

    def paint(self, width: int, height: int) -> list[Line]:  # noqa: ARG002 - a hook's
        """The entries that fit, including the selected one."""
        palette = self.palette
        entries = self.entries
        found = f"“{safe(self.needle)}”: {len(entries)}" if self.needle else ""
        self.note = found or counted(self.snapshot)
        if not entries:
            text = " Nothing matches; esc shows all." if self.needle else \
                " Alerts and log messages appear here."  # fmt: skip
            return [[(text, style(palette.label))]]
        cursor = min(self.cursor, len(entries) - 1)
        self._top = max(0, min(self._top, cursor, len(entries) - height))
        if cursor >= self._top + height:
            self._top = cursor - height + 1
        lines: list[Line] = []
        for place, entry in enumerate(entries[self._top : self._top + height], self._top):
            marked = self.has_focus and place == cursor
            if isinstance(entry, AlertView):
                draw = muted_line if entry.muted else alert_line
                lines.append(draw(entry, palette, marked))
            else:
                lines.append(log_line(entry, palette, marked))
        return lines

    def action_step(self, by: int) -> None:
        """Move the selection by some lines."""
        self.cursor = max(0, min(len(self.entries) - 1, self.cursor + by))

    def action_explain_alert(self) -> None:
        """Explain the selected alert."""
        self.post_message(ExplainRequested(self.topic()))

    def action_mute(self) -> None:
        """Mute or unmute the kind of the selected alert."""
        entry = self._entry()
        if isinstance(entry, AlertView):
            self.post_message(MuteRequested(entry.rule, not entry.muted))
        else:
            self.notify("Alerts can be muted, lines of the log cannot.", severity="warning")

    def copy_text(self) -> str:
        """Return the selected line."""
        entry = self._entry()
        return _text(entry) if entry is not None else ""

    def on_click(self, event: events.Click) -> None:
        """Choose the clicked line; a second click explains it."""
        self.cursor = max(0, min(len(self.entries) - 1, self._top + self.inside(event.offset).y))
        if event.chain == 2:
            self.action_explain_alert()


def _text(entry: AlertView | LogLine) -> str:
    return f"{entry.explanation} {entry.remedy}" if isinstance(entry, AlertView) else entry.text
