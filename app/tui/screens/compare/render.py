"""The Compare screen as text: its sentences, tables and answers as lines."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from statistics import fmean
from typing import TypeVar

from grpo_engine.metrics import count_of, natural_range, spec, stderr_of
from grpo_tui.app.charts.axis import Axis
from grpo_tui.app.charts.stored import ChartData
from grpo_tui.app.text.comparison import (
    ALPHA,
    ARROWS,
    effect_rows,
    effects_title,
    points,
    ranked,
    ranking_rows,
    ranking_title,
    rankings_of,
    run_name,
    standing,
)
from grpo_tui.app.text.comparison import verdict as verdict_of
from grpo_tui.app.text.numbers import seconds, short, signed, value_text, with_stderr, with_unit
from grpo_tui.app.text.prompt_text import last_question
from grpo_tui.app.text.safe_text import cell_len, clip, clip_distinct, clip_start, pad, safe
from grpo_tui.app.text.table import table_lines
from grpo_tui.app.tui.screens.compare.state import CompareView, end_of, measure_of
from grpo_tui.app.tui.screens.watch.render import lane_lines
from grpo_tui.app.tui.widgets.charts.plot import (
    LABELS,
    Curve,
    Readout,
    chart_cells,
    cross_column,
    log_hints,
    named,
    plot_lines,
    ticks_of,
    title_line,
)
from grpo_tui.app.tui.widgets.charts.stack import side_by_side
from grpo_tui.app.tui.widgets.panel import Line, cells, list_row, paragraph
from grpo_tui.app.tui.widgets.top_bar import status_mark
from grpo_tui.experiments.compare.statistics import mean_interval
from grpo_tui.experiments.compare.values import Effect, MetricCell, Ranking
from grpo_tui.experiments.values import GroupView, RunSummary

NO_PROMPTS = (
    "These runs have no recorded answers to the same prompt. Pinned prompts are recorded at the "
    "same steps in every run (record.pinned)."
)
ALONE = "A ranking takes two runs. + adds runs, G compares the run's sweep or the newest."
NO_RANKING = (
    "Settings are ranked by their answers to the same held-out problems (evaluation.every), which "
    "not all of these runs have. `grpo-tui sweep CONFIG --set a=1,2 --seeds 3` makes runs that can "
    "be ranked."
)
WIDEST = 34  # of a column
SEEDS_WIDTH = 27  # of a column with the interval of a mean over seeds
DIFFERENCE = 10  # cells of the difference to the baseline beside a value
COMPLETION_LINES = 8
MEAN_WIDTH = 16  # of a group's step and mean, beside a run's name
NAME_WIDTH = 12  # of a run in the legend, at least
STATE_WIDTH = 2  # of the sign of a run that is live or failed
ROUNDING = 1e-9  # differences that rounding explains


# -- sentences ----------------------------------------------------------------------------------


def verdict(view: CompareView) -> str:
    """Which setting is better and with what confidence, or why that cannot be said."""
    if view.reading:
        return "Reading the runs …"
    run = view.chosen
    if run is None:
        return ""
    if len(view.runs) == 1:
        return (
            f"Only {view.name(run)} is compared. + adds runs, G compares its sweep or the newest."
        )
    return verdict_of(view.comparison, run.id, view.axis, "The key a")


def position_text(axis: str, x: float) -> str:
    """Describe the crosshair's position."""
    if axis == "step":
        return f"step {x:.0f}"
    return f"{short(x)} tokens" if axis == "tokens" else seconds(x)


def delta_text(key: str, delta: float | None) -> str:
    """Format a difference to the baseline: `+.13`; percentage points if the metric is a share.

    It has no mark: only the verdict says what is better, since a single value may be chance.
    """
    if delta is None:
        return ""
    if abs(delta) < ROUNDING:
        return "="
    return f"{points(delta)} pt" if spec(key).unit == "share" else signed(delta)


# -- the legend ---------------------------------------------------------------------------------

Cell = tuple[str, str]  # a text and its colour
T = TypeVar("T")


