"""The lines of Watch's panels: charts, answers, groups, alerts and log, phases."""

import math
import time
from collections.abc import Sequence
from itertools import chain
from math import isnan

from rich.style import Style

from grpo_engine.events import CUT, Group
from grpo_engine.metrics import PHASES, spec
from grpo_tui.app.charts.series import Series, cut
from grpo_tui.app.feed.run_state import clock
from grpo_tui.app.feed.snapshot import ENDED, LogLine, Snapshot, StepGroup, StepRollout
from grpo_tui.app.inspector.dialogue import Piece, flow
from grpo_tui.app.inspector.groups import letter
from grpo_tui.app.text.numbers import (
    change,
    narrow,
    seconds,
    share,
    short,
    signed,
    sparkline,
    with_unit,
)
from grpo_tui.app.text.prompt_text import asked, question
from grpo_tui.app.text.safe_text import cell_len, clip, clip_middle, clip_start, pad, safe, wrap
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.screens.watch.state import (
    Chart,
    guides_of,
    is_demonstrated,
    largest_push,
    last_step,
    no_push_reason,
    reward_chart,
    signal_of,
    spent_in,
    waits_since,
)
from grpo_tui.app.tui.widgets.charts.plot import LABELS, Curve, axis_of, plot, plot_lines
from grpo_tui.app.tui.widgets.charts.title import Readout, title_line
from grpo_tui.app.tui.widgets.panel import Line, Span, cells
from grpo_tui.experiments.values import AlertView, BoardRollout

SHORTEST_PLOT = 3  # lines below the list of reward functions
NAME_CELLS = (99, 14, 9)  # of a curve's name in a title: all, or with its middle left out


# -- charts -------------------------------------------------------------------------------------


def curve_colour(chart: Chart, index: int, palette: Palette) -> int:
    """The colour of one of a chart's curves."""
    if index < len(chart.family):
        return palette.of_series(chart.family[index])
    return palette.cycle[(index + 2) % len(palette.cycle)]


def chart_lines(
    chart: Chart, snapshot: Snapshot, width: int, height: int, palette: Palette, chosen: bool
) -> list[Line]:
    """A chart with its title line."""
    curves = {i: snapshot.series[key] for i, key in enumerate(chart.keys) if key in snapshot.series}
    wide, tall = width - LABELS, height - 1
    listed = chart.names[:1] == ("",) and 1 < len(curves) <= tall - SHORTEST_PLOT + 1
    tall -= len(curves) - 1 if listed else 0
    below = function_lines(snapshot, width, palette) if listed else []
    guides = guides_of(chart, snapshot)
    plotted: list[Line] = []
    hints = [f"{texts[-1]} " for _, texts in guides]
    if tall > 0 and wide > 2:
        end = last_step(snapshot)
        traced = [
            Curve(cut(series, series.steps, end, 2 * wide), curve_colour(chart, i, palette),
                  range_colour=palette.raw if i == 0 and not series.sparse else None)
            for i, series in reversed(curves.items())
        ]  # fmt: skip
        scale = axis_of(chart.keys[0], traced, tall, [value for value, _ in guides])
        plotted = plot_lines(plot(traced, scale, wide, tall, palette, guides), scale, palette)
        if hints and any(f" {hints[0]}" in text for line in plotted for text, _ in line):
            hints = []  # it is in the plot
    hints += ["◂ moved it most"] if listed and snapshot.mover else []
    readouts = _readouts(chart, {0: curves[0]} if listed else curves, snapshot, palette)
    names = [name for name in (chart.title, chart.short) if name]
    title = title_line(names, readouts, width, palette, chosen=chosen, hints=hints)
    return [title, *below, *plotted]


def _readouts(
    chart: Chart, curves: dict[int, Series], snapshot: Snapshot, palette: Palette
) -> list[Readout]:
    """The value of each curve: the first, then that of the function that moved it most."""
    mover = chart.names.index(snapshot.mover) if snapshot.mover in chart.names[1:] else -1
    readouts = []
    for i in sorted(curves, key=lambda i: (i != 0, i != mover)):
        series, unit = curves[i], spec(chart.keys[i]).unit
        name = chart.names[i] if i < len(chart.names) else ""
        names = tuple(clip_middle(name, limit) for limit in NAME_CELLS)
        details = _details(series, unit, snapshot.step) if not (name or i) else ()
        value_style = style(curve_colour(chart, i, palette), bold=not chart.names)
        value = with_unit(series.value, unit)
        readouts.append(Readout(value, value_style, names=names, details=details))
    return readouts


