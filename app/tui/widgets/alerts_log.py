"""Active alerts, then the log, newest first; ⏎ explains an alert, m mutes its kind."""

import time
from math import isnan
from typing import Any, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.reactive import reactive

from grpo_tui.app.feed.run_state import clock
from grpo_tui.app.feed.snapshot import LogLine, Snapshot
from grpo_tui.app.text.safe_text import cell_len, clip, safe, wrap
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.messages import ExplainRequested, MuteRequested
from grpo_tui.app.tui.widgets.panel import Line, Panel
from grpo_tui.experiments.values import AlertView

LEAD = 12  # cells before an alert's text: mark, time, sign
MOST_LINES = 3  # of an alert, unless the panel is high
SIGNS = {"info": "·", "warning": "▲", "error": "✗"}


def sign_of(severity: str) -> str:
    """The sign of a severity; one of another version is shown as it is."""
    return SIGNS.get(severity) or safe(severity, " ")


def colour_of(severity: str, palette: Palette) -> int:
    return {"info": palette.label, "warning": palette.warn, "error": palette.bad}.get(
        severity, palette.warn
    )


def alert_lines(
    alert: AlertView, palette: Palette, marked: bool, width: int, most: int
) -> list[Line]:
    """An alert's time, severity, message and duration, wrapped to at most `most` lines."""
    ends = alert.first_step, alert.last_step
    since = f" at step {ends[1]}" if alert.count == 1 else " steps {} to {}".format(*ends)
    if most == 1:
        since = ""  # a single line is for what the alert says; ⏎ tells the steps
    sign = style(colour_of(alert.severity, palette), bold=True)
    text = f"{safe(alert.explanation, ' ')} {safe(alert.remedy, ' ')}"
    room, tail = width - LEAD, cell_len(since) + 3
    rows = wrap(text, max(8, room), most) or [""]
    if len(rows) == most:
        rows[-1] = clip(rows[-1], max(8, room - tail))
    elif cell_len(rows[-1]) + tail > room:
        rows.append("")
    edge = ("▌" if marked else " ", style(palette.accent))
    lines: list[Line] = [
        [edge, (" " * (LEAD - 1), None), (row, style(palette.headline))] for row in rows
    ]
    lines[0][1:2] = [(f"{clock(alert.at)} ", style(palette.label)),
                     (f"{sign_of(alert.severity)} ", sign)]  # fmt: skip
    lines[-1] += [
        (since if rows[-1] else since.lstrip(), style(palette.label)),
        ("  ⏎", style(palette.accent)),
    ]
    return lines


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
        (f"{sign_of(line.severity)} ", style(colour_of(line.severity, palette))),
        (safe(line.text, " "), look),
    ]


def with_closed(snapshot: Snapshot) -> list[AlertView | LogLine]:
    """The log, with each alert that is no longer active after the lines of its last step."""
    lines: list[AlertView | LogLine] = list(snapshot.log)
    active = (*snapshot.open_alerts, *snapshot.muted_alerts)
    for alert in snapshot.alerts:
        if alert not in active:
            later = (place for place, line in enumerate(lines) if line.step > alert.last_step)
            lines.insert(next(later, len(lines)), alert)
    return lines


def closed_lines(
    alert: AlertView, palette: Palette, marked: bool, width: int, most: int
) -> list[Line]:
    """An alert that is no longer active, as lines of the log."""
    first, last = alert.first_step, alert.last_step
    when = f"alert at step {last}" if first == last else f"alert in steps {first} to {last}"
    rows = wrap(f"{when}, closed: {safe(alert.explanation, ' ')}", max(8, width - LEAD), most)
    look = style(palette.text)
    edge = ("▌" if marked else " ", style(palette.accent))
    lines: list[Line] = [[edge, (" " * (LEAD - 1), None), (row, look)] for row in rows]
    dim = style(palette.label)
    lines[0][1:2] = [(f"{clock(alert.at)} ", dim), (f"{SIGNS['info']} ", dim)]
    return lines


def counted(snapshot: Snapshot) -> str:
    """The number of active alerts, and how many of them are muted."""
    if snapshot.reading:
        return "reading the run"
    count, muted = len(snapshot.open_alerts), len(snapshot.muted_alerts)
    quiet = f"run {snapshot.status}" if snapshot.status in ("failed", "lost") else "all quiet"
    shown = f"{count} open" if count else quiet
    return f"{shown} · {muted} muted" if muted else shown


def dated(snapshot: Snapshot) -> str:
    """The day of the newest line of the log, unless it is today."""
    at = next((line.at for line in reversed(snapshot.log) if line.at is not None), None)
    day = "" if at is None or isnan(at) else time.strftime("%Y-%m-%d", time.localtime(at))
    return f" · {day}" if day and day != time.strftime("%Y-%m-%d") else ""


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

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("alerts · log", **kwargs)
        self._top = 0
        self._places: list[int] = []

    @property
    def entries(self) -> list[AlertView | LogLine]:
        """Active alerts, muted ones, then log lines from the newest on."""
        shown = self.snapshot
        return [*shown.open_alerts, *shown.muted_alerts, *reversed(with_closed(shown))]

    def go_to(self, line: AlertView | LogLine) -> None:
        """Select a line of the log."""
        self.focus()
        self.cursor = self.entries.index(line)

    def topic(self) -> str:
        """Return the topic of the selected alert."""
        entry = self._entry()
        return f"alert:{entry.rule}" if isinstance(entry, AlertView) else "panel:log"

    def _entry(self) -> AlertView | LogLine | None:
        entries = self.entries
        return entries[min(self.cursor, len(entries) - 1)] if entries else None

    def paint(self, width: int, height: int) -> list[Line]:
        """The entries that fit, including the selected one."""
        palette = self.palette
        entries = self.entries
        self.note = counted(self.snapshot) + dated(self.snapshot)
        if not entries:
            return [[(" Alerts and log messages appear here.", style(palette.label))]]
        cursor = min(self.cursor, len(entries) - 1)
        active = len(self.snapshot.open_alerts) + len(self.snapshot.muted_alerts)
        most = max(MOST_LINES, height // 4)
        most = max(1, min(most, height // max(1, len(self.snapshot.open_alerts))))
        self._top = max(0, min(self._top, cursor, len(entries) - height))
        while True:
            lines: list[Line] = []
            self._places = []
            for place, entry in enumerate(entries[self._top : self._top + height], self._top):
                marked = self.has_focus and place == cursor
                if isinstance(entry, AlertView) and place >= active:
                    lines += closed_lines(entry, palette, marked, width, most)
                else:
                    lines += _block(entry, palette, marked, width, most)
                self._places += [place] * (len(lines) - len(self._places))
            if self._top == cursor or cursor in self._places[:height]:
                return lines
            self._top += 1

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
        row = self.inside(event.offset).y
        if 0 <= row < len(self._places):
            self.cursor = self._places[row]
        if event.chain == 2:
            self.action_explain_alert()


def _block(
    entry: AlertView | LogLine, palette: Palette, marked: bool, width: int, most: int
) -> list[Line]:
    if isinstance(entry, LogLine):
        return [log_line(entry, palette, marked)]
    if entry.muted:
        return [muted_line(entry, palette, marked)]
    return alert_lines(entry, palette, marked, width, most)


def _text(entry: AlertView | LogLine) -> str:
    return f"{entry.explanation} {entry.remedy}" if isinstance(entry, AlertView) else entry.text
