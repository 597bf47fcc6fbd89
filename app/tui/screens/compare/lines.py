"""The tables and pages of the Compare screen, as lines."""

import math
from collections.abc import Sequence

from grpo_engine.events import CUT
from grpo_engine.metrics import natural_range, spec
from grpo_tui.app.charts.series import EVALUATIONS
from grpo_tui.app.inspector.groups import letter
from grpo_tui.app.text.comparison import (
    SURE,
    points,
    ranked,
    ranking_of,
    ranking_rows,
    ranking_title,
    standing,
    value_text,
)
from grpo_tui.app.text.numbers import seconds, short, signed, tokens, with_unit
from grpo_tui.app.text.prompt_text import asked
from grpo_tui.app.text.safe_text import cell_len, clip, clip_start, pad, safe, wrap
from grpo_tui.app.tui.looks.colours import Palette, rgb, style
from grpo_tui.app.tui.screens.compare.texts import place_text
from grpo_tui.app.tui.screens.compare.view import Stat, View, measure_of
from grpo_tui.app.tui.widgets.panel import Line
from grpo_tui.app.tui.widgets.top_bar import status_mark
from grpo_tui.experiments.compare.values import GridView, MetricCell, SeedGroup, SeedStatistics
from grpo_tui.experiments.values import GroupView, RolloutView, RunSummary

NO_SEEDS = (
    "No two of these runs differ only in the seed. `grpo-tui sweep CONFIG --seeds 3` makes such "
    "runs; their mean and its 95% interval appear here, and S draws them as bands."
)
NO_PROMPTS = (
    "These runs have no recorded answers to the same prompt. Followed prompts are recorded at the "
    "same steps in every run (record.pinned)."
)
NO_RANKING = (
    "Settings are ranked by their answers to the same held-out problems (evaluation.every); these "
    "runs have none. `grpo-tui sweep CONFIG --set a=1,2 --seeds 3` makes runs that can be ranked."
)
WORK = ("tokens", "time", "step")
# the most important first
COLUMNS = ("points", "95%", "right", "best?", "needs + seeds", "or + problems", "p", "reached",
           *WORK)  # fmt: skip
ANSWER_LINES = 8
RAMPS = {True: (235, 17, 18, 24, 31, 38, 45), False: (255, 195, 153, 117, 75, 33, 26)}


NAME = 12
LEAST_NAME = 10  # of a name that is cut
NOISE = 1e-9  # differences that rounding explains


def delta_text(key: str, delta: float | None) -> str:
    """Format a difference to the baseline: `+.13`; percentage points if the metric is a share.

    It has no mark: only the verdict says what is better, since one value may be chance.
    """
    if delta is None:
        return ""
    if abs(delta) < NOISE:
        return "="
    is_share = spec(key).unit == "share" and math.isfinite(delta)
    return f"{points(delta)} pt" if is_share else signed(delta)


def stat_of(
    key: str, cell: MetricCell, stat: Stat
) -> tuple[float | None, int | None, float | None]:
    """A cell's value, its step and its difference to the baseline; the last if none is best."""
    if stat == "at":
        return cell.at, cell.at_step, cell.delta_at
    if stat == "best" and spec(key).best:
        return cell.best, cell.best_step, cell.delta_best
    return cell.last, cell.last_step, cell.delta_last


# -- runs ---------------------------------------------------------------------------------------


def runs_lines(view: View, width: int, palette: Palette, now: float) -> list[Line]:
    """One row per run: its standing in the verdict, and the chosen metric's values."""
    label = style(palette.label)
    measure = measure_of(view.comparison, view.metric)
    columns = run_columns(
        width, best=bool(view.metric) and spec(view.metric).best, judged=bool(measure),
        delta=len(view.runs) > 1 and view.metric != measure,  # the verdict tells that one
    )  # fmt: skip
    name = width - 5 - sum(size for _, size in columns)
    here = place_text(view.axis, view.x).removesuffix("ens")
    delta = "at" if view.stat == "at" else view.stat_word
    titles = {"at": here, "verdict": "verdict", "best": "best", "last": "last",
              "delta": f"Δ {delta}"}  # fmt: skip
    head: Line = [(" " * 5 + pad(raw_label(view.metric), name), label)]
    head += [(pad(titles[kind], size - 1, ">") + " ", label) for kind, size in columns]
    lines = [head]
    for place, run in enumerate(view.runs):
        lines.append(_run_line(view, run, place, columns, name, palette, now))
    return lines