def _details(series: Series, unit: str, step: int) -> tuple[str, ...]:
    """A value's change, and the step of an old one, the longest first."""
    delta = change(series.value, series.delta, unit)
    delta = f" {delta}" if delta else ""
    points = f"{delta} points" if delta and series.sparse and unit == "share" else delta
    if not series.sparse or series.last_step >= step:
        return points, delta
    old = f" at step {series.last_step}"
    return points + old, delta + old, old, f" @{series.last_step}"


def function_lines(
    snapshot: Snapshot, width: int, palette: Palette, *, curves: bool = False
) -> list[Line]:
    """Each reward function with its weight and its ends; the one that moved most is marked."""
    chart, weights, functions = reward_chart(snapshot), snapshot.weights, snapshot.reward_curves
    mover, word = snapshot.mover, " ◂ moved the reward most" if curves else " ◂"
    times = [f" ×{short(weights[name])}" if name in weights else "" for name in functions]
    ends = [f"  {short(one.start)} → {short(one.value)}{' smoothed' if curves else ''}"
            for one in functions.values()]  # fmt: skip
    right = max(map(cell_len, ends), default=0)
    left = max(map(cell_len, map(str.__add__, functions, times)), default=0)
    scale = [*filter(math.isfinite, chain(*(one.average for one in functions.values())))]
    low, high = min(scale, default=None), max(scale, default=None)  # one scale for all curves
    lines: list[Line] = []
    for i, (name, series) in enumerate(functions.items()):
        colour = style(curve_colour(chart, i + 1, palette))
        mark = (word if name == mover else " " * len(word)) if len(functions) > 1 else ""
        room = width - 3 - right - cell_len(mark)
        # all curves begin below each other
        curve = sparkline(list(series.average), room - left - 2, low, high) if curves else ""
        named: Line = [
            (clip_middle(name, room - cell_len(times[i])), palette.text),
            (times[i], palette.label),
        ]
        gap = " " * (room - cells(named) - len(curve))
        value_style = style(palette.headline if name == mover else palette.text)
        lines.append(
            [
                (" ━ ", colour),
                *named,
                (gap, None),
                (curve, colour),
                (ends[i].rjust(right), value_style),
                (mark, palette.accent),
            ]
        )
    return lines


# -- answers ------------------------------------------------------------------------------------

LEAD = 16  # cells before an answer's text, at least: its letter, push and reward
MOST_LINES = 6
PUSH_CELLS, REWARD_CELLS = 7, 6  # at most


def arrow(advantage: float | None) -> str:
    """▲ positive advantage, ▼ negative, = zero, · not scored for training."""
    if advantage is None:
        return "·"
    return "▲" if advantage > 0 else "▼" if advantage < 0 else "="


def end_mark(rollout: StepRollout, now: float = 0.0) -> str:
    """How an answer ended: ▪ by itself, [cut] at the length limit, ▌ unfinished.

    An answer with an environment may have failed, have no turn left, or wait for a reply.
    """
    since = waits_since(rollout)
    if since is not None:
        return f" ⚙ {seconds(max(0.0, now - since))}"
    if rollout.finish is None:
        return "▌"
    ends = {"environment_error": " [failed]", "turns": " [no turn left]"}
    return ends.get(rollout.finish, " [cut]" if rollout.finish in CUT else "▪")


def _mark_colour(rollout: StepRollout, palette: Palette) -> int:
    if rollout.finish is None:
        return palette.label if waits_since(rollout) is not None else palette.accent
    colours = {"environment_error": palette.bad, "turns": palette.warn}
    usual = palette.warn if rollout.finish in CUT else palette.label
    return colours.get(rollout.finish, usual)