def legend_lines(view: CompareView, width: int) -> list[Line]:
    """One row per run: its standing in the verdict, and the chosen metric's values."""
    space, columns = width - 6 - NAME_WIDTH, []
    for column in legend_columns(view):
        size = 1 + max(cell_len(text) for text, _ in column)
        if size <= space:
            columns.append([(pad(text, size, ">"), colour) for text, colour in column])
            space -= size
    name = space + NAME_WIDTH
    names = clip_distinct([view.name(run) for run in view.runs], name - STATE_WIDTH)
    heads = "".join(column[0][0] for column in columns)
    available = name + 1 + len(heads)  # the metric's name goes on above a column's free cells
    title = clip(spec(view.metric).label, available - len(heads.lstrip()) - 1)
    lines = [[(" " * 4 + title + heads.lstrip().rjust(available - cell_len(title)), "label")]]
    for run, text, *row in zip(view.runs, names, *(column[1:] for column in columns), strict=True):
        lines.append([*legend_name(view, run, text, name), *row])
    return [
        list_row(line, width, selected=index > 0 and view.runs[index - 1] is view.chosen)
        for index, line in enumerate(lines)
    ]


def requested_lines(view: CompareView, width: int) -> list[Line]:
    """The marks and names of runs whose comparison is being read."""
    names = clip_distinct([run_name(run, view.requested) for run in view.requested], width - 3)
    rows: list[Line] = [
        [(" ", ""), view.marker(run.id).span, (f" {name}", "text")]
        for run, name in zip(view.requested, names, strict=True)
    ]
    return [[("reading", "label")], *rows]


def legend_columns(view: CompareView) -> Iterator[list[Cell]]:
    """The columns that say something, the most important first: title and a cell for each run."""
    key, runs, base = view.metric, view.runs, view.base
    measure = measure_of(view.comparison)
    if measure:
        yield [("verdict", "label"), *(verdict_cell(view, run) for run in runs)]
    if key == measure and view.at is None and not view.comparison.equal_work:
        yield [("evaluated", "label"), *(evaluated_cell(view, run) for run in runs)]
    else:
        yield [
            (position_text(view.axis, view.x), "label"),
            *(crosshair_cell(view, key, (run.id,)) for run in runs),
        ]
    if base and len(runs) > 1 and key != measure:  # the verdict tells that one
        deltas = [delta_text(key, view.delta(key, (run.id,), (base.id,))) for run in runs]
        yield [("Δ", "label"), *((text or "–", "text") for text in deltas)]
    if spec(key).best:
        yield [("best", "label"), *(best_cell(view.cell(key, run.id), key) for run in runs)]


def best_cell(cell: MetricCell | None, key: str) -> Cell:
    """A run's best value of a metric, and its step."""
    if cell is None or cell.best is None:
        return "–", "label"
    return f"{with_unit(cell.best, spec(key).unit)} @{cell.best_step}", "text"


def last_text(cell: MetricCell, key: str) -> str:
    """A run's last value of a metric, and its step."""
    if cell.last is None:
        return "not recorded"
    return f"{with_unit(cell.last, spec(key).unit)} at step {cell.last_step}"


def legend_name(view: CompareView, run: RunSummary, name: str, width: int) -> Line:
    """The cursor, mark, name and state of a run; the baseline, unless the verdict says so."""
    current = run is view.chosen
    colour = "headline" if current else "text"
    glyph, state_colour = status_mark(run.status)
    state = f" {glyph}" if run.active or run.status in ("failed", "lost") else ""
    base = run is view.base and len(view.runs) > 1 and not ranked(view.comparison, run.id)
    word = " baseline" * base
    return [
        ("▸" if current else " ", "focus"),
        view.marker(run.id).span,
        (" " + pad(name, width + 2 - cell_len(state + word)), colour),
        (state, state_colour),
        (word, "label"),
    ]


def verdict_cell(view: CompareView, run: RunSummary) -> Cell:
    """How the run's setting did in the verdict, in the colour of a difference that is sure."""
    row = ranked(view.comparison, run.id)
    if row is None:
        return "–", "label"
    if run.id != row.own.runs[0]:  # of a setting whose value is in the row of another seed
        mark = view.marker(row.own.runs[0]).mark
        return f"same setting as {mark}" if not view.bands else "same setting", "label"
    if row.test is None:
        return "baseline", "label"
    return standing(row.test), result_colour(row.test)