def raw_label(key: str) -> str:
    """The label of a metric whose curves may be smoothed, above numbers that never are."""
    return key and ("" if key.startswith(EVALUATIONS) else "raw ") + spec(key).label


def run_columns(width: int, *, best: bool, delta: bool, judged: bool) -> list[tuple[str, int]]:
    """The columns that fit beside the name, with their widths, without those that say nothing."""
    wanted = [*([("verdict", 13)] if judged else []), ("at", 10),
              *([("delta", 11)] if delta else []), *([("best", 12)] if best else []),
              ("last", 9)]  # fmt: skip
    room = width - 5 - NAME
    kept = []
    for kind, size in wanted:
        if size <= room:
            kept.append((kind, size))
            room -= size
    return kept


def _run_line(
    view: View, run: RunSummary, place: int, columns: Sequence[tuple[str, int]], name: int,
    palette: Palette, now: float,
) -> Line:  # fmt: skip
    here = place == min(view.run, len(view.runs) - 1)
    back = palette.cursor if here else palette.paper
    hidden, based = run.id in view.hidden, view.base is not None and run.id == view.base.id
    look = view.look(run.id, palette)
    front = palette.label if hidden else palette.headline if here else palette.text
    glyph, colour = status_mark(run.status, palette, now)
    state = f" {glyph}" if run.active or run.status in ("failed", "lost") else ""
    line: Line = [
        ("▸" if here else " ", style(palette.focus, back)),
        ("·" if hidden else look.mark, style(palette.label if hidden else look.colour, back,
                                             bold=True)),
        (" ", style(None, back)),
        (pad(view.name(run), name - cell_len(state)), style(front, back)),
        (state, style(colour, back)),
        (" ◆" if based and len(view.runs) > 1 else "  ", style(palette.label, back)),
    ]  # fmt: skip
    cell = view.cell(view.metric, run.id)
    for kind, size in columns:
        text, shade = _run_cell(view, run, kind, cell, palette, based)
        line.append((pad(text, size - 1, ">") + " ", style(shade, back)))
    return line


def _run_cell(
    view: View, run: RunSummary, kind: str, cell: MetricCell | None, palette: Palette, based: bool
) -> tuple[str, int]:
    unit = spec(view.metric).unit if view.metric else ""
    if kind == "verdict":
        return _standing(view, run, palette)
    if cell is None or cell.last is None:
        return ("none" if kind == "at" else "–"), palette.label
    if kind == "at":
        value, step = view.value_at_x(view.metric, run.id)
        beyond = view.end(run) < view.x and step is not None
        text = with_unit(value, unit) + (f"@{step}" if beyond else "")
        return text, palette.label if beyond else palette.text
    if kind == "best":
        return f"{with_unit(cell.best, unit)} @{cell.best_step}", palette.text
    if kind == "last":
        return with_unit(cell.last, unit), palette.text
    if based:
        return "baseline", palette.label
    return delta_text(view.metric, _delta(view, run, cell)) or "–", palette.text


def _standing(view: View, run: RunSummary, palette: Palette) -> tuple[str, int]:
    """How the run's setting did in the verdict, in the colour of a difference that is sure."""
    row = ranked(view.comparison, run.id, view.metric) if view.comparison else None
    if row is None:
        return "–", palette.label
    first = next((one.id for one in (view.base, *view.runs) if one and one.id in row.own.runs), "")
    if run.id != first:  # of one setting, whose value stands once
        return f"with {'◆' if row.test is None else view.look(first, palette).mark}", palette.label
    if row.test is None:
        return "baseline", palette.label
    text = standing(row.test)
    return text, {"▲": palette.good, "▼": palette.bad}.get(text[0], palette.text)


