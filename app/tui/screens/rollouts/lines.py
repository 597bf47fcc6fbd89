"""The Rollouts screen's lines: groups of a step, answers of a group, one prompt over the steps."""

from collections.abc import Mapping, Sequence

from grpo_tui.app.inspector.groups import (
    Change,
    SortKey,
    Verdict,
    is_greedy,
    letter,
    measure_of,
    visits,
)
from grpo_tui.app.text.numbers import BARS, narrow, short, signed
from grpo_tui.app.text.prompt_text import asked
from grpo_tui.app.text.safe_text import cell_len, clip, excerpt, pad, safe, wrap
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.screens.rollouts.load import Hits
from grpo_tui.app.tui.widgets.panel import Line
from grpo_tui.experiments.values import GroupView, RolloutView, SearchHit

# The heading of what groups are sorted by, in place of the spread.
SORTED_AS: Mapping[SortKey, str] = {"surprise": "surp", "length": "len", "kl": "KL", "clip": "clip"}

KINDS: Mapping[str, str] = {"train": "training", "pinned": "pinned", "eval": "held-out"}


def kind_of(origin: str) -> str:
    """What an origin is called; one of another version is shown as it is."""
    return KINDS.get(origin) or safe(origin, " ")


def mark(advantage: float | None) -> str:
    """▲ pushed up, ▼ pushed down, = no push; nothing on an answer outside the gradient."""
    if advantage is None:
        return ""
    if advantage == 0 or advantage != advantage:
        return "="
    return "▲" if advantage > 0 else "▼"


def cells(line: Line) -> int:
    """The width of a line in terminal cells."""
    return sum(cell_len(text) for text, _ in line)


def groups_head(sort: SortKey, width: int, palette: Palette) -> Line:
    """The column headings above the groups: the mean reward, and what they are sorted by."""
    gap = " " * max(0, width - 12)
    second = SORTED_AS.get(sort, "std")
    return [(gap + pad("mean", 5, ">") + pad(second, 5, ">"), style(palette.label))]


def group_line(
    group: GroupView, sort: SortKey, *, chosen: bool, width: int, palette: Palette
) -> Line:
    """One group: number, prompt, mean reward, what it is sorted by or the spread, `=` no signal."""
    second = measure_of(group, sort) if sort in SORTED_AS else group.reward_std
    back = palette.cursor if chosen else palette.paper
    front = style(palette.headline if chosen else palette.text, back)
    label = style(palette.label, back)
    return [
        (f"{group.index + 1:>2}", label),
        ("▸" if chosen else " ", style(palette.focus, back)),
        (pad(asked(group.prompt_text), max(1, width - 15)), front),
        (pad(narrow(group.reward_mean, 4), 5, ">"), front),
        (pad(narrow(second, 4), 5, ">"), label),
        (" =" if group.no_signal or group.reward_std == 0 else "  ", label),
    ]


def hit_lines(hits: Sequence[SearchHit], chosen: int, width: int, palette: Palette) -> list[Line]:
    """The hits of a search, one below the other."""
    heads = [f"{hit.step:>4} {hit.group_index + 1}{letter(hit.index)} " for hit in hits]
    size = max(map(len, heads), default=0)
    return [
        _hit_line(hit, head.ljust(size), place == chosen, width, palette)
        for place, (hit, head) in enumerate(zip(hits, heads, strict=True))
    ]


def _hit_line(hit: SearchHit, head: str, chosen: bool, width: int, palette: Palette) -> Line:
    """One hit: step, answer, and the match with the text around it."""
    back = palette.cursor if chosen else palette.paper
    before, match, after = excerpt(hit.text, hit.start, hit.end, max(1, width - len(head)))
    text = style(palette.text, back)
    line: Line = [
        (head, style(palette.label, back)), (before, text),
        (match, style(palette.headline, back, bold=True, underline=True)), (after, text),
    ]  # fmt: skip
    return [*line, (" " * max(0, width - cells(line)), text)]


def search_note(hits: Hits, chosen: int) -> str:
    """How far a search has come: `1 of 7`, `1 of the first 50`, `none`, with `…` while it looks."""
    if not hits.done:
        return f"{chosen + 1} of {len(hits.found)}…" if hits.found else "looking…"
    if not hits.found:
        return "none"
    return f"{chosen + 1} of {'the first ' if hits.more else ''}{len(hits.found)}"


def place_line(
    group: GroupView, rollout: RolloutView | None, run: str, width: int, palette: Palette
) -> Line:
    """The current position: run, step, prompt as far as there is room, target, answer."""
    label, text = style(palette.label), style(palette.text)
    line: Line = [(f" {clip(run, 40)}", style(palette.headline)), (f"  step {group.step}", text)]
    if group.origin != "train":
        line.append((f"  {kind_of(group.origin)}", style(palette.accent)))
    line.append((f"  prompt {group.index + 1} ", label))
    end: Line = []
    if group.target:
        end += [("  target ", label), (clip(group.target, 20), text)]
    if rollout is not None:
        end += [("  answer ", label), (letter(rollout.index), text)]
        end.append((f" of {len(group.rollouts)}", label))
    question = clip(asked(group.prompt_text), max(8, width - cells(line) - cells(end) - 3))
    return [*line, (f"“{question}”", text), *end]


def answer_line(
    rollouts: Sequence[RolloutView], selected: int, width: int, palette: Palette
) -> Line:
    """All answers of a group in one line, the selected one framed: `a ▲1.1  ▌c ▲1.1▐`."""
    texts = [f"{letter(r.index)} {mark(r.advantage)}{short(r.reward, 1)}" for r in rollouts]
    first, end = window([len(text) + 2 for text in texts], selected, width - 2)
    dim = style(palette.label)
    line: Line = [("…", dim)] if first else []
    for place in range(first, end):
        chosen = place == selected
        colour = palette.of_push(rollouts[place].advantage)
        front = palette.headline if chosen else colour
        back = palette.cursor if chosen else palette.paper
        line.append(("▌" if chosen else " ", style(palette.focus)))
        line.append((texts[place], style(front, back, bold=chosen)))
        line.append(("▐" if chosen else " ", style(palette.focus)))
    return [*line, ("…", dim)] if end < len(texts) else line


