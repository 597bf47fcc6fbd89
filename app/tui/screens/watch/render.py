"""The lines of Watch's panels: charts, answers, groups, alerts and log, phases."""

import math
from collections.abc import Sequence
from dataclasses import replace

from grpo_engine.events import CUT, Group
from grpo_engine.metrics import PHASES, spec
from grpo_tui.app.charts.series import DELTA_STEPS, Series
from grpo_tui.app.feed.narrator import steps_of
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
from grpo_tui.app.text.prompt_text import last_question, question
from grpo_tui.app.text.safe_text import cell_len, clip, clip_middle, clip_start, pad, safe, wrap
from grpo_tui.app.tui.looks.colours import push_colour
from grpo_tui.app.tui.screens.watch.state import (
    Chart,
    guides_of,
    largest_push,
    last_step,
    reward_chart,
    spent_in,
)
from grpo_tui.app.tui.widgets.charts.plot import (
    LABELS,
    Curve,
    Readout,
    chart_cells,
    cross_column,
    log_hints,
    plot_lines,
    ticks_of,
    title_line,
)
from grpo_tui.app.tui.widgets.panel import Line, Span, cells, justified, meter, paragraph
from grpo_tui.app.tui.widgets.top_bar import severity_mark
from grpo_tui.experiments.values import AlertView, BoardRollout, trainer_of

SHORTEST_PLOT = 3  # lines below the list of reward functions


# -- charts -------------------------------------------------------------------------------------


def curve_colour(chart: Chart, index: int) -> str:
    """The colour of one of a chart's curves."""
    if index < len(chart.family):
        return f"series.{chart.family[index]}"
    return f"cycle.{index + 2}"


def chart_lines(
    chart: Chart,
    snapshot: Snapshot,
    width: int,
    height: int,
    chosen: bool,
    at: int | None = None,
    log: bool = False,
) -> list[Line]:
    """A chart with its title line, and a crosshair at an earlier step."""
    curves = {i: snapshot.series[key] for i, key in enumerate(chart.keys) if key in snapshot.series}
    wide, tall = width - LABELS, height - 1
    listed = not chart.names[0] and 1 < len(curves) <= tall - SHORTEST_PLOT + 1
    tall -= len(curves) - 1 if listed else 0
    below = function_lines(snapshot, width, at) if listed else []
    guides = guides_of(chart, snapshot)
    plotted: list[Line] = []
    hints = [texts[1] for _, texts in guides]
    if tall > 0 and wide > 2:
        end = last_step(snapshot)
        traced = [
            Curve.of(series, end, wide, curve_colour(chart, i), ranged=i == 0)
            for i, series in reversed(curves.items())
        ]
        ticks = ticks_of(end, wide)
        cells_and_axis = chart_cells(chart.keys[0], traced, wide, tall, guides, ticks, log)
        plotted = plot_lines(*cells_and_axis, -1 if at is None else cross_column(at, end, wide))
        shown = [text for line in plotted for text, _ in line]
        hints = [hint for hint in hints if not any(f" {hint} " in text for text in shown)]
    hints = [*(log_hints(curves.values()) if log else ()), *hints]
    readouts = _readouts(chart, {0: curves[0]} if listed else curves, snapshot, at, log)
    if log:  # what is not drawn has to be in the title
        readouts = [replace(item, details=item.details[1:]) for item in readouts]
    title = title_line(chart.title, readouts, width, chosen=chosen, hints=hints)
    return [title, *below, *plotted]


def _readouts(
    chart: Chart, curves: dict[int, Series], snapshot: Snapshot, at: int | None, log: bool
) -> list[Readout]:
    """The value of each curve, of the first also its change; or the values at the crosshair."""
    readouts = []
    for i, series in sorted(curves.items()):
        unit = spec(chart.keys[i]).unit
        name = chart.names[i]
        value, step = (series.value, -1) if at is None else series.line_at(at)
        details: tuple[str, ...] = (f" at step {step}", f" @{step}")
        if at is None:
            delta = "" if log else change(series.value, series.delta, unit)
            details = _details(series, delta, snapshot.step)
        value_style = "bold " * (len(chart.keys) == 1) + curve_colour(chart, i)
        readout = Readout(with_unit(value, unit), value_style, name=name)
        readouts.append(replace(readout, details=details) if not (name or i) else readout)
    return readouts