def _delta(view: View, run: RunSummary, cell: MetricCell) -> float | None:
    if view.stat != "at" or view.base is None:
        return stat_of(view.metric, cell, view.stat)[2]
    own, _ = view.value_at_x(view.metric, run.id)
    other, _ = view.value_at_x(view.metric, view.base.id)
    return None if own is None or other is None else own - other


def run_notes(view: View) -> list[str]:
    """Describe missing and non-finite values of the chosen chart."""
    notes = []
    for run in view.runs:
        curve = view.curve(view.metric, run.id)
        name = view.name(run)
        if view.charts is None:
            break
        if curve is None and view.metric:
            notes.append(f"{name} never recorded {view.metric}")
        elif curve is not None and (gaps := len(curve.series.values) - curve.series.count):
            notes.append(f"{name}: {gaps} of its values are NaN or infinite: gaps")
        if curve is not None and view.log and any(value <= 0 for value in curve.series.values):
            notes.append(f"{name}: values at or below 0 cannot be shown on a log scale")
    short = [
        view.name(run)
        for run in view.runs
        if view.end(run) < view.x and view.curve(view.metric, run.id) is not None
    ]
    if short:
        notes.append(f"{', '.join(short)} ended before: the last value, with its step")
    return notes


# -- settings -----------------------------------------------------------------------------------