def push_and_reward(rollout: StepRollout) -> tuple[str, str]:
    """An answer's push and reward, with fewer digits where they would be wide."""
    if isinstance(rollout, BoardRollout):
        return "", ""
    push = signed(rollout.advantage) if rollout.advantage else ""
    if len(push) > PUSH_CELLS:
        push = narrow(rollout.advantage, PUSH_CELLS)
    return push, clip(narrow(rollout.reward, REWARD_CELLS), REWARD_CELLS)


def number_cells(group: StepGroup) -> tuple[int, int]:
    """The cells of the pushes and of the rewards of a group's answers."""
    numbers = [push_and_reward(rollout) for rollout in group.rollouts]
    return (max([5, *(len(push) for push, _ in numbers)]),
            max([4, *(len(reward) for _, reward in numbers)]))  # fmt: skip


def lane_lines(
    rollout: StepRollout, width: int, rows: int, palette: Palette, group: StepGroup,
    now: float = 0.0,
) -> list[Line]:  # fmt: skip
    """One answer in `rows` lines: name, push and reward on the left, then its text."""
    push_cells, reward_cells = number_cells(group)
    lead_cells = LEAD - 9 + push_cells + reward_cells
    lead: Line = [(f"{letter(rollout.index):>2} ", palette.text)]
    if is_demonstrated(group):
        lead, lead_cells = [(" ", None)], 1
    elif isinstance(rollout, BoardRollout):
        lead.append((f"{rollout.tokens:>7} tok".ljust(lead_cells - 3), palette.label))
    else:
        colour = palette.of_push(rollout.advantage, largest_push(group))
        bold = style(palette.label if colour == palette.border else colour, bold=True)
        push, reward = push_and_reward(rollout)
        lead.append((f"{arrow(rollout.advantage)}{push:>{push_cells}} ", bold))
        lead.append((f"{reward:>{reward_cells}}  ", palette.text))
    mark = end_mark(rollout, now)
    lines: list[Line] = []
    parts = text_rows(rollout, mark, width - lead_cells, rows)
    for i, part in enumerate(parts):
        start: Line = lead if i == 0 else [(" " * lead_cells, None)]
        last = i == len(parts) - 1
        tail: Line = [(mark, style(_mark_colour(rollout, palette)))] if last and mark else []
        text = [(text, style(palette.label if reply else palette.text)) for text, reply in part]
        lines.append([*start, *text, *tail])
    return lines + [[]] * (rows - len(lines))


def text_rows(rollout: StepRollout, mark: str, width: int, rows: int) -> list[list[Piece]]:
    """An answer in at most `rows` lines, the last one with space for the mark."""
    if width <= cell_len(mark) + 1:
        return [[]]
    if rollout.spans:
        parts = flow(rollout.text, rollout.spans, width, rows) or [[]]
        if sum(cell_len(text) for text, _ in parts[-1]) + cell_len(mark) > width:
            parts = flow(rollout.text, rollout.spans, width - cell_len(mark), rows)
        return parts
    return [[(part, False)] for part in _plain_rows(rollout, mark, width, rows)]


def _plain_rows(rollout: StepRollout, mark: str, width: int, rows: int) -> list[str]:
    growing = rollout.finish is None
    if rows == 1:
        return [(clip_start if growing else clip)(rollout.text, width - cell_len(mark))]
    parts = wrap(rollout.text, width, rows, keep_end=growing) or [""]
    if cell_len(parts[-1]) + cell_len(mark) > width:
        parts = wrap(rollout.text, width - cell_len(mark), rows, keep_end=growing)
    return parts


def with_edge(lines: Sequence[Line], marked: bool, palette: Palette) -> list[Line]:
    """Lines behind the mark of the cursor."""
    edge = ("▌" if marked else " ", palette.accent)
    return [[edge, *line] for line in lines]


def lines_needed(group: StepGroup, width: int) -> int:
    """The lines of the group's longest answer, at most `MOST_LINES`."""
    width -= LEAD - 9 + sum(number_cells(group))
    return max(len(text_rows(item, end_mark(item), width, MOST_LINES)) for item in group.rollouts)


