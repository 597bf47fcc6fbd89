"""Rollouts as lines: groups, one prompt over the steps, tokens of an answer, rewards; as files."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from operator import attrgetter

from grpo_engine.events import Span
from grpo_tui.app.inspector.dialogue import Message, messages
from grpo_tui.app.inspector.explain import (
    UNBOUNDED,
    arithmetic,
    explanation,
    gradient_sum,
)
from grpo_tui.app.inspector.groups import (
    Order,
    TextChange,
    balance,
    is_greedy,
    largest_by_reward,
    letter,
    measure_of,
    verdicts,
)
from grpo_tui.app.inspector.layout import EMPTY_SIGN, lay_out
from grpo_tui.app.inspector.layout import Line as TokenLine
from grpo_tui.app.inspector.losses import TokenLoss, loss_mask
from grpo_tui.app.inspector.measures import (
    HEAT_NAMES,
    MEASURES,
    Values,
)
from grpo_tui.app.text.numbers import BARS, clamped, narrow, short, signed, sparkline
from grpo_tui.app.text.prompt_text import last_question, question
from grpo_tui.app.text.safe_text import cell_len, clip, excerpt, pad, safe
from grpo_tui.app.text.words import count_of
from grpo_tui.app.tui.looks.colours import push_colour
from grpo_tui.app.tui.screens.rollouts.state import (
    MAX_HITS,
    THINK_END,
    RolloutsView,
    RolloutTokens,
    RunInfo,
    Search,
)
from grpo_tui.app.tui.screens.watch.render import arrow, lane_lines, with_edge
from grpo_tui.app.tui.widgets.panel import (
    Line,
    cells,
    hint,
    justified,
    labelled,
    list_row,
    meter,
    paragraph,
    visible,
)
from grpo_tui.app.tui.widgets.panel import Span as Part
from grpo_tui.experiments.values import GroupView, RolloutView, SearchHit

ORIGIN_NAMES: Mapping[str, str] = {"train": "training", "pinned": "pinned", "eval": "held-out"}
# The heading of what groups are ordered by, in place of the spread.
ORDER_HEADINGS: Mapping[Order, str] = {
    "surprise": "surp",
    "length": "len",
    "kl": "KL",
    "clip": "clip",
}
TEXT_LINES, NUMBER_LINES = 7, 3  # at least, of an answer and a token
LABEL = 9  # cells of a name before what it says of a token
TRACK = 16  # cells of the line that the ratio is on
BAR, SHORT_BAR = 8, 3  # cells of a reward's bar, and where names are long
MAX_REPLY = 8  # lines of a reply
laid_out = lru_cache(maxsize=64)(lay_out)


def origin_name(origin: str) -> str:
    """What an origin is called; one of another version is shown as it is."""
    return ORIGIN_NAMES.get(origin) or safe(origin, " ")


# -- groups, and one prompt over the steps ------------------------------------------------------


def group_lines(view: RolloutsView, width: int) -> list[Line]:
    """The groups: number, prompt, mean reward, sorted measure or spread, `=` without a signal.

    Held-out problems have the temperature in place of the spread.
    """
    held_out = view.group is not None and view.group.origin == "eval"  # greedy and sampled ones
    heading = ORDER_HEADINGS.get(view.order, "temp" if held_out else "std")
    lines = [justified([], [(f"{'mean':>5}{heading:>5}  ", "label")], width)]
    for position, group in enumerate(view.groups):
        selected = position == view.group_at
        second = measure_of(group, view.order) if heading != "std" else group.reward_std
        if heading == "temp":
            second = group.sampling.get("temperature")
        prompt = clip(last_question(group.prompt_text), max(1, width - 16))
        left = [
            (f"{group.index + 1:>2}", "label"),
            ("▸" if selected else " ", "focus"),
            (prompt, "headline" if selected else "text"),
        ]
        numbers = [
            (f"{narrow(group.reward_mean, 4):>5}", "text"),
            (f"{narrow(second, 4):>5}", "label"),
            (" =" if group.no_signal or group.reward_std == 0 else "  ", "label"),
        ]
        lines.append(list_row(justified(left, numbers, width), width, selected=selected))
    return lines


def hit_lines(hits: Sequence[SearchHit], selected: int, width: int) -> list[Line]:
    """The hits of a search: step, answer, and the match with the text around it."""
    lines = []
    for position, hit in enumerate(hits):
        head = f"{hit.step:>4} {hit.group_index + 1}{letter(hit.index)} ".ljust(9)
        before, match, after = excerpt(hit.text, hit.start, hit.end, max(1, width - len(head)))
        line = [
            (head, "label"),
            (before, "text"),
            (match, "bold underline headline"),
            (after, "text"),
        ]
        lines.append(list_row(line, width, selected=position == selected))
    return lines


def search_note(search: Search, hit: int) -> str:
    """How far a search has come: `1 of 7`, `1 of the first 50`, `none`, with `…` while it runs."""
    count = len(search.hits)
    if not count:
        return "none" if search.done else "searching…"
    first = "the first " * (count == MAX_HITS)
    return f"{hit + 1} of {first}{count}" + "…" * (not search.done)


def position_line(name: str, group: GroupView, order: Order, width: int) -> Line:
    """The current position: run, step, and the prompt as far as it fits; the order of `n`."""
    line = [(f" {clip(name, 40)}", "headline"), (f"  step {group.step}", "text")]
    if group.origin != "train":
        how = ", greedy" if is_greedy(group) else ", sampled" * (group.origin == "eval")
        line.append((f"  {origin_name(group.origin)}{how}", "accent"))
    sort = "" if order == "prompt" else f"sort {order}  "
    line.append((f"  {sort}prompt {group.index + 1} ", "label"))
    prompt = clip(last_question(group.prompt_text), max(8, width - cells(line) - 3))
    return [*line, (f"“{prompt}”", "text")]


def history_line(same: Sequence[GroupView], group: GroupView, width: int) -> Line:
    """One prompt over the steps: a reward bar per visit, the current one in brackets."""
    if not same:
        return []  # it is being read
    if len(same) < 2:
        how = "greedy" if is_greedy(group) else "sampled"
        text = f" this {origin_name(group.origin)} prompt has {how} answers at this step only"
        if group.origin == "train":
            text = " training drew this prompt once; t goes to pinned and held-out prompts"
        return [(clip(text, width), "label")]
    rewards = [visit.reward_mean for visit in same]
    bars = sparkline([math.nan if reward is None else reward for reward in rewards], len(rewards))
    current = next((i for i, visit in enumerate(same) if visit.key == group.key), 0)
    texts = [f"{visit.step} {bar}" for visit, bar in zip(same, bars, strict=True)]
    greedy = ", greedy," if is_greedy(group) else ""
    name = f" {origin_name(group.origin)} prompt{greedy} by step "
    end = f"  {short(rewards[0])} → {short(rewards[current])}  [ ] step  d diff"
    items = [(text, "series.reward") for text in texts]
    visits = strip(items, current, width - len(name) - len(end))
    return [(name, "label"), *visits, (end, "label")]


def strip(items: Sequence[Part], selected: int, width: int) -> Line:
    """Items beside each other, as many as fit, the selected one framed: `a ▲1.1  ▌c ▲1.1▐`."""
    indices = visible([len(text) + 2 for text, _ in items], width - 2, selected)
    line = [("…" * (indices.start > 0), "label")]
    for index in indices:
        text, style = items[index]
        if index == selected:
            line += [("▌", "focus"), (text, "bold headline on cursor"), ("▐", "focus")]
        else:
            line.append((f" {text} ", style))
    return [*line, ("…" * (indices.stop < len(items)), "label")]


# -- answers of a group -------------------------------------------------------------------------


def rollouts_line(rollouts: Sequence[RolloutView], selected: int, width: int) -> Line:
    """All answers of a group in one line: letter, advantage and reward."""
    items = [
        (
            f"{letter(r.index)} {'' if r.advantage is None else arrow(r.advantage)}"
            f"{short(r.reward, 1)}",
            push_colour(r.advantage),
        )
        for r in rollouts
    ]
    return strip(items, selected, width)


def sibling_lines(view: RolloutsView, width: int, height: int) -> list[Line]:
    """The group's answers, for comparison."""
    group = view.group
    if group is None or height < 3 or len(group.rollouts) < 2:
        return []
    rollouts = group.rollouts
    indices = visible([1] * len(rollouts), height - 1, view.rollout_at)
    lines = [[("all answers to this prompt", "label")]]
    for index in indices:
        rollout = rollouts[index]
        if view.loaded and view.loaded.completions[index].thinking:
            rollout = replace(rollout, text=rollout.text.partition(THINK_END)[2].strip())
        lines += with_edge(lane_lines(rollout, width - 1, 1, group), index == view.rollout_at)
    return lines