def _details(series: Series, delta: str, step: int) -> tuple[str, ...]:
    """A value's change with its period, and the step of an old one, the longest first."""
    longer, period = f"in {DELTA_STEPS} steps", ""
    if series.sparse:
        longer, period = f"since step {series.first_step}", f"since {series.first_step}"
    changes = [f" {delta} {text}".rstrip() for text in (longer, period) if delta]
    if not series.sparse or series.last_step >= step:
        return tuple(changes)
    end = f" at step {series.last_step}"
    return *(f"{text},{end}" for text in changes), end, f" @{series.last_step}"


def function_lines(snapshot: Snapshot, width: int, at: int | None = None) -> list[Line]:
    """Each reward function with its weight and its ends; the one that moved most is marked.

    With a crosshair they have their values there.
    """
    chart, weights, functions = reward_chart(snapshot), snapshot.weights, snapshot.reward_curves
    ends = [
        f"  {short(curve.start)} → {short(curve.value)}"
        if at is None
        else f"  {short(curve.line_at(at)[0])}"
        for curve in functions.values()
    ]
    right = max(map(cell_len, ends), default=0)
    lines = []
    for i, (name, end) in enumerate(zip(functions, ends, strict=True)):
        moved = name == snapshot.mover
        weight = weights.get(name, math.nan)
        times = "" if math.isnan(weight) else f" ×{short(weight)}"
        space = width - 5 - right - cell_len(times)
        left = [
            (" ━ ", curve_colour(chart, i + 1)),
            (clip_middle(name, space), "text"),
            (times, "label"),
        ]
        number = (end.rjust(right), "headline" if moved else "text")
        lines.append(justified(left, [number, (" ◂" if moved else "  ", "accent")], width))
    return lines


# -- answers ------------------------------------------------------------------------------------

PUSH, REWARD = 5, 5  # cells
LEAD = 3 + 1 + PUSH + 1 + REWARD + 2  # cells before an answer's text: letter, push and reward


def arrow(advantage: float | None) -> str:
    """▲ positive advantage, ▼ negative, = zero, · not scored for training."""
    if advantage is None:
        return "·"
    return "▲" if advantage > 0 else "▼" if advantage < 0 else "="


def end_mark(rollout: StepRollout) -> Span:
    """How an answer ended: ▪ by itself, [cut] at the length limit, ▌ unfinished.

    An answer with an environment may have failed, have no turn left, or wait for a reply.
    """
    if isinstance(rollout, BoardRollout) and rollout.waits_since is not None:
        return " ⚙", "label"
    if rollout.finish is None:
        return "▌", "accent"
    ends = {
        "": ("", "label"),  # not recorded
        "environment_error": (" [failed]", "bad"),
        "turns": (" [no turn left]", "warn"),
    }
    usual = (" [cut]", "warn") if rollout.finish in CUT else ("▪", "label")
    return ends.get(rollout.finish, usual)


def push_of(rollout: StepRollout) -> str:
    """An answer's advantage, with fewer digits where it would be wide."""
    if isinstance(rollout, BoardRollout) or not rollout.advantage:
        return ""
    push = signed(rollout.advantage)
    return push if len(push) <= PUSH else narrow(rollout.advantage, PUSH)


def lane_lines(rollout: StepRollout, width: int, rows: int, group: StepGroup) -> list[Line]:
    """One answer in `rows` lines at most: name, push and reward on the left, then its text."""
    lead = [(f"{letter(rollout.index):>2} ", "text")]
    if isinstance(rollout, BoardRollout):
        count = "" if rollout.tokens is None else f"{rollout.tokens:>7} tok"
        lead.append((count.ljust(LEAD - 3), "label"))
    else:
        colour = push_colour(rollout.advantage, largest_push(group))
        lead.append((f"{arrow(rollout.advantage)}{push_of(rollout):>{PUSH}} ", f"bold {colour}"))
        lead.append((f"{clip(narrow(rollout.reward, REWARD), REWARD):>{REWARD}}  ", "text"))
    mark = end_mark(rollout)
    lines: list[Line] = []
    for part in text_rows(rollout, mark[0], width - LEAD, rows):
        text = [(text, "label" if reply else "text") for text, reply in part]
        lines.append([*([(" " * LEAD, "")] if lines else lead), *text])
    lines[-1].append(mark)
    return lines