def prompt_lines(group: StepGroup, width: int, height: int, palette: Palette) -> list[Line]:
    """The prompt with its target, if a line for each answer is left below."""
    target = f"   target {clip(group.target, 24)}" if group.target else ""
    space = width - 2 - cell_len(target)
    if space <= 0 or height < len(group.rollouts) + 2:
        return []
    rows = wrap(" ".join(question(group.prompt_text).split()), space, 1 if height < 20 else 3)
    lines: list[Line] = [[(" ", None), (row, palette.headline)] for row in rows]
    lines[0].append((target, palette.label))
    return [*lines, []]


def no_answers(snapshot: Snapshot) -> str:
    """Why there are no answers yet."""
    if snapshot.status == "empty":
        return "Answers appear here while they are sampled, one below the other."
    if snapshot.reading:
        return "The run is being read."
    if snapshot.status in ENDED:
        return "No answers of this run are recorded."
    return "The first answers arrive when the model is loaded."


# -- groups -------------------------------------------------------------------------------------

MEAN = 4
SHORTEST_PROMPT = 20  # cells beside the means from which the prompts are there


def number_width(groups: Sequence[StepGroup]) -> int:
    """Cells of the prompt's number and the mark behind it."""
    return max(2, *(len(str(group.index + 1)) for group in groups), 0) + 2


def cell_width(width: int, answers: int) -> int:
    """Cells per answer: 7 with its advantage, 2 with its arrow, 1 if narrow, 0 for counts only."""
    return next((cell for cell in (7, 2, 1) if answers * cell <= width - MEAN), 0)


def group_header(number: int, cell: int, answers: int, width: int, palette: Palette) -> Line:
    """The letters of the answers above their cells, and the heading of the means."""
    names = "".join(letter(i).ljust(cell)[:cell] for i in range(answers)) if cell > 1 else ""
    label = style(palette.label)
    return [(pad(" " * number + names, width - MEAN), label), ("mean", label)]


def group_line(
    group: StepGroup, width: int, number: int, cell: int, palette: Palette, *,
    focused: bool = False, marked: int | None = None, explained: bool = False,
) -> Line:  # fmt: skip
    """One prompt: number, the pushes of its answers or why there are none, the mean reward."""
    bright = style(palette.headline if focused else palette.text, bold=focused)
    spans = numbered(group, number, focused, palette)
    reason, size = "" if explained else no_push_reason(group), cell * len(group.rollouts)
    if reason and cell_len(reason) + 2 <= size:
        spans += _marked(f"= {reason}".ljust(size), cell, marked, style(palette.label), palette)
    elif cell:
        spans += [_cell(rollout, cell, palette, largest_push(group), rollout.index == marked)
                  for rollout in group.rollouts]  # fmt: skip
    else:
        spans.append((clip(_counts(group), width - number - MEAN - 1), bright))
    mean = narrow(group.reward_mean, MEAN) if isinstance(group, Group) else ""
    spans.append((" " * max(0, width - cells(spans) - MEAN), None))
    spans.append((f"{mean:>{MEAN}}", bright))
    return spans


def _marked(text: str, cell: int, marked: int | None, plain: Style, palette: Palette) -> Line:
    """A reason in place of the answers' cells, with the cursor on the one that is marked."""
    if marked is None:
        return [(text, plain)]
    start, end = marked * cell, (marked + 1) * cell
    under = style(palette.headline, palette.cursor)
    return [(text[:start], plain), (text[start:end], under), (text[end:], plain)]


def _counts(group: StepGroup) -> str:
    if not isinstance(group, Group):
        return f"{len(group.rollouts)} answers"
    up = sum((rollout.advantage or 0) > 0 for rollout in group.rollouts)
    down = sum((rollout.advantage or 0) < 0 for rollout in group.rollouts)
    return f"{up}▲ {down}▼"


def _cell(rollout: StepRollout, cell: int, palette: Palette, largest: float, marked: bool) -> Span:
    if isinstance(rollout, BoardRollout):
        text, colour = "▪" if rollout.finish is not None else "·", palette.label
    else:
        text = arrow(rollout.advantage)
        if cell == 7:
            text += clip(push_and_reward(rollout)[0], 6).ljust(6)
        colour = palette.of_push(rollout.advantage, largest)
        colour = palette.label if colour == palette.border else colour
    return text.ljust(cell), style(colour, palette.cursor if marked else None, bold=marked)


