"""The Compare screen as text: its sentences, tables and answers as lines, and its exports.

The exports have the format of `grpo-tui compare`; the curves are a CSV of the charts' stored
values, one row per run and step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_engine.events import CUT
from grpo_engine.metrics import spec
from grpo_tui.app.charts.series import EVALUATIONS
from grpo_tui.app.inspector.groups import letter
from grpo_tui.app.text.comparison import (
    ALPHA,
    points,
    ranked,
    ranking_of,
    ranking_rows,
    ranking_title,
    standing,
    value_text,
)
from grpo_tui.app.text.comparison import verdict as verdict_of
from grpo_tui.app.text.numbers import seconds, short, signed, tokens, with_unit
from grpo_tui.app.text.prompt_text import asked
from grpo_tui.app.text.safe_text import cell_len, clip, clip_start, pad, safe, wrap
from grpo_tui.app.tui.looks.colours import push_colour
from grpo_tui.app.tui.screens.compare.state import Value, View, measure_of
from grpo_tui.app.tui.widgets.panel import Line, cells, list_row
from grpo_tui.app.tui.widgets.top_bar import status_mark
from grpo_tui.experiments.compare.values import PairedTest
from grpo_tui.experiments.values import GroupView, RolloutView, RunSummary

NO_PROMPTS = (
    "These runs have no recorded answers to the same prompt. Pinned prompts are recorded at the "
    "same steps in every run (record.pinned)."
)
NO_RANKING = (
    "Settings are ranked by their answers to the same held-out problems (evaluation.every); these "
    "runs have none. `grpo-tui sweep CONFIG --set a=1,2 --seeds 3` makes runs that can be ranked."
)
WORK = ("tokens", "time", "step")
# of the ranking, the most important first
COLUMNS = ("mean", "points", "95%", "right", "best?", "more seeds", "or problems", "p",
           "reached", "Δ", *WORK)  # fmt: skip
ANSWER_LINES = 8
NAME_WIDTH = 12  # of a run in the legend, at least
MIN_NAME = 10  # of a name that is cut
ROUNDING = 1e-9  # differences that rounding explains


# -- sentences ----------------------------------------------------------------------------------


def verdict(view: View) -> str:
    """Which setting is better and with what confidence, or why that cannot be said."""
    if view.reading:
        return "Reading the runs …"
    comparison, run = view.comparison, view.chosen
    if comparison is None or run is None:
        return ""
    if len(comparison.runs) == 1:
        newest = ", G the newest sweep" if view.swept else ""
        sweep = newest if run.sweep_id is None else ", G its whole sweep"
        return f"Only {view.name(run)} is compared. + adds runs to compare it with{sweep}."
    text = verdict_of(comparison, run.id, view.metric)
    if text:
        return text
    notes = (note for note in comparison.notes if run.name in note)
    reason = next(notes, "they have no held-out answers to the same problems (evaluation.every)")
    return f"Which is better cannot be tested: {reason}. {leader(view)}".strip()


def leader(view: View) -> str:
    """The run with the best value of the chosen metric, if best values of it say something."""
    key = view.metric
    if not key or not spec(key).best:
        return ""
    cells = ((view.cell(key, run.id), run) for run in view.runs)
    best = [(cell.best, run) for cell, run in cells
            if cell and cell.best is not None and math.isfinite(cell.best)]  # fmt: skip
    if len(best) < 2:
        return ""
    best.sort(key=lambda pair: pair[0], reverse=spec(key).direction == "up")
    (top, run), (other, second) = best[:2]
    if top == other:
        return f"Best {spec(key).label} is {short(top)} for both." if len(best) == 2 else ""
    return (
        f"Best {spec(key).label}: {view.name(run)} {short(top)}, "
        f"then {view.name(second)} {short(other)}."
    )


def differences(view: View, limit: int = 4) -> str:
    """The changed settings in one line."""
    comparison = view.comparison
    if view.reading or comparison is None or len(comparison.runs) < 2:
        return ""
    if not comparison.differing:
        return "All settings are the same: what differs is chance or the code."
    parts = []
    for item in comparison.differing[:limit]:
        values = list(dict.fromkeys(value_text(value) for value in item.values))
        parts.append(f"{item.path} ({', '.join(values[:4])}{' …' * (len(values) > 4)})")
    more = len(comparison.differing) - limit
    return f"Changed settings: {', '.join(parts)}{f' and {more} more' if more > 0 else ''}."


def position_text(axis: str, x: float) -> str:
    """Describe the crosshair's position."""
    if axis == "step":
        return f"step {x:.0f}"
    return f"{short(x)} tokens" if axis == "tokens" else seconds(x)