def text_rows(rollout: StepRollout, mark: str, width: int, rows: int) -> list[list[Piece]]:
    """An answer in at most `rows` lines, with space for the mark behind them."""
    width -= cell_len(mark)
    text, growing = rollout.text, rollout.finish is None
    if width <= 1:
        return [[]]
    if rollout.spans:
        return flow(text, rollout.spans, width, rows) or [[]]
    if rows == 1:  # at any place, not at a space
        return [[((clip_start if growing else clip)(text, width), False)]]
    return [[(part, False)] for part in wrap(text, width, rows, from_end=growing) or [""]]


def with_edge(lines: Sequence[Line], marked: bool) -> list[Line]:
    """Lines behind the mark of the cursor."""
    edge = ("▌" if marked else " ", "accent")
    return [[edge, *line] for line in lines]


def prompt_lines(group: StepGroup, width: int, height: int) -> list[Line]:
    """The prompt with its target, and a line below it if the answers leave one."""
    target = target_of(group)
    space = width - 2 - cell_len(target)
    if space <= 0 or height < 2:
        return []
    rows = wrap(" ".join(question(group.prompt_text).split()), space, 1 if height < 20 else 3)
    lines = [[(" ", ""), (row, "headline")] for row in rows]
    lines[0].append((target, "label"))
    return [*lines, *[[]] * (len(rows) + len(group.rollouts) < height)]


def target_of(group: StepGroup) -> str:
    """The right answer, as it stands behind the prompt."""
    return f"   target {clip(group.target, 24)}" if group.target else ""


def prompt_title(group: StepGroup, width: int) -> Line:
    """The number, prompt and target of a group below the one in focus."""
    number, target = f" {group.index + 1}  ", target_of(group)
    text = clip(last_question(group.prompt_text), width - cell_len(number + target))
    return [(number, "label"), (text, "text"), (target, "label")]


def waiting(snapshot: Snapshot, text: str) -> str:
    """What an empty panel says: what will be there, unless it is being read or never was."""
    if snapshot.reading:
        return "The run is being read."
    return "This run recorded none." if snapshot.status in ENDED else text


# -- groups -------------------------------------------------------------------------------------

MEAN = 4
SHORTEST_PROMPT = 20  # cells beside the means from which the prompts are there


def number_width(groups: Sequence[StepGroup]) -> int:
    """Cells of the prompt's number and the mark behind it."""
    return max(2, *(len(str(group.index + 1)) for group in groups), 0) + 2


def largest_group(groups: Sequence[StepGroup]) -> int:
    """The most answers to a prompt."""
    return max((len(group.rollouts) for group in groups), default=0)


def overview_width(groups: Sequence[StepGroup]) -> int:
    """The cells of the groups' panel with an arrow for each answer."""
    return number_width(groups) + 2 * largest_group(groups) + 1 + MEAN + 2


def group_header(number: int, cell: int, group_size: int, width: int) -> Line:
    """The letters of the answers above their cells, and the heading of the means."""
    names = "".join(letter(i).ljust(cell)[:cell] for i in range(group_size)) if cell > 1 else ""
    return [(pad(" " * number + names, width - MEAN), "label"), ("mean", "label")]