def bars(shades: Values, pieces: TokenLine, stopped: Container[int] = ()) -> Line:
    """The bars under tokens: the height is the size of a shade, the colour its sign.

    Those whose push a bound has `stopped` are underlined.
    """
    line: Line = []
    for piece in pieces:
        shade = shades[piece.token] if piece.token < len(shades) else None
        if shade is None:
            line.append((" " * piece.cells, ""))
            continue
        colour = push_colour(shade, 1.0, "advantage") if shade else "guide"
        style = "underline " * (piece.token in stopped) + colour
        line.append((BARS[round(7 * abs(shade))] * piece.cells, style))
    return line


# -- an answer's text ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextRow:
    """A line of an answer: tokens, or a note; `token` is its first one, or the next."""

    token: int
    pieces: TokenLine = ()
    note: Line = field(default_factory=list)

    @property
    def cells(self) -> list[int]:
        """The token of each cell; at least one."""
        tokens = [piece.token for piece in self.pieces for _ in range(piece.cells)]
        return tokens or [self.token]


def text_rows(completion: RolloutTokens, width: int) -> list[TextRow]:
    """The lines of the answer: its tokens, or the turns of a dialogue."""
    if completion.rollout.spans:
        return dialogue_rows(completion, width)
    if completion.row is None:  # without token numbers
        lines = paragraph(completion.rollout.text, width, 999, "text")
        return [TextRow(number, note=line) for number, line in enumerate(lines)]
    return token_rows(completion.texts, 0, None, width)