def raw_label(key: str) -> str:
    """The label of a metric whose curves may be smoothed, above numbers that never are."""
    return key and ("" if key.startswith(EVALUATIONS) else "raw ") + spec(key).label


def delta_text(key: str, delta: float | None) -> str:
    """Format a difference to the baseline: `+.13`; percentage points if the metric is a share.

    It has no mark: only the verdict says what is better, since a single value may be chance.
    """
    if delta is None:
        return ""
    if abs(delta) < ROUNDING:
        return "="
    is_share = spec(key).unit == "share" and math.isfinite(delta)
    return f"{points(delta)} pt" if is_share else signed(delta)


def progress_text(run: RunSummary) -> str:
    """A run's progress: steps, tokens, time."""
    return f"step {run.step} · {tokens(run.tokens)} tokens · {seconds(run.elapsed)}"


# -- the legend ---------------------------------------------------------------------------------

Cell = tuple[str, str]  # a text and its colour


def legend_lines(view: View, width: int, now: float) -> list[Line]:
    """One row per run: its standing in the verdict, and the chosen metric's values."""
    label = raw_label(view.metric)
    described = legend_columns(view)
    needed = [
        max(cell_len(title), *(cell_len(text) for text, _ in column)) + 1
        for title, _, column in described
    ]
    steady = [max(size, minimum) for size, (_, minimum, _) in zip(needed, described, strict=True)]
    longest = max(cell_len(label), *(cell_len(view.name(run)) for run in view.runs))
    sizes = steady if width - 5 - sum(steady) >= longest else needed
    space = width - 5 - NAME_WIDTH
    columns = []
    for size, (title, _, column) in zip(sizes, described, strict=True):
        if size <= space:
            columns.append((size, [(title, "label"), *column]))
            space -= size
    name = space + NAME_WIDTH
    titles = "".join(pad(column[0][0], size - 1, ">") + " " for size, column in columns)
    free = cell_len(titles) - cell_len(titles.lstrip())  # before the first title
    head = [
        (" " * 5 + pad(label, name + max(0, free - 1)), "label"),
        (titles[max(0, free - 1) :], "label"),
    ]
    lines = []
    for index, run in enumerate(view.runs, 1):
        line = legend_name(view, run, name, now)
        line += [(pad(column[index][0], size - 1, ">") + " ", column[index][1])
                 for size, column in columns]  # fmt: skip
        lines.append(list_row(line, width, selected=run is view.chosen))
    return [head, *lines]


def legend_columns(view: View) -> list[tuple[str, int, list[Cell]]]:
    """The columns that say something: title, width and a cell for each run."""
    key, runs, base = view.metric, view.runs, view.base
    unit, best = (spec(key).unit, spec(key).best) if key else ("", False)
    cells = [view.cell(key, run.id) for run in runs]
    measure = measure_of(view.comparison, key)

    def texts(texts: Sequence[str]) -> list[Cell]:
        return [
            (text, "text") if cell and cell.last is not None else ("–", "label")
            for cell, text in zip(cells, texts, strict=True)
        ]

    columns = []
    if measure:
        columns.append(("verdict", 13, [verdict_cell(view, run) for run in runs]))
    position = position_text(view.axis, view.x).removesuffix("ens")
    columns.append((position, 10, [crosshair_cell(view, run) for run in runs]))
    if base and len(runs) > 1 and key != measure:  # the verdict tells that one
        deltas = ["baseline" if run is base else
                  delta_text(key, view.delta(key, (run.id,), (base.id,))) or "–"
                  for run in runs]  # fmt: skip
        columns.append((f"Δ {view.stat_of(key)}", 11, texts(deltas)))
    if best:
        columns.append(("best", 12, texts([
            f"{with_unit(cell.best, unit)} @{cell.best_step}" if cell else "" for cell in cells
        ])))  # fmt: skip
    columns.append(("last", 9, texts([with_unit(c.last, unit) if c else "" for c in cells])))
    return columns


