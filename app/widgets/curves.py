"""The curves panel: small charts under each other, each with value, change and guide lines."""

from dataclasses import dataclass
from typing import Any, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.reactive import reactive

from app.messages import ExplainRequested
from app.numbers import change, short, with_unit
from app.palette import Palette, style
from app.run_state import Snapshot
from app.safe_text import cell_len, clip
from app.series import SeriesView
from app.widgets.braille import GUIDE, Canvas, Curve, Frame, draw, limits, span_of
from app.widgets.panel import Line, Panel, Span
from grpo_engine.metrics import spec

LABELS = 5
ROOMY, TIGHT = 4, 3
TWO_COLUMNS = 116


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart: the metrics on it, the colour family, and what its guide lines say."""

    title: str
    keys: tuple[str, ...]
    names: tuple[str, ...] = ()
    family: tuple[str, ...] = ()
    guide_word: str = ""
    ceiling: float | None = None


FIXED = (
    Chart("KL to reference", ("kl",), family=("kl",), guide_word="limit"),
    Chart("clipped", ("clip_ratio/low_mean", "clip_ratio/high_mean"), ("low", "high"),
          ("entropy", "clip"), "too much", 1.0),
    Chart("entropy", ("entropy",), family=("entropy",)),
    Chart("answer length", ("completions/mean_length",), family=("length",)),
    Chart("held-out accuracy", ("eval/accuracy",), family=("reward",), ceiling=1.0),
    Chart("loss", ("loss",), family=("loss",)),
    Chart("gradient norm", ("grad_norm",), family=("gradient",)),
    Chart("learning rate", ("learning_rate",), family=("rate",)),
    Chart("answers cut", ("completions/clipped_ratio",), family=("clip",), guide_word="too many",
          ceiling=1.0),
    Chart("step time", ("step_time",), family=("time",)),
    Chart("tokens per second", ("tokens_per_second",), family=("time",)),
    Chart("peak memory", ("memory/peak_gb",), family=("memory",)),
)  # fmt: skip

GUIDES = {"kl": (0.1,), "clip_ratio/low_mean": (0.3,), "completions/clipped_ratio": (0.5,)}


def charts_of(snapshot: Snapshot) -> tuple[Chart, ...]:
    """The charts a run has data for: reward with its functions first."""
    functions = [
        key for key in snapshot.series if key.startswith("rewards/") and key.endswith("/mean")
    ]
    names = tuple(key.split("/")[1] for key in functions)
    reward = Chart("reward", ("reward", *functions), ("", *names), ("reward",))
    found = (reward, *FIXED)
    return tuple(chart for chart in found if any(key in snapshot.series for key in chart.keys))


def heights(room: int, count: int) -> list[int]:
    """Rows of the charts that fit into `room`; the first gets what is left over."""
    if count <= 0 or room < TIGHT:
        return [room] if count and room > 1 else []
    least = ROOMY if room >= 7 * ROOMY else TIGHT
    shown = min(count, room // least)
    each, rest = divmod(room, shown)
    return [each + (rest if i == 0 else 0) for i in range(shown)]


def chart_lines(
    chart: Chart, snapshot: Snapshot, width: int, height: int, palette: Palette, chosen: bool
) -> list[Line]:
    """A chart with its title line."""
    views = [(i, key, snapshot.series[key]) for i, key in enumerate(chart.keys)
             if key in snapshot.series]  # fmt: skip
    plot_width, plot_height = width - LABELS, height - 1
    guides = GUIDES.get(chart.keys[0], ())
    low, high = limits([view for _, _, view in views], guides, ceiling=chart.ceiling)
    beyond = [guide for guide in guides if guide > high]
    lines = [_title(chart, views, width, palette, chosen, beyond)]
    if plot_height <= 0 or plot_width <= 2:
        return lines
    frame = Frame(low, high, 0, span_of(snapshot.step + 1, snapshot.head.total_steps + 1))
    canvas = Canvas(plot_width, plot_height)
    for i, _, view in reversed(views):
        colour = _colour(chart, i, palette)
        draw(canvas, Curve(view, colour, palette.raw if i == 0 else None), frame)
    rows: list[Line] = [
        [(text, style(look) if look is not None else None) for text, look in row]
        for row in canvas.rows()
    ]
    for guide in guides:
        if low < guide <= high:
            _lay_guide(rows, guide, chart.guide_word, frame, plot_width, palette)
    return lines + _with_axis(rows, frame, views, palette)


def _colour(chart: Chart, index: int, palette: Palette) -> int:
    if index < len(chart.family):
        return palette.of_series(chart.family[index])
    return palette.cycle[(index + 2) % len(palette.cycle)]


def _title(
    chart: Chart, views: list[tuple[int, str, SeriesView]], width: int, palette: Palette,
    chosen: bool, beyond: list[float],
) -> Line:  # fmt: skip
    label = style(palette.headline if chosen else palette.label, bold=chosen)
    left: Line = [("▸" if chosen else " ", style(palette.accent)), (chart.title, label)]
    right: Line = []
    for i, key, view in views:
        colour = style(_colour(chart, i, palette), bold=i == 0 and not chart.names)
        name = clip(chart.names[i], 12) if i < len(chart.names) else ""
        value = with_unit(view.value, spec(key).unit)
        piece: Line = [(f"{name} ", style(palette.label))] if name else []
        piece.append((value, colour))
        single = i == 0 and not (chart.names and chart.names[0])
        delta = change(view.value, view.delta, spec(key).unit) if single else ""
        if delta:
            piece.append((f" {delta}", style(palette.label)))
        room = width - sum(cell_len(t) for t, _ in left + right + piece) - 3
        if room < 0:
            continue
        right += ([("  ", None)] if right else []) + piece
    for guide in beyond:
        hint = f"  {chart.guide_word} {with_unit(guide, spec(chart.keys[0]).unit)}"
        if sum(cell_len(t) for t, _ in left + right) + len(hint) + 2 <= width:
            left.append((hint, style(palette.raw)))
    gap = width - sum(cell_len(t) for t, _ in left + right)
    return [*left, (" " * max(1, gap), None), *right]


def _lay_guide(
    rows: list[Line], guide: float, word: str, frame: Frame, width: int, palette: Palette
) -> None:
    tall = len(rows) * 4
    y = round((frame.high - guide) * (tall - 1) / (frame.high - frame.low)) >> 2
    flat = "".join(text for text, _ in rows[y])
    label = f" {word} " if word and len(word) + 8 < width else ""
    start = (width - len(label)) // 2
    look, words = style(palette.guide), style(palette.label)
    line: Line = []
    position = 0
    for text, colour in rows[y]:
        for char in text:
            inside = start <= position < start + len(label)
            free = flat[start : start + len(label)].strip() == ""
            span: Span = (char, colour)
            if char == " ":
                span = (label[position - start], words) if inside and free else (GUIDE, look)
            line.append(span)
            position += 1
    rows[y] = line


def _with_axis(
    rows: list[Line], frame: Frame, views: list[tuple[int, str, SeriesView]], palette: Palette
) -> list[Line]:
    unit = spec(views[0][1]).unit

    def label(value: float) -> str:
        text = f"{100 * value:.0f}%" if unit == "share" else short(value, 2)
        return clip(text, LABELS).ljust(LABELS)

    dim = style(palette.label)
    result: list[Line] = []
    for i, row in enumerate(rows):
        text = label(frame.high) if i == 0 else " " * LABELS
        if i == len(rows) - 1 and i:
            text = label(frame.low)
        result.append([(text, dim), *row])
    return result


class Curves(Panel):
    """The charts of a run, with a cursor for `?` and a window that follows it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "step(-1)", "chart", id="curves.up", key_display="↑↓",
                tooltip="Choose the chart above"),
        Binding("down,j", "step(1)", "chart below", id="curves.down", show=False,
                tooltip="Choose the chart below"),
        Binding("enter", "explain_chart", "what is this", id="curves.explain",
                tooltip="Explain the chosen metric"),
    ]  # fmt: skip

    snapshot: reactive[Snapshot] = reactive(Snapshot, repaint=False, always_update=True)
    cursor: reactive[int] = reactive(0, repaint=False)

    def __init__(self, number: str = "1", **kwargs: Any) -> None:
        super().__init__(number, "curves", **kwargs)
        self._top = 0
        self._starts: list[tuple[int, int, int, int]] = []

    @property
    def chosen(self) -> Chart | None:
        """The chart under the cursor."""
        charts = charts_of(self.snapshot)
        return charts[min(self.cursor, len(charts) - 1)] if charts else None

    def topic(self) -> str:
        """What `?` explains here: the first metric of the chosen chart."""
        return f"metric:{self.chosen.keys[0]}" if self.chosen else "screen:watch"

    def watch_snapshot(self) -> None:
        """Draw the new numbers."""
        self.repaint()

    def watch_cursor(self) -> None:
        """Move the mark."""
        self.repaint()

    def paint(self, width: int, height: int) -> list[Line]:
        """All charts that fit, in one column or two."""
        charts = charts_of(self.snapshot)
        self._starts = []
        if not charts:
            return _empty(self.snapshot, self.palette)
        columns = 2 if width >= TWO_COLUMNS and len(charts) > 1 else 1
        each = (width - (columns - 1) * 2) // columns
        sizes = heights(height, -(-len(charts) // columns))
        shown = len(sizes) * columns
        cursor = min(self.cursor, len(charts) - 1)
        self._top = max(0, min(self._top, cursor, len(charts) - shown))
        if cursor >= self._top + shown:
            self._top = cursor - shown + 1
        blocks: list[list[Line]] = []
        for place in range(columns):
            first = self._top + place * len(sizes)
            block: list[Line] = []
            for offset, size in enumerate(sizes):
                index = first + offset
                if index >= len(charts):
                    break
                self._starts.append((index, place * (each + 2), len(block), size))
                marked = index == cursor and self.has_focus
                block += chart_lines(charts[index], self.snapshot, each, size, self.palette, marked)
            blocks.append(block)
        hidden = len(charts) - shown
        self.set_reactive(Panel.note, f"{hidden} more ↓" if hidden > 0 else "smooth .9")
        return _side_by_side(blocks, each)

    def action_step(self, by: int) -> None:
        """Move the mark by some charts."""
        self.cursor = max(0, min(len(charts_of(self.snapshot)) - 1, self.cursor + by))

    def action_explain_chart(self) -> None:
        """Explain the chosen metric."""
        self.post_message(ExplainRequested(self.topic()))

    def on_click(self, event: events.Click) -> None:
        """Choose the chart that was clicked."""
        place = self.inside(event.offset)
        for index, left, top, size in self._starts:
            if top <= place.y < top + size and place.x >= left:
                self.cursor = index


def _side_by_side(blocks: list[list[Line]], width: int) -> list[Line]:
    if len(blocks) == 1:
        return blocks[0]
    lines: list[Line] = []
    for left, right in zip(blocks[0], blocks[1] + [[]] * len(blocks[0]), strict=False):
        used = sum(cell_len(text) for text, _ in left)
        lines.append([*left, (" " * (width - used + 2), None), *right])
    return lines


def _empty(snapshot: Snapshot, palette: Palette) -> list[Line]:
    dim = style(palette.label)
    if snapshot.status == "empty":
        return [[(" No run is open.", dim)], [(" 1 lists runs, 2 starts one.", dim)]]
    return [[(" Curves begin with the first finished step.", dim)]]