def token_rows(texts: tuple[str, ...], start: int, stop: int | None, width: int) -> list[TextRow]:
    """The lines of some tokens of an answer."""
    rows = laid_out(texts[start:stop], width, start)
    return [TextRow(row[0].token, row) for row in rows if row]


def visible_rows(
    rows: Sequence[TextRow], token: int, row_height: int, height: int, top: int
) -> range:
    """The lines to draw: the one before the token's, that, and the notes after it if they fit."""
    sizes = [row_height if row.pieces else 1 for row in rows]
    last = at = max(0, bisect_right(rows, token, key=attrgetter("token")) - 1)
    first = max(0, at - 1)
    while last + 1 < len(rows) and not rows[last + 1].pieces:
        last += 1
    if sum(sizes[first : last + 1]) > height:
        last = at
    return visible(sizes, height, first, last, top)


def row_lines(completion: RolloutTokens, token: int, row: TextRow, shades: Values) -> list[Line]:
    """A line of tokens, clipped ones underlined, with their bars if there are any; or a note."""
    if not row.pieces:
        return [row.note]
    line: Line = []
    for piece in row.pieces:
        current = piece.token == token
        losses = completion.losses[piece.token : piece.token + 1]
        clipped = any(loss.side != "free" for loss in losses)
        style = "bold headline on cursor" if current else "text"
        line.append((piece.text, "underline " * clipped + style))
    return [line, bars(shades, row.pieces)] if shades else [line]


def dialogue_rows(completion: RolloutTokens, width: int) -> list[TextRow]:
    """The lines of a dialogue, turn by turn."""
    rows: list[TextRow] = []
    spans = completion.rollout.spans
    count = 1 + max(span.turn for span in spans)
    parts = messages(completion.rollout.text, spans)
    for turn, members in groupby(parts, lambda message: (message.span or spans[-1]).turn):
        turn_messages = list(members)
        turn_spans = [message.span for message in turn_messages if message.span]
        tokens = sum(span.length for span in turn_spans if span.kind == "model")
        head = [(f"turn {turn + 1} of {count}, {count_of(tokens, 'token')}", "label")]
        note = justified(head, _turn_result(turn_spans), width)
        rows.append(TextRow(turn_spans[0].start, note=note))
        for message in turn_messages:
            rows += _message_rows(message, completion.texts, width)
    return rows


def _turn_result(spans: Sequence[Span]) -> Line:
    """A turn's reward, or that its environment failed."""
    if any(span.error for span in spans):
        return [("failed", "bad")]
    rewards = [span.reward for span in spans if span.reward is not None]
    return [(f"reward {short(sum(rewards))}", "headline")] if rewards else []


def _message_rows(message: Message, texts: tuple[str, ...], width: int) -> list[TextRow]:
    """The tokens of a turn, or its text if they are unknown; what the environment replied."""
    span, lines = message.span, paragraph(message.text, width, 99, "text")
    if span is None:
        return [TextRow(len(texts), note=line) for line in lines]
    end = span.start + span.length
    if message.is_reply:
        lines = _reply_lines(message, span, width)
    elif end <= len(texts):
        return token_rows(texts, span.start, end, width)
    return [TextRow(span.start, note=line) for line in lines]