def legend_name(view: View, run: RunSummary, width: int, now: float) -> Line:
    """The cursor, mark, name and state of a run; ◆ the baseline."""
    current, hidden, marker = run is view.chosen, run.id in view.hidden, view.marker(run.id)
    colour = "label" if hidden else "headline" if current else "text"
    glyph, state_colour = status_mark(run.status, now)
    state = f" {glyph}" if run.active or run.status in ("failed", "lost") else ""
    mark = ("·", "bold label") if hidden else marker.span
    return [
        ("▸" if current else " ", "focus"), mark,
        (" " + pad(view.name(run), width - cell_len(state)), colour), (state, state_colour),
        (" ◆" if run is view.base and len(view.runs) > 1 else "  ", "label"),
    ]  # fmt: skip


def verdict_cell(view: View, run: RunSummary) -> Cell:
    """How the run's setting did in the verdict, in the colour of a difference that is sure."""
    row = ranked(view.comparison, run.id, view.metric) if view.comparison else None
    if row is None:
        return "–", "label"
    if run.id != row.own.runs[0]:  # of a setting whose value is in the row of another seed
        mark = view.marker(row.own.runs[0]).mark if row.test else "◆"
        return f"same setting as {mark}", "label"
    if row.test is None:
        return "baseline", "label"
    text = standing(row.test)
    return text, {"▲": "good", "▼": "bad"}.get(text[0], "text")


def crosshair_cell(view: View, run: RunSummary) -> Cell:
    """The chosen metric at the crosshair; the last value before, with its step, if it has none."""
    value, step = view.value_at_x(view.metric, run.id)
    if step is None:
        return "none" if view.has_curve(run) else "", "label"
    text = with_unit(value, spec(view.metric).unit)
    missed = view.metric.startswith(EVALUATIONS) and view.axis == "step" and step < view.x
    if missed or view.end(run) < view.x:
        return f"{text} @{step}", "label"
    return text, "text"


def run_notes(view: View) -> list[str]:
    """Describe missing and non-finite values of the chosen chart."""
    if view.charts is None or not view.metric:
        return []
    notes, ended = [], []
    for run in view.runs:
        curve, name = view.curve(view.metric, run.id), view.name(run)
        if not view.has_curve(run):
            continue
        if curve is None:
            notes.append(f"{name} never recorded {view.metric}")
            continue
        series = curve.series
        if gaps := len(series.values) - series.count:
            notes.append(f"{name}: {gaps} of its values are NaN or infinite: gaps")
        if view.log and any(value <= 0 for value in series.values):
            notes.append(f"{name}: values at or below 0 cannot be shown on a log scale")
        if view.end(run) < view.x:
            ended.append(name)
    if ended:
        notes.append(f"{', '.join(ended)} ended before: the last value, with its step")
    return notes


# -- tables with a column for each run or setting -----------------------------------------------