def reason_line(reason: str, width: int, palette: Palette) -> Line:
    """Why no answer of the group is pushed; if narrow, only the score that all of them have."""
    texts = (f"    └ {reason}: no push", f"  └ {reason}", f"  └ {reason.rpartition(', ')[2]}")
    text = next((text for text in texts if cell_len(text) <= width), texts[-1])
    return [(clip(text, width), palette.label)]


def signal_line(snapshot: Snapshot, width: int, palette: Palette) -> Line:
    """The share of groups with signal up to the visible step; the number is that step's."""
    now = signal_of(snapshot)
    values = [value for step, value in snapshot.signal if step < snapshot.groups_step]
    values += [] if now is None else [now]
    if not values:
        return []
    number = share(now) if now is not None else "–"
    space = max(1, width - 10 - len(number))
    curve = sparkline(values[-space:], space, 0.0, 1.0)
    return [
        (" signal ", palette.label),
        (curve, style(palette.of_series("kl"))),
        (f" {number}", palette.text),
    ]


def prompt_row(group: StepGroup, width: int, number: int, focused: bool, palette: Palette) -> Line:
    """A prompt with its number."""
    bright = style(palette.headline if focused else palette.text, bold=focused)
    prompt = clip(asked(group.prompt_text), width - number)
    return [*numbered(group, number, focused, palette), (prompt, bright)]


def numbered(group: StepGroup, number: int, focused: bool, palette: Palette) -> Line:
    """The begin of a row: the number of a prompt, and the mark of the one in focus."""
    bright = style(palette.headline if focused else palette.text, bold=focused)
    return [
        (f"{group.index + 1:>{number - 2}}", bright),
        ("▸ " if focused else "  ", palette.accent),
    ]


def prompt_of(group: StepGroup, width: int, focused: bool, palette: Palette) -> Line:
    """The prompt of a group, where there is space beside its mean."""
    if width < SHORTEST_PROMPT:
        return []
    colour = palette.text if focused else palette.label
    return [(f"  {clip(asked(group.prompt_text), width - 2)}", style(colour))]


def groups_window(groups: Sequence[StepGroup], prompt: int, height: int) -> tuple[int, bool]:
    """The first group to draw and whether reasons fit, so that the selected one is visible."""
    if sum(2 if no_push_reason(group) else 1 for group in groups) <= height:
        return 0, True
    if len(groups) <= height or height <= 4:
        first = max(0, min(prompt - height + 1, len(groups) - height)) if prompt >= height else 0
        return first, False
    return max(0, prompt - height + 1), False


# -- alerts and log -----------------------------------------------------------------------------

ENTRY_LEAD = 12  # cells before an alert's text: mark, time, sign
SIGNS = {"info": "·", "warning": "▲", "error": "✗"}


def entry_lines(
    entry: AlertView | LogLine, palette: Palette, marked: bool, width: int, limit: int, *,
    active: bool = True,
) -> list[Line]:  # fmt: skip
    """An alert or a line of the log, in at most so many lines."""
    if isinstance(entry, LogLine):
        return [log_line(entry, palette, marked)]
    if not active:
        return closed_lines(entry, palette, marked, width, limit)
    if entry.muted:
        return [muted_line(entry, palette, marked)]
    return alert_lines(entry, palette, marked, width, limit)


def sign_of(severity: str) -> str:
    """The sign of a severity; one of another version is written as it is."""
    return SIGNS.get(severity) or safe(severity, " ")


def colour_of(severity: str, palette: Palette) -> int:
    return {"info": palette.label, "warning": palette.warn, "error": palette.bad}.get(
        severity, palette.warn
    )


def _start(at: float | None, sign: str, palette: Palette, marked: bool, colour: int) -> Line:
    """What is before the text of an entry: cursor, time and sign."""
    return [("▌" if marked else " ", palette.accent),
            (f"{clock(at)} ", palette.label),
            (f"{sign} ", style(colour, bold=True))]  # fmt: skip


