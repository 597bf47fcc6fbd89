"""The phase bar: the step's phase, speed, duration and memory use, in one line."""

from typing import ClassVar

from textual.reactive import reactive

from app.feed.snapshot import PHASES, Snapshot
from app.text.numbers import seconds, short, with_unit
from app.text.safe_text import cell_len, clip
from app.tui.looks.colours import Palette, style
from app.tui.widgets.panel import Line, Panel

BAR = 12
NAMES = {"load": "loading model", "evaluate": "held-out", "checkpoint": "checkpoint"}


def bar(share: float, width: int) -> tuple[str, str]:
    """The filled and the empty part of a progress bar."""
    half = round(max(0.0, min(1.0, share)) * width * 2)
    full = "━" * (half // 2) + ("╸" if half % 2 else "")
    return full, "─" * (width - len(full))


def phase_line(snapshot: Snapshot, now: float, width: int, palette: Palette) -> Line:
    """Phases on the left, numbers on the right; the least important numbers are dropped first."""
    left = _phases(snapshot, now, palette)
    right = _numbers(snapshot)
    used = sum(cell_len(text) for text, _ in left)
    while right and used + sum(len(text) + 2 for text in right) + 1 > width:
        right.pop(0)
    dim = style(palette.label)
    tail = "  ".join(right)
    gap = max(1, width - used - len(tail) - 1)
    return [*left, (" " * gap, None), (tail, dim), (" ", None)]


def _numbers(snapshot: Snapshot) -> list[str]:
    found = []
    if snapshot.memory_gb is not None:
        limit = snapshot.memory_limit_gb
        used = with_unit(snapshot.memory_gb, "GB")
        if limit:
            used = f"{used.removesuffix(' GB')}/{short(limit)} GB"
        found.append(used)
    if snapshot.tokens_per_second:
        found.append(f"{short(snapshot.tokens_per_second)} tok/s")
    if snapshot.step_seconds is not None:
        found.append(f"{short(snapshot.step_seconds)} s/step")
    if snapshot.eta is not None and snapshot.active:
        found.append(f"{seconds(snapshot.eta)} left")
    return found


def _phases(snapshot: Snapshot, now: float, palette: Palette) -> Line:
    dim, text = style(palette.label), style(palette.text)
    board = snapshot.board
    if snapshot.status == "empty":
        return [(" no run", dim)]
    if not snapshot.active:
        return [(f" {snapshot.status}", style(_status_colour(snapshot, palette), bold=True)),
                (f"  {seconds(snapshot.elapsed)} of work", dim),
                *_last_step(snapshot, palette)]  # fmt: skip
    spans: Line = []
    extra = board.phase if board.phase and board.phase not in PHASES else ""
    for name in (*PHASES, *([extra] if extra else ())):
        if name == board.phase:
            spans += _running(snapshot, name, now, palette)
        elif name in board.phase_seconds:
            spans += [(f" {name} ", text), ("✓", style(palette.good)),
                      (f" {seconds(board.phase_seconds[name])} ", dim)]  # fmt: skip
        else:
            spans.append((f" {name} ", style(palette.label)))
    if snapshot.status == "paused":
        return [(" ‖ paused ", style(palette.warn, bold=True)), *spans]
    return spans or [(" starting", text)]


def _last_step(snapshot: Snapshot, palette: Palette) -> Line:
    """The phases of the last step, of a run that has ended."""
    spans: Line = []
    for name in PHASES:
        spent = snapshot.metrics.get(f"time/{name}")
        if spent is not None:
            spans += [(f"  {name} ", style(palette.text)),
                      (seconds(spent), style(palette.label))]  # fmt: skip
    return spans


def _running(snapshot: Snapshot, name: str, now: float, palette: Palette) -> Line:
    board = snapshot.board
    bright = style(palette.headline, bold=True)
    spans: Line = [(f" {NAMES.get(name, name)} ", bright)]
    if board.phase_detail:
        spans.append((f"{clip(board.phase_detail, 24)} ", style(palette.text)))
    if board.total:
        full, empty = bar(board.done / board.total, BAR)
        spans += [(full, style(palette.accent)), (empty, style(palette.border)), (" ", None)]
    elif board.phase_started and now >= board.phase_started:
        spans.append((f"{seconds(now - board.phase_started)} ", style(palette.label)))
    return spans


def _status_colour(snapshot: Snapshot, palette: Palette) -> int:
    return {"failed": palette.bad, "lost": palette.warn}.get(snapshot.status, palette.good)


class PhaseBar(Panel, can_focus=False):
    """One line; it redraws while a phase without counts runs."""

    DEFAULT_CSS = "PhaseBar { height: 1; }"
    framed: ClassVar[bool] = False
    ALLOW_MAXIMIZE = False

    snapshot: reactive[Snapshot] = reactive(Snapshot, always_update=True)
    now: reactive[float] = reactive(0.0)

    def paint(self, width: int, height: int) -> list[Line]:  # noqa: ARG002 - a hook's
        return [phase_line(self.snapshot, self.now, width, self.palette)]