def evaluated_cell(view: CompareView, run: RunSummary) -> Cell:
    """The run's share of right answers that the verdict is from, and its step."""
    row = ranked(view.comparison, run.id)
    if row is None:
        return "–", "label"
    index = row.own.runs.index(run.id)
    return f"{with_unit(row.own.shares[index], 'share')} @{row.own.steps[index]}", "text"


def crosshair_cell(view: CompareView, key: str, runs: Sequence[str]) -> Cell:
    """A metric at the crosshair, or its mean over runs; with the step of an earlier value."""
    value, step = view.value_at_x(key, runs)
    if value is None:
        return "–", "label"
    ends = (end_of(run, view.axis) for run in view.runs if run.id in runs)
    colour = "text" if any(end >= view.x for end in ends) else "label"
    return with_unit(value, spec(key).unit) + earlier(view, step), colour


def earlier(view: CompareView, step: int) -> str:
    """The step of a value from before the crosshair; on other axes only that before training."""
    return f" @{step}" if step < (int(view.x) if view.axis == "step" else 1) else ""


# -- tables with a column for each run or setting -----------------------------------------------


def column_window(count: int, current: int, width: int, minimum: int) -> tuple[range, int]:
    """The columns that fit, with the current one among them, and their width."""
    visible = max(1, min(count, width // minimum))
    first = max(0, min(current - visible // 2, count - visible))
    return range(first, first + visible), width // visible


def window_text(window: range, count: int) -> str:
    """Which columns are visible; empty if all are."""
    first = f"{window[0] + 1}–" * (len(window) > 1)
    return f"{first}{window[-1] + 1} of {count}" if len(window) < count else ""


def column_heads(
    view: CompareView, left: int, width: int, minimum: int, tail: int = 0
) -> tuple[Line, range, int]:
    """The marks over the columns that fit beside `left` cells, which columns, and their width.

    Marks are `tail` cells from the right, which are for the difference to the baseline; its
    column has none, and the cells go to the left. Names as well if all of them fit; the legend has
    every mark and name.
    """
    columns = view.columns
    current, base = columns.index(view.column), columns.index(view.base_column)
    window, size = column_window(len(columns), current, width - left - 1, minimum)
    size = min(size, WIDEST)
    names = [f" {view.column_name(runs)}" for runs in columns]
    with_names = max(map(cell_len, names)) <= size - 4
    line = [(pad(window_text(window, len(columns)), left + tail * (base in window)), "label")]
    for index in window:
        text = names[index] * with_names
        if len(columns) > 1 and index == base and cell_len(text + " baseline") + tail + 2 <= size:
            text += " baseline"
        style = "bold headline" if index == current else "label"
        gap = max(0, size - tail - 2 - cell_len(text))
        after = size - gap - 1 - tail * (index == base)
        line += [(" " * gap, ""), view.marker(columns[index][0]).span, (pad(text, after), style)]
    return line, window, size


def settings_lines(view: CompareView, width: int, height: int) -> list[Line]:
    """One row per setting; differences from the baseline are highlighted."""
    settings, columns = view.settings(), view.columns
    if not settings:
        return [[("no setting matches" if view.filter else "all settings are the same", "label")]]
    texts = {
        path: [", ".join(dict.fromkeys(safe(value_text(value)) for value in of)) for of in values]
        for path, values in settings.items()
    }
    path_width = min(max(map(len, texts)), max(16, width * 2 // 5))
    longest = max(cell_len(text) for row in texts.values() for text in row)
    minimum = max(5, min(10, longest + 2))
    head, window, size = column_heads(view, path_width, width, minimum)
    base = columns.index(view.base_column)
    rows = []
    for path, values in texts.items():
        colour = "text" if len({*values}) > 1 else "label"
        row = [(clip_start(path, path_width).ljust(path_width), colour)]
        labels = clip_distinct(values, size - 1, by_words=False)
        for at in window:
            style = colour if values[at] == values[base] else "bold headline"
            row.append((pad(labels[at], size - 1, ">") + " ", style))
        rows.append(row)
    marks = {"+": "good", "-": "bad"}
    rows += [[(clip(line, width), marks.get(line[:1], "text"))] for line in view.comparison.sources]
    return [head, *scrolled(rows, view.row, height - 1)]


def scrolled(rows: Sequence[T], top: int, height: int) -> Sequence[T]:
    """The rows from `top` on, or the last ones."""
    top = max(0, min(top, len(rows) - height))
    return rows[top : top + height]


def metrics_lines(view: CompareView, width: int, height: int) -> list[Line]:
    """One row per metric: value and step, or mean and interval over seeds, and the difference."""
    metrics = view.rows
    if not metrics:
        return [[("no metric matches", "label")]]
    full, labels = (
        max(cell_len(name(row.key)) for row in metrics) + 3
        for name in (full_name, lambda key: spec(key).label)
    )
    space = width - 1 - SEEDS_WIDTH * len(view.columns)
    name_width = min(full, max(18, width // 4, min(labels, space)))
    head, window, size = column_heads(view, name_width, width, 20, tail=DIFFERENCE)
    if view.columns.index(view.base_column) in window:
        name_width += DIFFERENCE
    selected = metrics[min(view.row, len(metrics) - 1)]
    lines = [head]
    visible = scrolled(metrics, view.row - (height - 1) // 2, height - 1)
    names = metric_names([metric.key for metric in visible], name_width - 2)
    for metric, title in zip(visible, names, strict=True):
        line = [
            (" " + pad(title, name_width - 2), "text"),
            (pad(ARROWS[metric.direction], 1), "label"),
        ]
        for column in window:
            line += metric_cell(view, metric.key, view.columns[column], size)
        lines.append(list_row(line, width, selected=metric is selected))
    return lines


def metric_names(keys: Sequence[str], width: int) -> list[str]:
    """The full names where they fit, else labels; those that would be cut alike are cut apart."""
    names = [full_name(key) for key in keys]
    names = [
        name if cell_len(name) < width else spec(key).label
        for key, name in zip(keys, names, strict=True)
    ]
    alike: dict[str, list[str]] = defaultdict(list)
    for name in names:
        alike[clip(name, width)].append(name)
    cut = {
        name: label
        for group in alike.values()
        for name, label in zip(group, clip_distinct(group, width), strict=True)
    }
    return [cut[name] if len(alike[clip(name, width)]) > 1 else name for name in names]


def full_name(key: str) -> str:
    """A metric's label and its key."""
    return key if spec(key).label == key else f"{spec(key).label} · {key}"


def metric_cell(view: CompareView, key: str, runs: Sequence[str], size: int) -> Line:
    """A value, or a mean with its interval if that fits, then the difference."""
    values, steps = view.values(key, runs)
    unit, width = spec(key).unit, max(1, size - DIFFERENCE - 1)
    is_base = runs == view.base_column
    if not values:
        return [(pad("–", size - DIFFERENCE * is_base), "label")]
    text = with_unit(fmean(values), unit)
    if counts := view.values(count_of(key), runs)[0]:
        text += f" n={sum(counts):.0f}"
    if errors := view.values(stderr_of(key), runs)[0]:
        text = with_stderr(fmean(values), errors)
    step = earlier(view, max(steps))
    text += step if cell_len(text + step) < width else ""
    if len(set(values)) > 1 and len(values) > 2:  # of two seeds it says next to nothing
        low, high = mean_interval(values, limits=natural_range(key))
        full = f"{text} [{with_unit(low, unit)}, {with_unit(high, unit)}]"
        text = full if cell_len(full) < width else text
    line = [(pad(text, width, ">") + " ", "text")]
    if not is_base:
        delta = delta_text(key, view.delta(key, runs, view.base_column))
        line.append((pad(delta, DIFFERENCE - 1) + " ", "label"))
    return line


# -- ranking ------------------------------------------------------------------------------------


def ranking_lines(view: CompareView, width: int, height: int) -> list[Line]:
    """Settings from best to worst with their difference to the baseline's, for each evaluation.

    The kind of answers that the selected metric is of comes first.
    """
    comparison = view.comparison
    if not comparison.rankings:
        notes = comparison.notes or ((ALONE if len(view.runs) == 1 else NO_RANKING),)
        return [line for note in notes for line in paragraph(note, width, height, "label")]
    lines: list[Line] = []
    for ranking in rankings_of(comparison):
        lines += [[]] if lines else []
        if ranking.effects:
            lines += [*_effect_lines(ranking, width), []]
        title, rows = ranking_title(ranking), ranking_rows(ranking, comparison)
        head, *texts = ranking_table(rows, width - 2)
        lines += [[(_title(title, width), "headline")], [("  " + head, "label")]]
        for item, text in zip(ranking.settings, texts, strict=True):
            selected = view.chosen is not None and view.chosen.id in item.own.runs
            style = "bold " * selected + result_colour(item.test)
            lines.append([view.marker(item.own.runs[0]).span, (" " + text, style)])
    return [*scrolled(lines, view.row, height)]


def _title(text: str, width: int) -> str:
    """A title without the last of its parts, where it would be too long."""
    while cell_len(text) > width and "; " in text:
        text = text.rpartition("; ")[0]
    return clip(text, width)


def _effect_lines(ranking: Ranking, width: int) -> list[Line]:
    """What each setting changes, averaged over the others."""
    head, *texts = ranking_table(effect_rows(ranking), width - 2, width // 2)
    colours = map(result_colour, ranking.effects)
    return [
        [(_title(effects_title(ranking), width), "headline")],
        [("  " + head, "label")],
        *([("  " + text, colour)] for text, colour in zip(texts, colours, strict=True)),
    ]


def ranking_table(rows: Sequence[dict[str, str]], width: int, names: int = 0) -> list[str]:
    """The table of a ranking, without the least important columns that do not fit.

    Settings have so many cells, by default a third.
    """
    labels = clip_distinct([row["setting"] for row in rows], names or max(16, width // 3))
    rows = [{**row, "setting": label} for row, label in zip(rows, labels, strict=True)]
    for count in range(len(rows[0]), 1, -1):
        lines = table_lines([dict(islice(row.items(), count)) for row in rows])
        if max(map(cell_len, lines)) <= width:
            return lines
    return table_lines(rows, limit=width)


def result_colour(test: Effect | None) -> str:
    """The colour of a difference: good or bad if it is sure."""
    if test is None or test.p_value >= ALPHA:
        return "text"
    return "good" if test.difference > 0 else "bad"


# -- answers ------------------------------------------------------------------------------------


def completions_lines(view: CompareView, width: int, height: int) -> list[Line]:
    """Each run's answers to the same prompt, one column per run, up to the crosshair."""
    if view.prompts is None:
        return [[("reading", "label")]]
    if not view.prompts:
        return paragraph(NO_PROMPTS, width, height, "label")
    prompt = view.prompts[min(view.prompt, len(view.prompts) - 1)]
    count = len(view.runs)
    window, size = column_window(count, view.run, width, 40)
    runs = window_text(window, count)
    position = f"prompt {view.prompt + 1} of {len(view.prompts)}, {prompt.origin}"
    position += f"  run{'s' * (len(window) > 1)} {runs}" if runs else ""
    target = f"   target {clip(prompt.target, 24)}" if prompt.target else ""
    question = clip(last_question(prompt.text), max(8, width - cell_len(position + target) - 4))
    lines = [[(position, "label"), (f"  {question}", "headline"), (target, "label")]]
    completions = view.completions
    if completions is None or completions.prompt.example_key != prompt.example_key:
        return [*lines, [("reading", "label")]]
    names = clip_distinct([view.name(run) for run in view.runs], max(4, size - 5 - MEAN_WIDTH))
    columns = []
    for run, name in [*zip(view.runs, names, strict=True)][window.start : window.stop]:
        group = completions.groups.get(run.id)
        columns.append(completion_column(view, run, name, group, size - 3))
    rows = side_by_side(columns, size - 3, (" │ ", "border"))
    return [*lines, rows[0], *scrolled(rows[1:], view.row, height - 2)]


def completion_column(
    view: CompareView, run: RunSummary, name: str, group: GroupView | None, width: int
) -> list[Line]:
    """A run's answers below its name."""
    marker = view.marker(run.id)
    colour = "bold headline" if run is view.chosen else "text"
    mean = f"  @{group.step} mean {short(group.reward_mean)}" if group else ""
    label = clip(mean, width - 2 - cell_len(name))
    lines = [[marker.span, (" ", ""), (name, colour), (label, "label")]]
    if group is None:
        return [*lines, [("not sampled up to here", "label")]]
    completions = (lane_lines(item, width, COMPLETION_LINES, group) for item in group.rollouts)
    return lines + [line for completion in completions for line in completion if line]


# -- charts -------------------------------------------------------------------------------------

Plotted = tuple[Sequence[Sequence[Cell]], Axis]


def curves_of(chart: ChartData, view: CompareView) -> list[Curve]:
    """The curves of a chart from back to front, with that of the chosen run in front.

    Of single runs only that one, and one that is alone, has the range of its values below it.
    """
    columns, curves = [runs for runs in view.columns if runs in chart.traces], []
    for runs in sorted(columns, key=lambda runs: runs == view.column):
        marker, trace = view.marker(runs[0]), chart.traces[runs]
        alone = runs == view.column or len(columns) == 1
        ranged = len(runs) > 1 or (alone and view.smoothing > 0 and not trace.sparse)
        curves.append(Curve(trace, marker.colour, marker.mark, ranged))
    return curves


def plot_of(
    key: str, chart: ChartData, view: CompareView, width: int, height: int, *, log: bool = False
) -> Plotted:
    """The cells of a chart without the crosshair, and its vertical axis."""
    guides = [
        (value, (f"default limit {with_unit(value, spec(key).unit)}",))
        for value in spec(key).guides
    ]
    ticks = ticks_of(view.charts.span, width, view.axis)
    return chart_cells(key, curves_of(chart, view), width, height, guides, ticks, log)


def chart_lines(
    key: str, view: CompareView, plotted: Plotted, width: int, *, log: bool = False
) -> list[Line]:
    """A chart with its title: name, better direction, and every run's value at the crosshair."""
    direction = "none" if key in view.comparison.incomparable else spec(key).direction
    name = f"{spec(key).label} {ARROWS[direction]}".rstrip()
    values = [readout(key, view, runs) for runs in view.columns]
    hints = log_hints(view.charts.charts[key].series.values()) if log else ()
    title = title_line(name, values, width, chosen=key == view.metric, hints=hints)
    span, cross = view.charts.span, -1
    if 0 <= view.x <= span:
        cross = cross_column(view.x, span, width - LABELS)
    return [title, *plot_lines(*plotted, cross)]


def listed_readouts(key: str, view: CompareView, width: int) -> list[Line]:
    """Every run's full name and value at the crosshair, in columns, if the title has no room."""
    parts = named([readout(key, view, runs) for runs in view.columns], WIDEST)
    if sum(cells(part) + 2 for part in parts) <= width // 2:
        return []
    size = max(map(cells, parts)) + 2
    count = max(1, (width - 2) // size)
    padded = [[*part, (" " * (size - cells(part)), "")] for part in parts]
    return [[("  ", ""), *chain(*padded[i : i + count])] for i in range(0, len(padded), count)]


def readout(key: str, view: CompareView, runs: Sequence[str]) -> Readout:
    """The mark, name and value at the crosshair of a run, or of several seeds."""
    marker, (text, colour) = view.marker(runs[0]), crosshair_cell(view, key, runs)
    bold = "bold " * (runs == view.column)
    colour = bold + (marker.colour if colour == "text" else colour)
    mark = (f"{marker.mark} ", f"bold {marker.colour}")
    return Readout(text, colour, mark, view.column_name(runs))