def _reply_lines(message: Message, span: Span, width: int) -> list[Line]:
    """What the environment replied, what it says about itself, and why it failed."""
    info = [f"{name} {value}" for name, value in span.info.items()]
    info += [] if span.ms is None else [f"{span.ms:,.0f} ms"]
    is_plain = message.text and not message.has_calls
    texts = [
        (f"‹{message.text}›" if is_plain else message.text, MAX_REPLY, "label"),
        (f"{span.name}: {'   '.join(info)}" if info else "", 1, "label"),
        (span.error, 4, "bad"),
    ]
    return [
        line
        for text, limit, style in texts
        if text
        for line in paragraph(text, width, limit, style, ("  ", ""))
    ]


def diff_lines(changes: Sequence[TextChange], width: int) -> list[Line]:
    """Two answers as one text: removed words in [−…], added ones in [+…], in the push colours."""
    styles: dict[str, Part] = {
        "same": ("{}", "text"),
        "removed": ("[−{}]", "push.0"),
        "added": ("[+{}]", "bold push.6"),
    }
    texts = [styles[change.tag][0].format(change.text) for change in changes]
    return [
        [(piece.text, styles[changes[piece.token].tag][1]) for piece in line]
        for line in lay_out(texts, width)
    ]


# -- the token under the cursor -----------------------------------------------------------------


def token_lines(completion: RolloutTokens, token: int, run: RunInfo, width: int) -> list[Line]:
    """The token's probabilities, ratio, explanation and share of the loss.

    Numbers are of the last pass.
    """
    row, recipe = completion.row, run.recipe
    assert row is not None
    text = safe(completion.texts[token]) if token < len(completion.texts) else ""
    number = bisect_left(completion.tokens, token) + 1
    title = f"← token {number} of {len(row.model_positions)} “{text or EMPTY_SIGN}” →"
    lines = [[(clip(title, width), "headline")]]
    lines.append(probability_line(completion, token, width))
    texts: list[tuple[str, str]] = []
    if completion.losses:
        loss = completion.losses[token]
        lines.append(_ratio_line(loss))
        if len(row.passes) > 1:
            ratios = (short(math.exp(new[token] - row.old[token]), 3) for new in row.passes)
            texts.append(("", f"new ÷ old in each pass: {', '.join(ratios)}"))
        texts.append(("why", explanation(loss, recipe, first_pass=len(row.passes) == 1)))
        texts.append(("gradient", gradient_sum(loss)))
        share = arithmetic(
            loss, recipe, row.updates[-1], length=sum(loss_mask(row)), max_length=run.max_length
        )
        texts.append(("share", f"of the objective: {share}"))
    return lines + labelled(texts, LABEL, width, 3)


def probability_line(completion: RolloutTokens, token: int, width: int) -> Line:
    """The token's probability from the reference to the step's end, with the digits that fit."""
    row = completion.row
    assert row is not None
    stages = {
        "ref": row.reference,
        "teacher": row.teacher,
        "sampled": () if row.old else row.sampler,
        "old": row.old,
        "new": row.passes[-1] if row.passes else (),
        "after": row.after,
    }
    known = {name: values[token] for name, values in stages.items() if token < len(values)}
    digits = 3 if LABEL + 12 * len(known) <= width else 2
    line = [(f"{'prob.':<{LABEL}}", "label")]
    for name, value in known.items():
        gap = "" if len(line) == 1 else "  "
        line += [(f"{gap}{name} ", "label"), (probability(value, digits), "headline")]
    return line


def probability(logprob: float, digits: int = 3) -> str:
    """exp of a log-probability, with more digits if it is near 1: `.034`, `.9987`."""
    p = math.exp(min(0.0, logprob))
    return f"{p:.4f}"[1:] if 0.99995 > p >= 0.0995 else short(p, digits)