def alert_lines(
    alert: AlertView, palette: Palette, marked: bool, width: int, limit: int
) -> list[Line]:
    """An alert's time, severity, message and duration, wrapped to at most `most` lines."""
    ends = alert.first_step, alert.last_step
    since = f" at step {ends[1]}" if alert.count == 1 else " steps {} to {}".format(*ends)
    if limit == 1:
        since = ""  # a single line is for what the alert says; ⏎ tells the steps
    text = f"{safe(alert.explanation, ' ')} {safe(alert.remedy, ' ')}"
    space, tail = width - ENTRY_LEAD, cell_len(since) + 3
    rows = wrap(text, max(8, space), limit) or [""]
    if len(rows) == limit:
        rows[-1] = clip(rows[-1], max(8, space - tail))
    elif cell_len(rows[-1]) + tail > space:
        rows.append("")
    lines = _indented(rows, palette, marked, palette.headline)
    colour = colour_of(alert.severity, palette)
    lines[0][:2] = _start(alert.at, sign_of(alert.severity), palette, marked, colour)
    lines[-1] += [
        (since if rows[-1] else since.lstrip(), palette.label),
        ("  ⏎", palette.accent),
    ]
    return lines


def _indented(rows: Sequence[str], palette: Palette, marked: bool, colour: int) -> list[Line]:
    lines: list[Line] = [[(" " * (ENTRY_LEAD - 1), None), (row, style(colour))] for row in rows]
    return with_edge(lines, marked, palette)


def closed_lines(
    alert: AlertView, palette: Palette, marked: bool, width: int, limit: int
) -> list[Line]:
    """An alert that is no longer active, as lines of the log."""
    first, last = alert.first_step, alert.last_step
    steps_text = f"alert at step {last}" if first == last else f"alert in steps {first} to {last}"
    text = f"{steps_text}, closed: {safe(alert.explanation, ' ')}"
    rows = wrap(text, max(8, width - ENTRY_LEAD), limit)
    lines = _indented(rows, palette, marked, palette.text)
    lines[0][:2] = _start(alert.at, SIGNS["info"], palette, marked, palette.label)
    return lines


def muted_line(alert: AlertView, palette: Palette, marked: bool) -> Line:
    """An active alert that is muted."""
    start = _start(alert.at, "–", palette, marked, palette.label)
    text = f"{safe(alert.explanation, ' ')}  muted in this run  "
    return [*start, (text, palette.label), ("x", palette.accent)]


def log_line(line: LogLine, palette: Palette, marked: bool) -> Line:
    """A line of the log."""
    colour = colour_of(line.severity, palette)
    text = style(palette.text if line.severity == "info" else colour)
    start = _start(line.at, sign_of(line.severity), palette, marked, colour)
    return [*start, (safe(line.text, " "), text)]


def dated(snapshot: Snapshot) -> str:
    """The day of the newest line of the log, unless it is today."""
    at = next((line.at for line in reversed(snapshot.log) if line.at is not None), None)
    day = "" if at is None or isnan(at) else time.strftime("%Y-%m-%d", time.localtime(at))
    return f" · {day}" if day and day != time.strftime("%Y-%m-%d") else ""


# -- phases and sentences -----------------------------------------------------------------------

BAR = 12
PHASE_NAMES = {"load": "loading model", "evaluate": "held-out", "checkpoint": "checkpoint"}


def sentence_lines(
    sentences: Sequence[str], width: int, height: int, palette: Palette
) -> list[Line]:
    """Whole sentences, as many as fit; only a first one that is too long is wrapped."""
    lines = wrap(sentences[0], width - 4, height) if sentences else []
    for sentence in map(safe, sentences[1:]):
        space = width - 5 - cell_len(sentence)
        index = next((i for i, line in enumerate(lines) if cell_len(line) <= space), None)
        if index is not None:
            lines[index] += f" {sentence}"
        elif len(lines) < height and space >= -1:
            lines.append(sentence)
    return [[(" ▸ " if i == 0 else "   ", palette.accent), (line, palette.headline)]
            for i, line in enumerate(lines)]  # fmt: skip