def group_line(
    group: StepGroup,
    width: int,
    number: int,
    cell: int,
    *,
    focused: bool = False,
    marked: int | None = None,
) -> Line:
    """One prompt: number, the pushes of its answers, the mean reward."""
    cells = (
        _cell(rollout, cell, largest_push(group), rollout.index == marked)
        for rollout in group.rollouts[: (width - number - MEAN - 1) // cell]
    )
    return _group_row(group, [*cells], width, number, focused=focused)


def folded_line(group: StepGroup, reason: str, width: int, number: int) -> Line:
    """A prompt no answer to which is pushed: the reason in place of its equal signs."""
    space = width - number - MEAN - 1
    return _group_row(group, [(_no_push(reason, space), "label")], width, number)


def _no_push(reason: str, width: int) -> str:
    text = f"{reason}: no push"
    return clip(text if cell_len(text) <= width else f"= {reason.rpartition(', ')[2]}", width)


def _group_row(
    group: StepGroup, middle: Line, width: int, number: int, *, focused: bool = False
) -> Line:
    bright = "bold headline" if focused else "text"
    mark = ("▸ " if focused else "  ", "accent")
    mean = narrow(group.reward_mean, MEAN) if isinstance(group, Group) else ""
    left = [(f"{group.index + 1:>{number - 2}}", bright), mark, *middle]
    return justified(left, [(f"{mean:>{MEAN}}", bright)], width)


def _cell(rollout: StepRollout, cell: int, largest: float, marked: bool) -> Span:
    if isinstance(rollout, BoardRollout):
        text, colour = "▪" if rollout.finish is not None else "·", "label"
    else:
        text = arrow(rollout.advantage)
        if cell == 7:
            text += push_of(rollout).ljust(6)
        colour = push_colour(rollout.advantage, largest)
    return text.ljust(cell), f"bold {colour} on cursor" if marked else colour


def reason_line(reason: str, width: int) -> Line:
    """Why no answer of the group is pushed; if narrow, only the score that all of them have."""
    text = f"    └ {reason}: no push"
    text = text if cell_len(text) <= width else f"  └ {reason.rpartition(', ')[2]}"
    return [(clip(text, width), "label")]


def signal_line(snapshot: Snapshot, width: int) -> Line:
    """The share of groups with signal up to the visible step; until its update, the one before."""
    shares = {step: value for step, value in snapshot.signal if step <= snapshot.groups_step}
    if not shares:
        return []
    last = max(shares)
    number = share(shares[last]) + f" @{last}" * (last < snapshot.groups_step)
    space = max(1, width - 10 - len(number))
    curve = sparkline([*shares.values()][-space:], space, 0.0, 1.0)
    return [
        (" signal ", "label"),
        (curve, "series.kl"),
        (f" {number}", "text"),
    ]


def prompt_of(group: StepGroup, width: int, focused: bool, reason: str = "") -> Line:
    """The prompt of a group beside its mean, after the reason why no answer to it is pushed."""
    if reason:
        reason = f"  {_no_push(reason, width - 2)}"
        width -= cell_len(reason)
    prompt = [] if width < 4 else [f"  {clip(last_question(group.prompt_text), width - 2)}"]
    return [(reason, "label"), *((text, "text" if focused else "label") for text in prompt)]


# -- alerts and log -----------------------------------------------------------------------------


def entry_lines(
    entry: AlertView | LogLine,
    marked: bool,
    width: int,
    limit: int,
    *,
    active: bool = True,
    rest: int = 1,
) -> list[Line]:
    """An alert or the marked line of the log, in at most `limit` lines; others in `rest`."""
    style, when = "text", clock(entry.at)
    sign, colour = severity_mark(entry.severity)
    if isinstance(entry, LogLine):
        text, limit = entry.text, limit if marked else rest
        style = "text" if entry.severity == "info" else colour
    elif not active:
        text, sign, colour = f"alert {steps_of(entry)}, closed: {entry.explanation}", "·", "label"
    elif entry.muted:
        text, when, limit = entry.explanation, "muted", 1
        sign, colour, style = "–", "label", "label"
    else:  # comes before the newest line of the log, whenever it was raised
        text, when, style = f"{entry.explanation} {entry.remedy}", "open", "headline"
    head = (f"{when:>8} {sign} ", f"bold {colour}")
    lines = paragraph(safe(text, " "), width - 1, limit, style, head)
    return with_edge(lines or [[head]], marked)


# -- phases and sentences -----------------------------------------------------------------------

BAR = 12
PHASE_NAMES = {"load": "loading model", "evaluate": "held-out", "checkpoint": "checkpoint"}


def sentence_lines(sentences: Sequence[str], width: int, height: int) -> list[Line]:
    """Whole sentences, as many as fit; only a first one that is too long is wrapped."""
    text = ""
    for sentence in sentences:
        longer = f"{text} {sentence}".strip()
        if not text or len(wrap(longer, width - 4, height + 1)) <= height:
            text = longer
    return paragraph(text, width - 1, height, "headline", (" ▸ ", "accent")) if text else []


def phase_line(snapshot: Snapshot, now: float, width: int) -> Line:
    """Phases on the left, numbers on the right; the least important numbers are dropped first.

    The time that is left stays: the bar becomes shorter, then the phases that are done or to come
    are dropped. Of a run that has ended, the shortest phases are dropped.
    """
    spent = spent_in(snapshot)
    left, right = _phases(snapshot, now, spent), _numbers(snapshot, spent)
    minimum = 2 + max(0, *(cell_len(text) + 1 for text in right[-1:]), 0)
    if (over := cells(left) + minimum - width) > 0:
        left = _phases(snapshot, now, spent, max(0, BAR - over))
    if snapshot.active and cells(left) + minimum > width:
        left = _phases(snapshot, now, spent, BAR, only=snapshot.board.phase)
    while len(spent) > 1 and not snapshot.active and cells(left) + 2 > width:
        del spent[min(spent, key=spent.__getitem__)]
        left = _phases(snapshot, now, spent)
    while right and cells(left) + sum(len(text) + 2 for text in right) + 1 > width:
        right.pop(0)
    return justified(left, [("  ".join(right), "label"), (" ", "")], width)


def _numbers(snapshot: Snapshot, spent: dict[str, float]) -> list[str]:
    numbers = []
    if memory := snapshot.series.get("memory/peak_gb"):
        numbers.append(with_unit(memory.last, "GB"))
    if snapshot.tokens_per_second:
        numbers.append(f"{short(snapshot.tokens_per_second)} tok/s")
    if snapshot.step_seconds is not None:
        if snapshot.active and spent:
            slowest = max(spent, key=spent.__getitem__)
            part = share(spent[slowest] / snapshot.step_seconds)
            numbers.append(f"{slowest} {part} of time")
        numbers.append(f"{short(snapshot.step_seconds)} s/step")
    if snapshot.eta is not None and snapshot.active:
        numbers.append(f"{seconds(snapshot.eta)} left{_after_last_step(snapshot)}")
    return numbers


def _after_last_step(snapshot: Snapshot) -> str:
    """What takes time after the last step, while that is worked on; it is not in the time left."""
    evaluation = snapshot.head.config.get("evaluation", {})
    is_last = snapshot.current_step >= snapshot.head.total_steps > snapshot.step
    measured = evaluation.get("before_and_after") and not snapshot.head.recorded
    return ", then held-out answers" if is_last and measured else ""


def _phases(
    snapshot: Snapshot, now: float, spent: dict[str, float], bar: int = BAR, only: str = ""
) -> Line:
    board = snapshot.board
    if snapshot.status == "empty":
        return [(" no run", "label")]
    if not snapshot.active:
        time = snapshot.worked or snapshot.elapsed
        worked = f" after {seconds(time)}" * (time > 0)  # other trainers may record no time
        status = {"failed": "bad", "lost": "warn"}.get(snapshot.status, "good")
        return [
            (f" {snapshot.status}", f"bold {status}"),
            (worked, "label"),
            ("  mean step" * bool(spent), "label"),
            *_usual_step(spent),
        ]
    trainer = trainer_of(snapshot.head.config)
    if trainer and not board.phase and snapshot.status == "running":
        return [(f" waits for the next step of {trainer}", "label")]
    spans = []
    for name in [only] if only else filter(None, dict.fromkeys((*PHASES, board.phase))):
        if name == board.phase:
            spans += _running(snapshot, name, now, bar)
        elif name in board.phase_seconds:
            spans += [
                (f" {name} ", "text"),
                ("✓", "good"),
                (f" {seconds(board.phase_seconds[name])} ", "label"),
            ]
        else:
            spans.append((f" {name} ", "label"))
    if snapshot.status == "paused":
        return [(" ‖ paused ", "bold warn"), *spans]
    return spans or [(" starting", "text")]


def _usual_step(spent: dict[str, float]) -> Line:
    """The phases of a step, the slowest marked."""
    slowest = max(spent, key=spent.__getitem__, default="")
    spans = []
    for name, took in spent.items():
        mark = " ◂ slowest" if name == slowest else ""
        spans += [
            (f"  {name} ", "bold headline" if mark else "text"),
            (seconds(took), "label"),
            (mark, "accent"),
        ]
    return spans


def _running(snapshot: Snapshot, name: str, now: float, bar: int) -> Line:
    board = snapshot.board
    spans = [(f" {PHASE_NAMES.get(name, name)} ", "bold headline")]
    if board.phase_detail:
        spans.append((f"{clip(board.phase_detail, 24)} ", "text"))
    if board.total:
        spans += [*meter(board.done / board.total, bar), (" ", "")]
    if board.awaited:
        count = f"{board.done} of {board.total} answers, " * (name in ("generate", "evaluate"))
        spans.append((f"{count}{clip(board.awaited, 30)} ", "text"))
    if snapshot.status == "paused" and snapshot.paused_at is not None:
        now = snapshot.paused_at
    if board.phase_started and now >= board.phase_started:
        spans.append((f"{seconds(now - board.phase_started)} ", "label"))
    return spans