def _ratio_line(loss: TokenLoss) -> Line:
    """The ratio as a diamond on its interval: `┈.8├────┼────┤1.2┈◆  1.35 CLIPPED high`."""
    clipped = {"low": " CLIPPED low", "high": " CLIPPED high", "ceiling": " AT THE CEILING"}
    alarm = "bold series.clip"
    ratio = [(short(loss.ratio, 3), "headline"), (clipped.get(loss.side, ""), alarm)]
    name = f"{'ratio':<{LABEL}}"
    if loss.high >= UNBOUNDED or loss.low <= 1 / UNBOUNDED:
        bounds = "no bounds" if loss.high >= UNBOUNDED else f"at most {short(loss.high)}"
        return [(name, "label"), ratio[0], (f"  {bounds}", "label"), ratio[1]]
    low, high = TRACK // 4, 3 * TRACK // 4  # of the interval, in the middle half

    def cell(value: float) -> int:
        """A value's position; what is beyond the interval is so by a cell at least."""
        share = (value - loss.low) / ((loss.high - loss.low) or 1.0)
        whole = math.ceil if value > loss.high else math.floor if value < loss.low else round
        return clamped(whole(low + share * (high - low)), TRACK + 1)

    track = ["┈"] * (TRACK + 1)
    track[low : high + 1] = f"├{'─' * (high - low - 1)}┤"
    track[cell(1.0)] = "┼"
    track[cell(loss.ratio)] = "◆"
    track.insert(high + 1, short(loss.high))
    track.insert(low, short(loss.low))
    diamond = alarm if ratio[1][0] else "headline"
    line = [(mark, diamond if mark == "◆" else "label") for mark in track]
    return [(name, "label"), *line, ("  ", ""), *ratio]


def heat_notes(view: RolloutsView) -> list[str]:
    """What the bars show and which highlight this is, from the longest to the shortest text."""
    none = ": no numbers" if view.loaded and not view.shades else ""
    heat = f"heat: {HEAT_NAMES[view.mode]}{none}"
    if view.highlight is None:
        return [heat]
    value = short(view.highlight.value, 3)
    if view.measure == "clipped":
        value = f"{view.highlights.index(view.highlight) + 1} of {len(view.highlights)}"
    note = f"{MEASURES[view.measure]} {value} in the step"
    return [f"{note} · {heat}", note]


# -- rewards ------------------------------------------------------------------------------------


def reward_lines(view: RolloutsView, width: int) -> list[Line]:
    """Reward and advantage, each function with its reason, verdicts, the group and the prompt."""
    group, rollout = view.group, view.rollout
    if group is None or rollout is None:
        text = "What each reward function gave an answer, and why, appears here."
        return hint(text, width)
    reward = (short(rollout.reward), "bold headline")
    lines = [justified([("reward", "label")], [reward], width)]
    if rollout.advantage is not None:
        push = (signed(rollout.advantage), f"bold {push_colour(rollout.advantage)}")
        lines.append(justified([("advantage", "label")], [push], width))
    largest = largest_by_reward(view.step.groups if view.step else ())
    lines += [[], *function_lines(rollout, largest, width)]
    marks = {"✓": "good", "✗": "bad", "·": "label"}
    labels = verdicts(rollout, group)
    lines += [
        [],
        *(
            line
            for label in labels
            for line in paragraph(label[2:], width, 3, "text", (label[:2], marks[label[0]]))
        ),
    ]
    texts = [f"target {group.target}"] * bool(group.target) + [f"group: {balance(group)}"]
    for text in texts:
        lines += paragraph(text, width, 3, "label")
    return [
        *lines,
        [],
        [("prompt", "label")],
        *paragraph(question(group.prompt_text), width, 99, "text"),
    ]


def function_lines(rollout: RolloutView, largest: Mapping[str, float], width: int) -> list[Line]:
    """Each reward function with bar, value, weight and reason.

    A bar is full at the largest score that the function gave in this step.
    """
    lines = []
    texts = [
        "failed" if reward.failed else "n/a" if reward.value is None else short(reward.value)
        for reward in rollout.rewards
    ]
    space = width - 2 - max(map(len, texts), default=0)
    longest = max((cell_len(safe(reward.name)) for reward in rollout.rewards), default=0)
    name_width = max(6, space - BAR, min(longest, space - SHORT_BAR))
    for reward, value in zip(rollout.rewards, texts, strict=True):
        size = abs(reward.value or 0) / (largest.get(reward.name) or 1.0)
        colour = "series.reward" if (reward.value or 0) >= 0 else "bad"
        bar = meter(size, max(1, space - name_width), colour)
        left = [(f"{pad(reward.name, name_width)} ", "label"), *bar]
        lines.append(justified(left, [(value, "text")], width))
        if reward.weight != 1:
            lines.append([(f"  × weight {short(reward.weight)}", "label")])
        lines += paragraph(reward.reason, width, 99, "text", ("  ", "")) if reward.reason else []
    return lines