def column_window(count: int, current: int, width: int, minimum: int) -> tuple[range, int]:
    """The columns that fit, with the current one among them, and their width."""
    visible = max(1, min(count, width // minimum))
    first = max(0, min(current - visible // 2, count - visible))
    return range(first, first + visible), width // visible


def window_text(window: range, count: int) -> str:
    """Which columns are visible; empty if all are."""
    return f"{window[0] + 1}–{window[-1] + 1} of {count}" if len(window) < count else ""


def column_heads(view: View, window: range, size: int, tail: int = 0) -> Line:
    """The marks over their columns, `tail` cells from the right; ◆ the baseline.

    Names as well if they can be told apart, over the tail too; the legend has every mark and name.
    """
    columns = view.columns
    names = [view.column_name(runs) for runs in columns]
    clipped = clip_start if len({name[:4] for name in names}) == 1 < len(names) else clip
    base = [" ◆" if view.base and view.base.id in runs else "" for runs in columns]
    texts = [clipped(name, max(1, size - 3 - len(mark)))
             for name, mark in zip(names, base, strict=True)]  # fmt: skip
    if texts != names and (size - 5 < MIN_NAME or view.bands):
        texts = [""] * len(names)
    line = []
    for index in window:
        runs = columns[index]
        marker, current = view.marker(runs[0]), index == view.column
        text = f" {texts[index]}".rstrip() + (base[index] if len(columns) > 1 else "")
        gap = max(0, size - tail - 2 - cell_len(text))
        line += [
            (" " * gap, ""), marker.span,
            (pad(text, size - gap - 1),
             "bold headline" if current else "label"),
        ]  # fmt: skip
    return line


def settings_lines(view: View, width: int, height: int) -> list[Line]:
    """One row per setting; differences from the baseline are highlighted."""
    settings = view.settings()
    if not settings:
        return [[("no setting matches" if view.filter else "all settings are the same", "label")]]
    ids, columns = [run.id for run in view.runs], view.columns
    texts = [
        [", ".join(dict.fromkeys(safe(value_text(values[ids.index(run)])) for run in runs))
         for runs in columns]
        for _, values, _ in settings
    ]  # fmt: skip
    path_width = min(max(len(path) for path, _, _ in settings), max(16, width * 2 // 5))
    longest = max(cell_len(text) for row in texts for text in row)
    window, size = column_window(
        len(columns), view.column, width - path_width - 1, max(5, min(10, longest + 2))
    )
    size = min(size, 30)
    base = columns.index(view.base_column) if view.base_column else 0
    rows = []
    for (path, _, differs), values in zip(settings, texts, strict=True):
        colour = "text" if differs else "label"
        row = [(clip_start(path, path_width).ljust(path_width), colour)]
        for index in window:
            changed = differs and values[index] != values[base]
            row.append(
                (pad(values[index], size - 1, ">") + " ", "bold headline" if changed else colour)
            )
        rows.append(row)
    marks = {"+": "good", "-": "bad"}
    for line in view.sources:
        rows.append([(clip(safe(line), width), marks.get(line[:1], "text"))])
    head = (pad(window_text(window, len(columns)), path_width), "label")
    top = max(0, min(view.row, len(rows) - (height - 1)))
    return [[head, *column_heads(view, window, size)], *rows[top : top + height - 1]]


def metrics_lines(view: View, width: int, height: int) -> list[Line]:
    """One row per metric: value and step, or mean and interval over seeds, and the difference."""
    metrics = view.rows
    if not metrics:
        return [[("no metric matches", "label")]]
    columns = view.columns
    name_width = min(max(cell_len(full_name(row.key)) for row in metrics) + 3, max(18, width // 4))
    step_width = 3 + len(str(max(run.step for run in view.runs)))
    window, size = column_window(len(columns), view.column, width - name_width - 1, 17 + step_width)
    size = min(size, 34)
    current = min(view.row, len(metrics) - 1)
    top = max(0, min(current - (height - 1) // 2, len(metrics) - (height - 1)))
    head = (pad(window_text(window, len(columns)), name_width), "label")
    lines = [[head, *column_heads(view, window, size, tail=10)]]
    for index, metric in enumerate(metrics[top : top + height - 1], top):
        title = pad(metric_title(metric.key, name_width - 3), name_width - 2)
        arrow = {"up": "↑", "down": "↓", "none": " "}[metric.direction]
        line = [
            ("▸" if metric.key in view.metrics else " ", "accent"),
            (title, "text"),
            (arrow, "label"),
        ]
        for column in window:
            line += metric_cell(view, metric.key, columns[column], size, step_width)
        lines.append(list_row(line, width, selected=index == current))
    return lines


def full_name(key: str) -> str:
    """A metric's label and its key."""
    return key if spec(key).label == key else f"{spec(key).label} · {key}"


def metric_title(key: str, width: int) -> str:
    """A metric's label, and its key where that fits uncut."""
    return full_name(key) if cell_len(full_name(key)) <= width else clip(spec(key).label, width)


def metric_cell(view: View, key: str, runs: Sequence[str], size: int, step_width: int) -> Line:
    """A value with its step, or a mean with its interval if that fits, then the difference."""
    value = view.value(key, runs)
    if value is None:
        return [(pad("–", size), "label")]
    width, unit, step = max(1, size - 11), spec(key).unit, ""
    delta = pad(delta_text(key, view.delta(key, runs, view.base_column)), 10) + " "
    if value.step is None:
        text, width = mean_text(value, unit, width - 1), width - 1
    else:
        text, width = with_unit(value.mean, unit), max(1, width - step_width)
        step = f" @{value.step}"
    return [(pad(text, width, ">"), "text"),
            (pad(step, step_width if step else 1) + delta, "label")]  # fmt: skip


def mean_text(value: Value, unit: str, width: int) -> str:
    """The mean, and its interval if that fits."""
    text = with_unit(value.mean, unit)
    if value.low is None or value.high is None:
        return text
    full = f"{text} [{with_unit(value.low, unit)}, {with_unit(value.high, unit)}]"
    return full if cell_len(full) <= width else text


# -- ranking ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of a ranking: the runs of a setting, the colour of its result, and its cells."""

    runs: tuple[str, ...]
    colour: str
    cells: dict[str, str]


Table = tuple[str, list[Setting]]  # a title and rows


def ranking_lines(view: View, width: int, height: int) -> list[Line]:
    """Settings from best to worst with their difference to the baseline's, for each evaluation.

    The selected metric's means over seeds follow, unless it is what the ranking is by.
    """
    comparison = view.comparison
    tables = [*ranking_tables(view), *seed_tables(view)]
    lines = []
    if comparison is None or not comparison.rankings:
        notes = (comparison.notes if comparison else ()) or (NO_RANKING,)
        lines += [[(part, "label")] for note in notes for part in wrap(note, width, height)]
    sizes: dict[str, int] = {}  # the same for all, so that columns are below each other
    for name, text in (cell for _, rows in tables for row in rows for cell in row.cells.items()):
        sizes[name] = max(sizes.get(name, 0), cell_len(name) + 2, cell_len(text) + 2)
    for title, rows in tables:
        while cell_len(title) > width and "; " in title:
            title = title.rpartition("; ")[0]
        columns = visible_columns({name: sizes[name] for name in rows[0].cells}, width)
        lines += [[]] if lines else []
        lines.append([(clip(title, width), "headline")])
        lines.append([("  ", ""), *((pad(name, size), "label") for name, size in columns.items())])
        lines += [setting_line(view, row, columns) for row in rows]
    top = max(0, min(view.row, len(lines) - height))
    return lines[top : top + height]


def setting_line(view: View, row: Setting, columns: dict[str, int]) -> Line:
    """A row of a ranking, with the mark of its first run."""
    marker = view.marker(row.runs[0])
    selected = view.chosen is not None and view.chosen.id in row.runs
    colour = "headline" if selected else "text"
    line = [marker.span, (" ", "")]
    for name, size in columns.items():
        of_result = name in ("points", "95%", "p")
        line.append((pad(row.cells[name], size), row.colour if of_result else colour))
    return line


def ranking_tables(view: View) -> list[Table]:
    """The rankings by held-out answers, first that by the selected metric's kind of answers."""
    comparison = view.comparison
    if comparison is None:
        return []
    first = ranking_of(comparison, view.metric)
    return [
        (ranking_title(ranking), [
            Setting(row.own.runs, result_colour(row.test), cells)
            for row, cells in zip(ranking.settings, ranking_rows(ranking, comparison), strict=True)
        ])
        for ranking in sorted(comparison.rankings, key=lambda ranking: ranking is not first)
    ]  # fmt: skip


def result_colour(test: PairedTest | None) -> str:
    """The colour of a difference: good or bad if it is sure."""
    if test is None or test.p_value >= ALPHA:
        return "text"
    return "good" if test.difference > 0 else "bad"


def seed_tables(view: View) -> list[Table]:
    """The selected metric's mean and interval over the seeds of each setting, the best first."""
    key = view.metric
    if not key or key == measure_of(view.comparison, key) or not view.bands:
        return []
    unit = spec(key).unit
    values = [(runs, value) for runs in view.columns if (value := view.value(key, runs))]
    values.sort(key=lambda pair: pair[1].mean, reverse=spec(key).direction == "up")
    rows = []
    for runs, value in values:
        ends = [with_unit(end, unit) for end in (value.low, value.high) if end is not None]
        delta = delta_text(key, view.delta(key, runs, view.base_column)) or "baseline"
        rows.append(Setting(runs, "text", {
            "setting": view.name_of(runs), "mean": with_unit(value.mean, unit),
            "95%": " to ".join(ends), "Δ": delta,
        }))  # fmt: skip
    title = f"{raw_label(key)}, {view.stat_of(key)} of each run: mean and 95% interval over seeds"
    return [(title, rows)] if rows else []


def visible_columns(sizes: dict[str, int], width: int) -> dict[str, int]:
    """The columns that fit, the most important ones; the setting's name takes what is left.

    What was done until the threshold was reached says nothing without how many reached it.
    """
    name = min(sizes["setting"], max(16, width // 3))
    space, columns = width - 2 - name, {"setting"}
    for column in (column for column in COLUMNS if column in sizes):
        if sizes[column] <= space and (column not in WORK or "reached" in columns):
            columns.add(column)
            space -= sizes[column]
    return {**{name: size for name, size in sizes.items() if name in columns}, "setting": name}


# -- answers ------------------------------------------------------------------------------------


def answers_lines(view: View, width: int, height: int) -> list[Line]:
    """Each run's answers to the same prompt, one column per run, up to the crosshair."""
    if view.prompts is None:
        return [[("reading", "label")]]
    if not view.prompts:
        return [[(part, "label")] for part in wrap(NO_PROMPTS, width, height)]
    prompt = view.prompts[min(view.prompt, len(view.prompts) - 1)]
    count = len(view.runs)
    window, size = column_window(count, view.run, width, 26)
    runs = window_text(window, count)
    position = f"prompt {view.prompt + 1} of {len(view.prompts)}, {prompt.origin}"
    position += f"  runs {runs}" if runs else ""
    target = f"   target {clip(prompt.target, 24)}" if prompt.target else ""
    question = clip(asked(prompt.text), max(8, width - cell_len(position) - cell_len(target) - 4))
    lines = [[(position, "label"), (f"  {question}", "headline"),
                          (target, "label")]]  # fmt: skip
    answers = view.answers
    if answers is None or answers.prompt.example_key != prompt.example_key:
        return [*lines, [("reading", "label")]]
    columns = [answer_column(view, run, answers.groups.get(run.id), size - 3)
               for run in view.runs[window.start : window.stop]]  # fmt: skip
    longest, visible = max(map(len, columns)), height - 2
    top = 1 + max(0, min(view.row, longest - 1 - visible))
    for y in (0, *range(top, min(longest, top + visible))):
        lines.append(side_by_side([c[y] if y < len(c) else [] for c in columns], size))
    return lines


def side_by_side(parts: Sequence[Line], size: int) -> Line:
    """Lines of columns with a rule between them."""
    line = []
    for index, part in enumerate(parts):
        line += [(" │ ", "border")] if index else []
        line += [*part, (" " * max(0, size - 3 - cells(part)), "")]
    return line


def answer_column(view: View, run: RunSummary, group: GroupView | None, width: int) -> list[Line]:
    """A run's answers below its name."""
    marker = view.marker(run.id)
    chosen = view.chosen is not None and view.chosen.id == run.id
    colour = "bold headline" if chosen else "text"
    mean = f"  @{group.step} mean {short(group.reward_mean)}" if group else ""
    name = clip(view.name(run), max(4, width - 2 - cell_len(mean)))
    lines = [[marker.span, (" ", ""), (name, colour),
                          (clip(mean, width - 2 - cell_len(name)), "label")]]  # fmt: skip
    if group is None:
        return [*lines, [("not sampled up to here", "label")]]
    return lines + [line for rollout in group.rollouts for line in answer(rollout, width)]


def answer(rollout: RolloutView, width: int) -> list[Line]:
    """An answer with its letter, reward and advantage."""
    reward = "–" if rollout.reward is None else short(rollout.reward)
    head = f"{letter(rollout.index)} {reward} "
    if rollout.advantage:
        head += f"{'▲' if rollout.advantage > 0 else '▼'}{signed(rollout.advantage)} "
    first, *others = wrap(f"{head}{rollout.text}", max(1, width - 2), ANSWER_LINES)
    colour = f"bold {push_colour(rollout.advantage)}"
    lines = [[(first[: len(head)], colour), (first[len(head) :], "text")]]
    lines += [[("  " + part, "text")] for part in others]
    if rollout.finish in CUT:
        space = max(0, width - cells(lines[-1]))
        lines[-1].append((clip(" [cut]", space), "warn"))
    return lines
