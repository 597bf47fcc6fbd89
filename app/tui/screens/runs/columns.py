"""The columns of the runs table: their content, width and order, and which ones fit."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from grpo_engine.metrics import spec
from grpo_tui.app.text.numbers import change, seconds, short, sparkline, with_unit
from grpo_tui.app.text.safe_text import pad
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.screens.runs.load import SPARK
from grpo_tui.app.tui.widgets.panel import Line, Span
from grpo_tui.app.tui.widgets.top_bar import status_mark
from grpo_tui.experiments.db.texts import seconds as seconds_of
from grpo_tui.experiments.values import MetricSummary, RunSummary, column_label


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a cell is drawn from besides the run."""

    palette: Palette
    back: int
    now: float
    sparks: Mapping[int, tuple[float, ...]]
    baseline: RunSummary | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: its title, width, sort key, and how it draws a run."""

    title: str
    width: int
    sort: str
    draw: Callable[[RunSummary, Cell, int], Line]
    right: bool = False
    noted: bool = False  # a note behind the value leaves the last cell free, also in the title


Drawer = Callable[[RunSummary, Cell, int], Line]


def _plain(read: Callable[[RunSummary], str], *, dim: bool = False, right: bool = False) -> Drawer:
    def draw(run: RunSummary, cell: Cell, width: int) -> Line:
        front = cell.palette.label if dim else cell.palette.text
        return [(pad(read(run), width, ">" if right else "<"), style(front, cell.back))]

    return draw


def _name(run: RunSummary, cell: Cell, width: int) -> Line:
    glyph, colour = status_mark(run.status, cell.palette, cell.now)
    front = cell.palette.headline
    return [
        (f"{glyph} ", style(colour, cell.back)),
        (pad(run.name or run.id, width - 2), style(front, cell.back)),
    ]


def _steps(run: RunSummary, cell: Cell, width: int) -> Line:
    share = run.step / run.total_steps if run.total_steps else 0.0
    text = f"{short(run.step)}/{short(run.total_steps)}"
    full = round(4 * min(1.0, share))
    bar: list[Span] = [
        ("━" * full, style(cell.palette.accent, cell.back)),
        ("─" * (4 - full), style(cell.palette.guide, cell.back)),
    ]
    return [(pad(text, width - 5, ">") + " ", style(cell.palette.text, cell.back)), *bar]


def metric_of(run: RunSummary, key: str) -> MetricSummary | None:
    """A metric of the run; for held-out accuracy the greedy one if there is no plain one."""
    found = run.metrics.get(key)
    if found is None and key == "eval/accuracy":
        found = run.metrics.get("eval/greedy/accuracy")
    return found


def _best(key: str) -> Drawer:
    """The best value and its step; with a baseline, the tinted difference to it."""
    unit = spec(key).unit

    def draw(run: RunSummary, cell: Cell, width: int) -> Line:
        found = metric_of(run, key)
        if found is None or found.best is None:
            return [(pad("–", width, ">"), style(cell.palette.label, cell.back))]
        base = metric_of(cell.baseline, key) if cell.baseline is not None else None
        if base is not None and base.best is not None and cell.baseline is not run:
            distance = found.best - base.best
            better = (distance > 0) == (spec(key).direction == "up")
            note = change(found.best, distance, unit)
            tint = cell.palette.good if better else cell.palette.bad
            if note == "=":
                tint = cell.palette.label
        else:
            tint, note = cell.palette.label, f"@{short(found.best_step)}"
        return [
            (pad(with_unit(found.best, unit), width - 6, ">"), style(cell.palette.text, cell.back)),
            (" " + pad(note, 5), style(tint, cell.back)),
        ]

    return draw


def _last(key: str) -> Drawer:
    def draw(run: RunSummary, cell: Cell, width: int) -> Line:
        found = metric_of(run, key)
        last = found.last if found is not None else None
        text = short(last) if spec(key).unit == "tok/s" else with_unit(last, spec(key).unit)
        return [(pad(text, width, ">"), style(cell.palette.text, cell.back))]

    return draw


def _spark(run: RunSummary, cell: Cell, width: int) -> Line:
    values = cell.sparks.get(run.key, ())
    line = sparkline(values, width).replace("█", "▇")  # a gap to the row above
    return [(pad(line, width), style(cell.palette.of_series("reward"), cell.back))]


def _custom(expression: str) -> Drawer:
    unit = next(filter(None, (spec(word).unit for word in expression.split())), "")
    label = column_label(expression)

    def draw(run: RunSummary, cell: Cell, width: int) -> Line:
        value = run.columns.get(label)
        is_number = value is None or isinstance(value, float)
        text = with_unit(value, unit) if is_number else str(value)
        return [(pad(text, width, ">"), style(cell.palette.text, cell.back))]

    return draw


def age(run: RunSummary, now: float) -> str:
    """How long ago the run was created; what is stored if that is no time."""
    created = seconds_of(run.created_at)
    return run.created_at if math.isnan(created) else seconds(max(0.0, now - created))


NAME = Column(title="name", width=18, sort="name", draw=_name)
# In order of priority on a narrow terminal: the last ones are hidden first.
COLUMNS: tuple[Column, ...] = (
    NAME,
    Column(title="steps", width=14, sort="step", draw=_steps, right=True),
    Column(title="best reward", width=13, sort="reward", draw=_best("reward"), right=True,
           noted=True),
    Column(title="curve", width=SPARK, sort="", draw=_spark),
    Column(title="recipe", width=10, sort="recipe", draw=_plain(lambda r: r.recipe)),
    Column(title="KL", width=6, sort="kl", draw=_last("kl"), right=True),
    Column(title="age", width=7, sort="created",
           draw=_plain(lambda r: age(r, time.time()), dim=True, right=True), right=True),
    Column(title="held-out", width=11, sort="eval/accuracy", draw=_best("eval/accuracy"),
           right=True, noted=True),
    Column(title="task", width=14, sort="task", draw=_plain(lambda r: r.task)),
    Column(title="clip", width=6, sort="clip_ratio/region_mean",
           draw=_last("clip_ratio/region_mean"), right=True),
    Column(title="tok/s", width=6, sort="tokens_per_second", draw=_last("tokens_per_second"),
           right=True),
    Column(title="model", width=14, sort="model", draw=_plain(lambda r: r.model)),
)  # fmt: skip
TAGS = Column(title="tags", width=14, sort="", draw=_plain(lambda r: " ".join(r.tags)))
METRICS = (
    "reward", "kl", "clip_ratio/region_mean", "tokens_per_second", "eval/accuracy",
    "eval/greedy/accuracy",
)  # fmt: skip
ORDER = (
    "name", "tags", "recipe", "task", "model", "steps", "best reward", "curve", "held-out", "KL",
    "clip", "tok/s", "age",
)  # fmt: skip


def fitting(
    width: int, custom: Sequence[str] = (), *, tagged: bool = False, sort: str = ""
) -> tuple[Column, ...]:
    """The columns that fit, in display order.

    What the runs are sorted by comes first, then the user's own, tags if there are any, the others.
    """
    tags, rest = ((TAGS,), COLUMNS[3:]) if tagged else ((), (*COLUMNS[3:], TAGS))
    own = tuple(
        Column(title=label, width=max(8, min(18, len(label) + 1)), sort=text, draw=_custom(text),
               right=True)
        for text in custom for label in (column_label(text),)
    )  # fmt: skip
    chosen: list[Column] = []
    room = width - 2
    key = sort.removeprefix("-")
    order = sorted(
        (NAME, *own, *COLUMNS[1:3], *tags, *rest), key=lambda c: c is not NAME and c.sort != key
    )
    for column in order:
        if column.width + 1 <= room:
            chosen.append(column)
            room -= column.width + 1
    wide = [
        Column(title=c.title, width=c.width + min(room, 14), sort=c.sort, draw=c.draw)
        if c is NAME else c
        for c in chosen
    ]  # fmt: skip
    places = {title: place for place, title in enumerate(ORDER)}
    return tuple(sorted(wide, key=lambda c: places.get(c.title, 5.5)))


def head_line(columns: Sequence[Column], sort: str, palette: Palette) -> Line:
    """The column titles, with an arrow on the sort column."""
    line: Line = [("  ", None)]
    for column in columns:
        sorts = sort.lstrip("-") == column.sort
        arrow = ("▾" if sort.startswith("-") else "▴") if sorts else ""
        text = column.title + arrow + " " * (column.noted and not sorts)
        text = pad(text, column.width, ">" if column.right else "<")
        line.append((text + " ", style(palette.headline if sorts else palette.label)))
    return line


def run_line(
    run: RunSummary, columns: Sequence[Column], cell: Cell, *, marked: bool, pinned: bool
) -> Line:
    """One run as a row: ◆ baseline and * mark, which are no status glyphs, then the cells."""
    signs = ("◆" if pinned else " ") + ("*" if marked else " ")
    line: Line = [(signs, style(cell.palette.accent, cell.back, bold=True))]
    for column in columns:
        line += column.draw(run, cell, column.width)
        line.append((" ", style(cell.palette.text, cell.back)))
    return line