def column_window(view: View, room: int, least: int) -> tuple[int, int, int]:
    """First and last run whose columns fit, including the chosen one, and the column width."""
    count = len(view.runs)
    fit = max(1, min(count, room // least))
    first = max(0, min(view.run - fit // 2, count - fit))
    return first, first + fit, room // fit


def some_runs(view: View, first: int, last: int) -> str:
    """Which runs have a column, and the keys that lead to the others; empty if all have one."""
    some = last - first < len(view.runs)
    return f"{first + 1}–{last} of {len(view.runs)} (J K)" if some else ""


def brief(view: View, run: RunSummary, room: int) -> str:
    """Shorten a run's name; if all names start alike, keep the end."""
    starts = {view.name(other)[:4] for other in view.runs}
    cut = clip_start if len(starts) == 1 and len(view.runs) > 1 else clip
    return cut(view.name(run), room)


def column_heads(
    view: View, first: int, last: int, size: int, palette: Palette, tail: int = 0
) -> Line:
    """The runs' marks over their columns, `tail` cells from the right; ◆ the baseline.

    Their names as well if they can be told apart, over the tail too; the legend has every mark and
    name.
    """
    line: Line = []
    rooms = [max(1, size - (5 if run == view.base else 3)) for run in view.runs]
    names = [brief(view, run, room) for run, room in zip(view.runs, rooms, strict=True)]
    if min(rooms) < LEAST_NAME and names != [view.name(run) for run in view.runs]:
        names = [""] * len(names)
    for place in range(first, last):
        run = view.runs[place]
        look = view.look(run.id, palette)
        based = view.base is not None and view.base.id == run.id and len(view.runs) > 1
        chosen = place == min(view.run, len(view.runs) - 1)
        text = f" {names[place]}{' ◆' if based else ''}" if names[place] or based else ""
        front = style(palette.headline if chosen else palette.label, bold=chosen)
        used = 1 + cell_len(text)
        gap = max(0, size - tail - 1 - used)
        line += [(" " * gap, None), (look.mark, style(look.colour, bold=True)), (text, front),
                 (" " * (size - gap - used), None)]  # fmt: skip
    return line


def settings_lines(view: View, width: int, height: int, palette: Palette) -> list[Line]:
    """One row per setting, one column per run; differences from the baseline are highlighted."""
    rows = view.settings()
    label = style(palette.label)
    if not rows:
        empty = "no setting matches" if view.filter else "all settings are the same"
        return [[(empty, label)], [("s shows them all", label)]]
    path = min(max(len(row[0]) for row in rows), max(16, width * 2 // 5))
    longest = max(cell_len(safe(value_text(value))) for row in rows for value in row[1])
    first, last, size = column_window(view, width - path - 1, max(5, min(10, longest + 2)))
    size = min(size, 22)
    more = some_runs(view, first, last)
    head = [(pad(more, path), label), *column_heads(view, first, last, size, palette)]
    base = view.runs.index(view.base) if view.base in view.runs else 0
    lines: list[Line] = [head]
    top = max(0, min(view.row, len(rows) - (height - 1)))
    for name, values, differs in rows[top : top + height - 1]:
        line: Line = [
            (clip_start(name, path).ljust(path), style(palette.text if differs else palette.label))
        ]
        for place in range(first, last):
            same = value_text(values[place]) == value_text(values[base])
            shade = palette.label if not differs else palette.text if same else palette.headline
            text = pad(value_text(values[place]), size - 1, ">") + " "
            line.append((text, style(shade, bold=differs and not same)))
        lines.append(line)
    return lines


# -- metrics ------------------------------------------------------------------------------------


def metrics_lines(view: View, width: int, height: int, palette: Palette) -> list[Line]:
    """One row per metric, one column per run: value, step, difference to the baseline."""
    rows = view.rows
    label = style(palette.label)
    if not rows:
        return [[("no metric matches", label)]]
    name = min(max(cell_len(full_name(row.key)) for row in rows) + 3, max(18, width // 4))
    at = 3 + len(str(max(run.step for run in view.runs)))  # cells of the last step
    first, last, size = column_window(view, width - name - 1, 17 + at)
    size = min(size, 34)
    more = some_runs(view, first, last)
    lines: list[Line] = [
        [(pad(more, name), label), *column_heads(view, first, last, size, palette, tail=10)]
    ]
    here = min(view.row, len(rows) - 1)
    top = max(0, min(here - (height - 1) // 2, len(rows) - (height - 1)))
    for place, row in enumerate(rows[top : top + height - 1], top):
        back = palette.cursor if place == here else palette.paper
        shown = "▸" if row.key in view.metrics else " "
        arrow = {"up": "↑", "down": "↓", "none": " "}[row.direction]
        line: Line = [
            (shown, style(palette.accent, back)),
            (pad(metric_title(row.key, name - 3), name - 2), style(palette.text, back)),
            (arrow, style(palette.label, back)),
        ]
        for cell in row.cells[first:last]:
            line += _metric_cell(row.key, cell, view.stat, size, at, palette, back)
        used = sum(cell_len(text) for text, _ in line)
        lines.append([*line, (" " * max(0, width - used), style(None, back))])
    return lines


def full_name(key: str) -> str:
    """A metric's label and its key."""
    return key if spec(key).label == key else f"{spec(key).label} · {key}"


def metric_title(key: str, room: int) -> str:
    """A metric's label, and its key where that fits uncut."""
    return full_name(key) if cell_len(full_name(key)) <= room else clip(spec(key).label, room)


def _metric_cell(
    key: str, cell: MetricCell, stat: Stat, size: int, at: int, palette: Palette, back: int
) -> Line:
    value, step, delta = stat_of(key, cell, stat)
    if value is None:
        return [(pad("–", size), style(palette.label, back))]
    where = f" @{step}" if step is not None else ""
    change = delta_text(key, delta)
    room = max(0, size - 1 - 10)
    number = with_unit(value, spec(key).unit)
    return [
        (pad(number, max(1, room - at), ">"), style(palette.text, back)),
        (pad(where, at), style(palette.label, back)),
        (pad(change, 10), style(palette.label, back)),
        (" ", style(None, back)),
    ]


def work_text(run: RunSummary) -> str:
    """A run's progress: steps, tokens, time."""
    return f"step {run.step} · {tokens(run.tokens)} tokens · {seconds(run.elapsed)}"


# -- ranking ------------------------------------------------------------------------------------


def ranking_lines(view: View, width: int, height: int, palette: Palette) -> list[Line]:
    """Settings from best to worst with their difference to the baseline's, for each evaluation."""
    label = style(palette.label)
    found = view.comparison
    if found is None or not found.rankings:
        notes = (found.notes if found else ()) or (NO_RANKING,)
        return [[(part, label)] for note in notes for part in wrap(note, width, height)]
    lines: list[Line] = []
    first = ranking_of(found, view.metric)
    tables = [(one, ranking_rows(one, found))
              for one in sorted(found.rankings, key=lambda one: one is not first)]  # fmt: skip
    needed: dict[str, int] = {}  # the same for all, so that their columns are below each other
    for row in (row for _, rows in tables for row in rows):
        for name, text in row.items():
            needed[name] = max(needed.get(name, 0), cell_len(name) + 2, cell_len(text) + 2)
    for ranking, rows in tables:
        sizes = fitted({name: needed[name] for name in rows[0]}, width)
        lines += [[]] if lines else []
        title = ranking_title(ranking)
        first_part, *_, last_part = title.split("; ")
        ways = (title, title.replace(" held-out", ""), f"{first_part}; {last_part}")
        title = next((way for way in ways if cell_len(way) <= width), title)
        lines.append([(clip(title, width), style(palette.headline))])
        lines.append([("  ", None), *((pad(name, size), label) for name, size in sizes.items())])
        for row, setting in zip(rows, ranking.settings, strict=True):
            look = view.look(setting.own.runs[0], palette)
            here = view.chosen is not None and view.chosen.id in setting.own.runs
            shade, test = palette.text, setting.test
            if test is not None and test.p_value < SURE:
                shade = palette.good if test.difference > 0 else palette.bad
            line: Line = [
                (look.mark + " ", style(look.colour, bold=True)),
                *((pad(row[name], size), style(shade if name in ("points", "95%", "p") else
                   palette.headline if here else palette.text)) for name, size in sizes.items()),
            ]  # fmt: skip
            lines.append(line)
    top = max(0, min(view.row, len(lines) - height))
    return lines[top : top + height]


def fitted(sizes: dict[str, int], width: int) -> dict[str, int]:
    """The columns that fit, the most important ones; the setting's name takes what is left.

    What was done until the threshold was reached says nothing without how many reached it.
    """
    name = min(sizes["setting"], max(16, width // 3))
    room, kept = width - 2 - name, {"setting"}
    for column in (column for column in COLUMNS if column in sizes):
        if sizes[column] <= room and (column not in WORK or "reached" in kept):
            kept.add(column)
            room -= sizes[column]
    return {**{column: size for column, size in sizes.items() if column in kept}, "setting": name}


# -- seeds --------------------------------------------------------------------------------------


def seeds_lines(view: View, width: int, height: int, palette: Palette) -> list[Line]:
    """One line per group of seeds with its mean on a common scale, then every metric as numbers."""
    label = style(palette.label)
    groups = view.comparison.seeds if view.comparison else ()
    if not groups:
        return [[(part, label)] for part in wrap(NO_SEEDS, width, height)]
    stat = view.stat_word
    unit = spec(view.metric).unit
    title = f"{raw_label(view.metric)}, {stat} of each run: mean and 95% interval"
    unknown = view.metric and spec(view.metric).best and math.isinf(natural_range(view.metric)[1])
    limit = "; it may pass the highest possible" if unknown else ""
    lines: list[Line] = [[(title + (limit if cell_len(title + limit) <= width else ""), label)]]
    own = [_statistics(group, view.metric, stat) for group in groups]
    scale = _scale([found for found in own if found is not None])
    for group, found in zip(groups, own, strict=True):
        lines.append(_group_name(view, group, width, palette))
        lines.append(_whisker(view, group, found, scale, unit, width, palette))
    lines.append(_scale_line(scale, unit, width, palette))
    keys = [row.key for row in view.rows if row.key != view.metric]
    size = max(14, min(26, (width - 24) // len(groups)))
    head: Line = [(pad("all metrics", 24), label)]
    for group in groups:
        look = view.look(group.runs[0], palette)
        head += [(" " * (size - 2), None), (look.mark + " ", style(look.colour, bold=True))]
    lines.append(head)
    for key in keys:
        line: Line = [(pad(spec(key).label, 24), style(palette.text))]
        for group in groups:
            mean = _mean_text(_statistics(group, key, stat), spec(key).unit, size - 1)
            line.append((" " + pad(mean, size - 1, ">"), style(palette.text)))
        lines.append(line)
    top = 1 + max(0, min(view.row, len(lines) - height))
    return [lines[0], *lines[top : top + height - 1]]


def _statistics(group: SeedGroup, key: str, stat: str) -> SeedStatistics | None:
    found = group.best if stat == "best" else group.last
    return next((item for item in found if item.key == key), None)


def _mean_text(found: SeedStatistics | None, unit: str, room: int) -> str:
    """The mean, and its interval where there is room."""
    if found is None:
        return "–"
    text = with_unit(found.mean, unit)
    if found.low is None or found.high is None:
        return text
    whole = f"{text} [{with_unit(found.low, unit)}, {with_unit(found.high, unit)}]"
    return whole if cell_len(whole) <= room else text


def _group_name(view: View, group: SeedGroup, width: int, palette: Palette) -> Line:
    line: Line = []
    for run in group.runs[:10]:
        look = view.look(run, palette)
        line.append((look.mark, style(look.colour, bold=True)))
    count = f" ({', '.join(map(str, group.seeds[:8]))})"
    used = sum(cell_len(text) for text, _ in line) + cell_len(count)
    return [*line, (" " + clip(view.name_of(group.runs), max(4, width - used - 2)),
                    style(palette.headline)), (count, style(palette.label))]  # fmt: skip


def _scale(found: Sequence[SeedStatistics]) -> tuple[float, float]:
    values = [value for item in found for value in item.values if math.isfinite(value)]
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    room = (high - low) or abs(high) or 1.0
    edges = [edge for item in found for edge in (item.low, item.high) if edge is not None]
    low = max(min([low, *edges]), low - room)
    high = min(max([high, *edges]), high + room)
    return (low, high) if high > low else (low - room / 2, high + room / 2)


def _numbers(width: int) -> int:
    """Cells of the numbers beside an interval's bar."""
    return min(34, width // 2)


def _bar(width: int) -> int:
    """Cells of an interval's bar."""
    return max(4, width - _numbers(width) - 2)


def _scale_line(scale: tuple[float, float], unit: str, width: int, palette: Palette) -> Line:
    """The values at the two ends of the bars."""
    low, high = (with_unit(end, unit) for end in scale)
    return [(" " * (_numbers(width) + 1) + low + pad(high, _bar(width) - cell_len(low), ">"),
             style(palette.label))]  # fmt: skip


def _whisker(
    view: View, group: SeedGroup, found: SeedStatistics | None, scale: tuple[float, float],
    unit: str, width: int, palette: Palette,
) -> Line:  # fmt: skip
    if found is None or not math.isfinite(found.mean):
        return [("  never recorded", style(palette.label))]
    look = view.look(group.runs[0], palette)
    low, high = found.low, found.high
    text = with_unit(found.mean, unit)
    numbers = f"  {text}"
    if low is not None and high is not None:
        numbers += f"  [{with_unit(low, unit)}, {with_unit(high, unit)}]"
    numbers = pad(numbers, _numbers(width))
    room = _bar(width)

    def place(value: float) -> int:
        return round((value - scale[0]) / (scale[1] - scale[0]) * (room - 1))

    cells = [" "] * room
    if low is not None and high is not None:
        left, right = place(low), place(high)
        for x in range(max(0, left), min(room - 1, right) + 1):
            cells[x] = "─"
        for x, inside, outside in ((left, "├", "◂"), (right, "┤", "▸")):
            cells[max(0, min(room - 1, x))] = inside if 0 <= x < room else outside
    for value in found.values:
        if math.isfinite(value) and 0 <= place(value) < room:
            cells[place(value)] = "·" if cells[place(value)] in " ─" else cells[place(value)]
    at = max(0, min(room - 1, place(found.mean)))
    bar = "".join(cells)
    colour = style(look.colour)
    return [
        (numbers, style(palette.text)), (" ", None), (bar[:at], colour),
        (look.mark, style(look.colour, bold=True)), (bar[at + 1 :], colour),
    ]  # fmt: skip


# -- sweep grid ---------------------------------------------------------------------------------


def grid_lines(view: View, width: int, height: int, palette: Palette) -> list[Line]:
    """The chosen metric over two settings as a heat map."""
    label = style(palette.label)
    choices = view.grid_choices()
    if len(choices) < 2:
        words = ", ".join(choices) or "no suitable settings"
        text = f"A grid needs two settings that differ; these runs differ in {words}."
        return [[(part, label)] for part in wrap(text, width, height)]
    grid = view.grid
    if grid is None:
        return [[("reading", label)]]
    unit = spec(grid.key).unit
    head = (f"{raw_label(grid.key)}, {view.stat_word} of each run", style(palette.headline))
    axes: Line = [
        ("down ", label), (grid.rows_path, style(palette.text)), (" (g)   across ", label),
        (grid.columns_path, style(palette.text)), (" (G)", label),
    ]  # fmt: skip
    beside: Line = [head, ("   ", None), *axes]
    fits = sum(cell_len(text) for text, _ in beside) <= width
    lines: list[Line] = [beside, []] if fits else [[head], axes]
    side = min(24, max(8, *(cell_len(safe(value_text(value))) + 1 for value in grid.rows)))
    size = max(9, min(20, (width - side) // max(1, len(grid.columns))))
    shown = max(1, (width - side) // size)
    top: Line = [(" " * side, None)]
    for value in grid.columns[:shown]:
        top.append((pad(value_text(value), size, "^"), style(palette.text)))
    lines.append(top)
    low, high = _extremes(grid)
    tall = 3 if height - 5 >= 3 * len(grid.rows) else 1
    for place, value in enumerate(grid.rows):
        block: list[Line] = [[(" " * side, None)] for _ in range(tall)]
        block[tall // 2] = [(pad(value_text(value), side - 1, ">") + " ", style(palette.text))]
        for at, number in enumerate(grid.cells[place][:shown]):
            back, front = _shade(number, low, high, palette)
            text = with_unit(number, unit) if number is not None else "–"
            text += f" ×{grid.counts[place][at]}" if grid.counts[place][at] > 1 else ""
            for y in range(tall):
                inner = pad(text, size - 1, "^") if y == tall // 2 else " " * (size - 1)
                block[y] += [(inner, style(front, back)), (" ", None)]
        lines += block
    several = any(count > 1 for row in grid.counts for count in row)
    note = "× is how many runs a cell is the mean of" if several else ""
    if shown < len(grid.columns):
        note = f"{len(grid.columns) - shown} more columns; z gives them room"
    lines += [[], [(clip(note, width), label)]]
    return lines[:height]


def _extremes(grid: GridView) -> tuple[float, float]:
    known = [
        value for row in grid.cells for value in row if value is not None and math.isfinite(value)
    ]
    return (min(known), max(known)) if known else (0.0, 1.0)


def _shade(value: float | None, low: float, high: float, palette: Palette) -> tuple[int, int]:
    """Background and text colour of a cell; one hue, so that only brightness carries the value."""
    ramp = RAMPS[palette.dark]
    if value is None or not math.isfinite(value):
        return palette.raised, palette.label
    share = (value - low) / (high - low) if high > low else 0.5
    back = ramp[round(share * (len(ramp) - 1))]
    red, green, blue = rgb(back)
    return back, 232 if 0.3 * red + 0.6 * green + 0.1 * blue > 110 else 255


# -- answers ------------------------------------------------------------------------------------


def answers_lines(view: View, width: int, height: int, palette: Palette) -> list[Line]:
    """Each run's answers to the same prompt, one column per run, up to the crosshair."""
    label = style(palette.label)
    if view.prompts is None:
        return [[("reading", label)]]
    if not view.prompts:
        return [[(part, label)] for part in wrap(NO_PROMPTS, width, height)]
    prompt = view.prompts[min(view.prompt, len(view.prompts) - 1)]
    first, last, size = column_window(view, width, 26)
    place = f"prompt {view.prompt + 1} of {len(view.prompts)}, {prompt.origin}"
    if some := some_runs(view, first, last):
        place += f"  runs {some}"
    target = f"   target {clip(prompt.target, 24)}" if prompt.target else ""
    question = clip(asked(prompt.text), max(8, width - cell_len(place) - cell_len(target) - 4))
    lines: list[Line] = [[(place, label), (f"  {question}", style(palette.headline)),
                          (target, label)]]  # fmt: skip
    answers = view.answers
    if answers is None or answers.prompt.example_key != prompt.example_key:
        return [*lines, [("reading", label)]]
    columns = [
        _answer_column(view, run, answers.groups.get(run.id), size - 3, palette)
        for run in view.runs[first:last]
    ]
    longest = max(len(column) for column in columns)
    lines.append(_joined([column[0] for column in columns], size, palette))
    room = height - len(lines)
    top = 1 + max(0, min(view.scroll, longest - 1 - room))
    for y in range(top, min(longest, top + room)):
        lines.append(
            _joined([column[y] if y < len(column) else [] for column in columns], size, palette)
        )
    return lines


def _joined(parts: Sequence[Line], size: int, palette: Palette) -> Line:
    line: Line = []
    for place, part in enumerate(parts):
        used = sum(cell_len(text) for text, _ in part)
        line += [*part, (" " * max(0, size - 3 - used), None)]
        if place < len(parts) - 1:
            line.append((" │ ", style(palette.border)))
    return line


def _answer_column(
    view: View, run: RunSummary, group: GroupView | None, width: int, palette: Palette
) -> list[Line]:
    look, label = view.look(run.id, palette), style(palette.label)
    chosen = view.chosen is not None and view.chosen.id == run.id
    front = style(palette.headline if chosen else palette.text, bold=chosen)
    mark = (look.mark + " ", style(look.colour, bold=True))
    if group is None:
        name = clip(view.name(run), width - 2)
        return [[mark, (name, front)], [("not sampled up to here", label)]]
    mean = f"  @{group.step} mean {short(group.reward_mean)}"
    name = clip(view.name(run), max(4, width - 2 - cell_len(mean)))
    lines: list[Line] = [[mark, (name, front), (clip(mean, width - 2 - cell_len(name)), label)]]
    for rollout in group.rollouts:
        lines += _answer(rollout, width, palette)
    return lines


def _answer(rollout: RolloutView, width: int, palette: Palette) -> list[Line]:
    colour = palette.of_push(rollout.advantage)
    reward = "–" if rollout.reward is None else short(rollout.reward)
    head = f"{letter(rollout.index)} {reward} "
    if rollout.advantage:
        head += f"{'▲' if rollout.advantage > 0 else '▼'}{signed(rollout.advantage)} "
    tail = " [cut]" if rollout.finish in CUT else ""
    lines: list[Line] = []
    indent = 2
    first = f"{head}{rollout.text}"
    for place, part in enumerate(wrap(first, width - indent, ANSWER_LINES)):
        if place == 0:
            lines.append([(part[: len(head)], style(colour, bold=True)),
                          (part[len(head) :], style(palette.text))])  # fmt: skip
        else:
            lines.append([(" " * indent + part, style(palette.text))])
    if tail and lines:
        lines[-1].append((clip(tail, max(0, width - sum(cell_len(t) for t, _ in lines[-1]))),
                          style(palette.warn)))  # fmt: skip
    return lines