def window(widths: Sequence[int], selected: int, room: int) -> tuple[int, int]:
    """The start and end of a run of items that includes `selected` and fills `room` cells."""
    if not widths:
        return 0, 0
    first, end = selected, selected + 1
    used = widths[selected]
    while True:
        if end < len(widths) and used + widths[end] <= room:
            used += widths[end]
            end += 1
        elif first > 0 and used + widths[first - 1] <= room:
            first -= 1
            used += widths[first]
        else:
            return first, end


def history_line(
    history: Sequence[GroupView], group: GroupView, width: int, palette: Palette, *, live: bool
) -> Line:
    """One prompt over the steps: a reward bar per visit, the shown one in brackets.

    Only a run that is `live` can follow another prompt.
    """
    label = style(palette.label)
    alike = visits(history, group)
    if len(alike) < 2:
        text = "this prompt was sampled once; @ goes to pinned prompts"
        text += ", * pins it" if live else ""
        return [(clip(" " + text, width), label)]
    rewards = [visit.reward_mean for visit in alike]
    known = [value for value in rewards if value is not None] or [0.0]
    place = next((i for i, visit in enumerate(alike) if visit.key == group.key), 0)
    texts = [
        f"{visit.step} {bar_of(reward, min(known), max(known))}"
        for visit, reward in zip(alike, rewards, strict=True)
    ]
    sampled = "greedy" if is_greedy(group) else "sampled"
    names = {"train": "by step", "eval": f"held-out, {sampled}, by step"}
    name = f" {names.get(group.origin, f'{group.origin} prompt by step')} "
    was = f"{short(rewards[0])} → " if place else ""
    tail = f"  {was}{short(rewards[place])}  [ ] @ step  D diff"
    room = width - len(name) - len(tail) - 3
    first, end = window([len(text) + 2 for text in texts], place, room)
    line: Line = [(name + "…" * (first > 0), label)]
    for number in range(first, end):
        shown = number == place
        text = f"[{texts[number]}]─" if shown else f"{texts[number]}──"
        line.append((text, style(palette.headline if shown else palette.of_series("reward"))))
    return [*line, ("…" * (end < len(texts)) + tail, label)]


def bar_of(value: float | None, low: float, high: float) -> str:
    """A value between `low` and `high` as a bar of one character."""
    if value is None:
        return " "
    return BARS[round(7 * (value - low) / (high - low))] if high > low else BARS[3]


def diff_lines(changes: Sequence[Change], width: int, palette: Palette) -> list[Line]:
    """Two answers as one text: removed words in [−…], added ones in [+…], in the push colours."""
    looks = {
        "same": (style(palette.text), "", ""),
        "gone": (style(palette.push[0]), "[−", "]"),
        "new": (style(palette.push[-1], bold=True), "[+", "]"),
    }
    lines: list[Line] = [[]]
    used = 0
    for change in changes:
        look, before, after = looks[change.kind]
        for char in before + safe(change.text) + after:
            size = cell_len(char)
            if used + size > width:
                lines.append([])
                used = 0
            lines[-1].append((char, look))
            used += size
    return lines


def reward_lines(
    rollout: RolloutView, largest: Mapping[str, float], width: int, palette: Palette
) -> list[Line]:
    """The total, then each function with bar, value and reason, then the advantage.

    A bar is full at the largest score that the function gave in this step.
    """
    label, text = style(palette.label), style(palette.text)
    total = pad(short(rollout.reward), 6, ">")
    lines: list[Line] = [
        [(pad("reward", width - 6), label), (total, style(palette.headline, bold=True))],
        [],
    ]
    longest = max((cell_len(safe(reward.name)) for reward in rollout.rewards), default=0)
    wide = 8 if width >= longest + 15 else 5
    for reward in rollout.rewards:
        most = largest.get(reward.name) or 1.0
        full = 0 if reward.value is None else round(wide * min(1.0, abs(reward.value) / most))
        colour = palette.of_series("reward") if (reward.value or 0) >= 0 else palette.bad
        name = pad(reward.name, max(6, min(longest, width - wide - 7)))
        line: Line = [
            (name + " ", label),
            ("█" * full, style(colour)),
            ("░" * (wide - full), style(palette.guide)),
        ]
        value = "n/a" if reward.value is None else short(reward.value)
        lines.append([*line, (pad(value, max(4, width - cells(line)), ">"), text)])
        if reward.weight != 1:
            lines.append([(f"  × weight {short(reward.weight)}", label)])
        lines += [[("  " + part, text)] for part in wrap(reward.reason, width - 2, 3) if part]
    if rollout.advantage is None:
        return lines
    push = style(palette.of_push(rollout.advantage), bold=True)
    lines.append([])
    lines.append(
        [(pad("advantage", width - 7), label), (pad(signed(rollout.advantage), 7, ">"), push)]
    )
    return lines


def verdict_line(chips: Sequence[Verdict], palette: Palette) -> list[Line]:
    """The verdicts on an answer, one per line: ✓ good, ✗ bad, · neither."""
    marks = {True: ("✓ ", palette.good), False: ("✗ ", palette.bad), None: ("· ", palette.label)}
    return [
        [(mark, style(colour)), (chip.text, style(palette.text))]
        for chip in chips
        for mark, colour in (marks[chip.good],)
    ]
