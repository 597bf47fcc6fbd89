"""The pages with seeds, sweep grid and answers of the Compare screen, as lines."""

import math
from collections.abc import Sequence

from app.inspector.groups import letter
from app.text.comparison import value_text
from app.text.numbers import short, signed, with_unit
from app.text.prompt_text import asked
from app.text.safe_text import cell_len, clip, pad, safe, wrap
from app.tui.looks.colours import Palette, rgb, style
from app.tui.screens.compare.lines import column_window
from app.tui.screens.compare.view import View
from app.tui.widgets.panel import Line
from experiments.compare.values import GridView, SeedGroup, SeedStatistics
from experiments.values import GroupView, RolloutView, RunSummary
from grpo_engine.events import CUT
from grpo_engine.metrics import spec

NO_SEEDS = (
    "No two of these runs differ only in the seed. `grpo-tui sweep CONFIG --seeds 3` makes such "
    "runs; their mean and its 95% interval appear here, and S draws them as bands."
)
NO_PROMPTS = (
    "These runs have no recorded answers to the same prompt. Followed prompts are recorded at the "
    "same steps in every run (record.pinned)."
)
ANSWER_LINES = 8
RAMPS = {True: (235, 17, 18, 24, 31, 38, 45), False: (255, 195, 153, 117, 75, 33, 26)}


# -- seeds --------------------------------------------------------------------------------------


def seeds_lines(view: View, width: int, height: int, palette: Palette) -> list[Line]:
    """One line per group of seeds with its mean on a common scale, then every metric as numbers."""
    label = style(palette.label)
    groups = view.comparison.seeds if view.comparison else ()
    if not groups:
        return [[(part, label)] for part in wrap(NO_SEEDS, width, height)]
    stat = "best" if view.stat == "best" else "last"
    unit = spec(view.metric).unit
    lines: list[Line] = [
        [(f"{spec(view.metric).label}, {stat} of each run: mean and 95% interval", label)]
    ]
    own = [_statistics(group, view.metric, stat) for group in groups]
    scale = _scale([found for found in own if found is not None])
    for group, found in zip(groups, own, strict=True):
        lines.append(_group_name(view, group, width, palette))
        lines.append(_whisker(view, group, found, scale, unit, width, palette))
    lines.append([])
    keys = [row.key for row in view.rows if row.key != view.metric]
    size = max(14, min(26, (width - 24) // len(groups)))
    head: Line = [(pad("all metrics", 24), label)]
    for group in groups:
        look = view.look(group.runs[0], palette)
        head += [(" " * (size - 2), None), (look.mark + " ", style(look.colour, bold=True))]
    lines.append(head)
    for key in keys:
        line: Line = [(pad(key, 24), style(palette.text))]
        for group in groups:
            mean = _mean_text(_statistics(group, key, stat), spec(key).unit)
            line.append((" " + pad(mean, size - 1, ">"), style(palette.text)))
        lines.append(line)
    top = 1 + max(0, min(view.row, len(lines) - height))
    return [lines[0], *lines[top : top + height - 1]]


def _statistics(group: SeedGroup, key: str, stat: str) -> SeedStatistics | None:
    found = group.best if stat == "best" else group.last
    return next((item for item in found if item.key == key), None)


def _mean_text(found: SeedStatistics | None, unit: str) -> str:
    if found is None:
        return "–"
    text = with_unit(found.mean, unit)
    if found.low is None or found.high is None:
        return text
    half = (found.high - found.low) / 2
    return f"{text} ±{with_unit(half, unit)}"


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
    numbers = pad(numbers, min(34, width // 2))
    room = max(4, width - cell_len(numbers) - 1)

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
    """The chosen metric over two settings as a heat map; ★ marks the best cell."""
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
    stat = "best" if view.stat == "best" else "last"
    head = f"{spec(grid.key).label}, {stat}"
    lines: list[Line] = [
        [(head, style(palette.headline)), ("   down ", label),
         (grid.rows_path, style(palette.text)), (" (g)   across ", label),
         (grid.columns_path, style(palette.text)), (" (G)", label)],
        [],
    ]  # fmt: skip
    side = min(24, max(8, *(cell_len(safe(value_text(value))) + 1 for value in grid.rows)))
    size = max(9, min(20, (width - side) // max(1, len(grid.columns))))
    shown = max(1, (width - side) // size)
    top: Line = [(" " * side, None)]
    for value in grid.columns[:shown]:
        top.append((pad(value_text(value), size, "^"), style(palette.text)))
    lines.append(top)
    best, low, high = _extremes(grid)
    tall = 3 if height - 5 >= 3 * len(grid.rows) else 1
    for place, value in enumerate(grid.rows):
        block: list[Line] = [[(" " * side, None)] for _ in range(tall)]
        block[tall // 2] = [(pad(value_text(value), side - 1, ">") + " ", style(palette.text))]
        for at, number in enumerate(grid.cells[place][:shown]):
            back, front = _shade(number, low, high, palette)
            text = with_unit(number, unit) if number is not None else "–"
            text += " ★" if (place, at) == best else ""
            text += f" ×{grid.counts[place][at]}" if grid.counts[place][at] > 1 else ""
            for y in range(tall):
                inner = pad(text, size - 1, "^") if y == tall // 2 else " " * (size - 1)
                bold = (place, at) == best
                block[y] += [(inner, style(front, back, bold=bold)), (" ", None)]
        lines += block
    note = "× is how many runs a cell is the mean of"
    if shown < len(grid.columns):
        note = f"{len(grid.columns) - shown} more columns; z gives them room"
    lines += [[], [(clip(note, width), label)]]
    return lines[:height]


def _extremes(grid: GridView) -> tuple[tuple[int, int] | None, float, float]:
    known = [
        (value, (y, x))
        for y, row in enumerate(grid.cells)
        for x, value in enumerate(row)
        if value is not None and math.isfinite(value)
    ]
    if not known:
        return None, 0.0, 1.0
    values = [value for value, _ in known]
    direction = spec(grid.key).direction
    best = None
    if direction != "none":
        best = (max if direction == "up" else min)(known, key=lambda pair: pair[0])[1]
    return best, min(values), max(values)


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
    label, text = style(palette.label), style(palette.text)
    if view.prompts is None:
        return [[("reading", label)]]
    if not view.prompts:
        return [[(part, label)] for part in wrap(NO_PROMPTS, width, height)]
    prompt = view.prompts[min(view.prompt, len(view.prompts) - 1)]
    place = f"prompt {view.prompt + 1} of {len(view.prompts)}, {prompt.origin}"
    target = f"   target {clip(prompt.target, 24)}" if prompt.target else ""
    question = clip(asked(prompt.text), max(8, width - cell_len(place) - cell_len(target) - 4))
    lines: list[Line] = [[(place, label), (f"  {question}", style(palette.headline)),
                          (target, label)]]  # fmt: skip
    answers = view.answers
    if answers is None or answers.prompt.example_key != prompt.example_key:
        return [*lines, [("reading", label)]]
    first, last, size = column_window(view, width, 26)
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
    if last - first < len(view.runs):
        lines[0].append((f"  runs {first + 1}–{last} of {len(view.runs)}", text))
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
    mean = f"  step {group.step} · mean {short(group.reward_mean)}"
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