def phase_line(snapshot: Snapshot, now: float, width: int, palette: Palette) -> Line:
    """Phases on the left, numbers on the right; the least important numbers are dropped first."""
    left = _phases(snapshot, now, width, palette)
    right = _numbers(snapshot)
    used = cells(left)
    while right and used + sum(len(text) + 2 for text in right) + 1 > width:
        first, comma, _ = right.pop(0).partition(", ")
        right = [first, *right] if comma else right
    tail = "  ".join(right)
    gap = max(int(bool(tail)), width - used - len(tail) - 1)
    return [*left, (" " * gap, None), (tail, palette.label), (" ", None)]


def _numbers(snapshot: Snapshot) -> list[str]:
    numbers = []
    if snapshot.memory_gb is not None:
        numbers.append(with_unit(snapshot.memory_gb, "GB"))
    if snapshot.tokens_per_second:
        numbers.append(f"{short(snapshot.tokens_per_second)} tok/s")
    if snapshot.step_seconds is not None:
        spent = spent_in(snapshot)
        slowest = max(spent, key=spent.__getitem__, default="")
        part = f", {share(spent[slowest] / snapshot.step_seconds)} {slowest}" if spent else ""
        numbers.append(f"{short(snapshot.step_seconds)} s/step{part if snapshot.active else ''}")
    if snapshot.eta is not None and snapshot.active:
        numbers.append(f"{seconds(snapshot.eta)} left")
    return numbers


def _phases(snapshot: Snapshot, now: float, width: int, palette: Palette) -> Line:
    label, text, board = style(palette.label), style(palette.text), snapshot.board
    if snapshot.status == "empty":
        return [(" no run", label)]
    if not snapshot.active:
        spent = spent_in(snapshot)
        worked = f" after {seconds(snapshot.elapsed)}{'  per step' if spent else ''}"
        space = width - cell_len(snapshot.status + worked) - 2
        status = {"failed": palette.bad, "lost": palette.warn}.get(snapshot.status, palette.good)
        return [(f" {snapshot.status}", style(status, bold=True)), (worked, label),
                *_usual_step(spent, space, palette)]  # fmt: skip
    spans: Line = []
    extra = board.phase if board.phase and board.phase not in PHASES else ""
    for name in (*PHASES, *([extra] if extra else ())):
        if name == board.phase:
            spans += _running(snapshot, name, now, palette)
        elif name in board.phase_seconds:
            spans += [(f" {name} ", text), ("✓", palette.good),
                      (f" {seconds(board.phase_seconds[name])} ", label)]  # fmt: skip
        else:
            spans.append((f" {name} ", label))
    if snapshot.status == "paused":
        return [(" ‖ paused ", style(palette.warn, bold=True)), *spans]
    return spans or [(" starting", text)]


def _usual_step(spent: dict[str, float], space: int, palette: Palette) -> Line:
    """The phases of a step, the slowest marked; the shortest join the others where it is narrow."""
    slowest = max(spent, key=spent.__getitem__, default="")
    while True:
        spans: Line = []
        for name, took in spent.items():
            slow = name == slowest
            spans += [
                (f"  {name} ", style(palette.headline if slow else palette.text, bold=slow)),
                (seconds(took), palette.label),
                (" ◂ slowest" if slow else "", palette.accent),
            ]
        folded = spent.keys() - {"other", slowest}
        if not folded or cells(spans) <= space:
            return spans
        shortest = min(folded, key=spent.__getitem__)
        spent = {**spent, "other": spent["other"] + spent[shortest]}
        del spent[shortest]


def _running(snapshot: Snapshot, name: str, now: float, palette: Palette) -> Line:
    board = snapshot.board
    spans: Line = [(f" {PHASE_NAMES.get(name, name)} ", style(palette.headline, bold=True))]
    if board.phase_detail:
        spans.append((f"{clip(board.phase_detail, 24)} ", palette.text))
    if board.total:
        full, empty = progress_bar(board.done / board.total, BAR)
        spans += [(full, palette.accent), (empty, palette.border), (" ", None)]
    if board.phase_started and now >= board.phase_started:
        spans.append((f"{seconds(now - board.phase_started)} ", palette.label))
    return spans


def progress_bar(part: float, width: int) -> tuple[str, str]:
    """The filled and the empty part of a progress bar."""
    half = round(max(0.0, min(1.0, part)) * width * 2)
    full = "━" * (half // 2) + ("╸" if half % 2 else "")
    return full, "─" * (width - len(full))
