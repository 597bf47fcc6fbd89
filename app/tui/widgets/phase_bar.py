"""The phase bar: the step's phase, speed, duration and memory use, in one line."""

from typing import ClassVar

from textual.reactive import reactive

from grpo_tui.app.feed.snapshot import PHASES, Snapshot
from grpo_tui.app.text.numbers import seconds, share, short, with_unit
from grpo_tui.app.text.safe_text import cell_len, clip
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.widgets.panel import Line, Panel

BAR = 12
NAMES = {"load": "loading model", "evaluate": "held-out", "checkpoint": "checkpoint"}


def bar(part: float, width: int) -> tuple[str, str]:
    """The filled and the empty part of a progress bar."""
    half = round(max(0.0, min(1.0, part)) * width * 2)
    full = "━" * (half // 2) + ("╸" if half % 2 else "")
    return full, "─" * (width - len(full))


def phase_line(snapshot: Snapshot, now: float, width: int, palette: Palette) -> Line:
    """Phases on the left, numbers on the right; the least important numbers are dropped first."""
    left = _phases(snapshot, now, width, palette)
    right = _numbers(snapshot)
    used = sum(cell_len(text) for text, _ in left)
    while right and used + sum(len(text) + 2 for text in right) + 1 > width:
        whole, comma, _ = right.pop(0).partition(", ")
        right = [whole, *right] if comma else right
    dim = style(palette.label)
    tail = "  ".join(right)
    gap = max(int(bool(tail)), width - used - len(tail) - 1)
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
        spent = spent_in(snapshot)
        most = max(spent, key=spent.__getitem__, default="")
        part = f", {share(spent[most] / snapshot.step_seconds)} {most}" if spent else ""
        found.append(f"{short(snapshot.step_seconds)} s/step{part if snapshot.active else ''}")
    if snapshot.eta is not None and snapshot.active:
        found.append(f"{seconds(snapshot.eta)} left")
    return found


def spent_in(snapshot: Snapshot) -> dict[str, float]:
    """Seconds of a step in each phase, smoothed as its own are, and in what is no phase."""
    views = {name: snapshot.series.get(f"time/{name}") for name in PHASES}
    spent = {name: view.value for name, view in views.items() if view is not None and view.count}
    if not spent or not snapshot.step_seconds:
        return {}
    return {**spent, "other": max(0.0, snapshot.step_seconds - sum(spent.values()))}


def _phases(snapshot: Snapshot, now: float, width: int, palette: Palette) -> Line:
    dim, text = style(palette.label), style(palette.text)
    board = snapshot.board
    if snapshot.status == "empty":
        return [(" no run", dim)]
    if not snapshot.active:
        spent = spent_in(snapshot)
        worked = f" after {seconds(snapshot.elapsed)}{'  per step' if spent else ''}"
        room = width - cell_len(snapshot.status + worked) - 2
        return [(f" {snapshot.status}", style(_status_colour(snapshot, palette), bold=True)),
                (worked, dim), *_usual_step(spent, room, palette)]  # fmt: skip
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


def _usual_step(spent: dict[str, float], room: int, palette: Palette) -> Line:
    """The phases of a step, the slowest marked; the shortest join the rest where it is narrow."""
    most = max(spent, key=spent.__getitem__, default="")
    while True:
        spans: Line = []
        for name, took in spent.items():
            slow = name == most
            spans += [(f"  {name} ", style(palette.headline if slow else palette.text, bold=slow)),
                      (seconds(took), style(palette.label)),
                      (" ◂ slowest" if slow else "", style(palette.accent))]  # fmt: skip
        folded = spent.keys() - {"other", most}
        if not folded or sum(cell_len(text) for text, _ in spans) <= room:
            return spans
        least = min(folded, key=spent.__getitem__)
        spent = {**spent, "other": spent["other"] + spent[least]}
        del spent[least]


def _running(snapshot: Snapshot, name: str, now: float, palette: Palette) -> Line:
    board = snapshot.board
    bright = style(palette.headline, bold=True)
    spans: Line = [(f" {NAMES.get(name, name)} ", bright)]
    if board.phase_detail:
        spans.append((f"{clip(board.phase_detail, 24)} ", style(palette.text)))
    if board.total:
        full, empty = bar(board.done / board.total, BAR)
        spans += [(full, style(palette.accent)), (empty, style(palette.border)), (" ", None)]
    if board.phase_started and now >= board.phase_started:
        spans.append((f"{seconds(now - board.phase_started)} ", style(palette.label)))
    return spans


def _status_colour(snapshot: Snapshot, palette: Palette) -> int:
    return {"failed": palette.bad, "lost": palette.warn}.get(snapshot.status, palette.good)


class PhaseBar(Panel, can_focus=False):
    """One line; it redraws while a phase runs."""

    DEFAULT_CSS = "PhaseBar { height: 1; }"
    framed: ClassVar[bool] = False
    ALLOW_MAXIMIZE = False

    snapshot: reactive[Snapshot] = reactive(Snapshot, always_update=True)
    now: reactive[float] = reactive(0.0)

    def paint(self, width: int, height: int) -> list[Line]:  # noqa: ARG002 - the base class has it
        return [phase_line(self.snapshot, self.now, width, self.palette)]
