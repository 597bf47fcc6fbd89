"""Rollouts as lines: groups, one prompt over the steps, tokens of an answer, rewards; as files."""

import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from statistics import fmean

from grpo_engine.events import Span
from grpo_tui.app.inspector.dialogue import Message, messages
from grpo_tui.app.inspector.explain import UNBOUNDED, loss_texts, precise, probability
from grpo_tui.app.inspector.groups import (
    Order,
    TextChange,
    balance,
    is_greedy,
    letter,
    measure_of,
    right_count,
    right_verdict,
    score,
    verdicts,
)
from grpo_tui.app.inspector.layout import EMPTY_SIGN, lay_out
from grpo_tui.app.inspector.layout import Line as TokenLine
from grpo_tui.app.inspector.losses import TokenLoss
from grpo_tui.app.inspector.measures import (
    HEAT_NAMES,
    MEASURES,
    HeatMode,
    Values,
)
from grpo_tui.app.inspector.stored import (
    THINK_END,
    GroupDetail,
    RolloutTokens,
    RunInfo,
    shades_of,
)
from grpo_tui.app.text.numbers import BARS, clamped, narrow, short, signed, sparkline
from grpo_tui.app.text.prompt_text import last_question, question
from grpo_tui.app.text.safe_text import cell_len, clip, excerpt, pad, safe, wrap
from grpo_tui.app.text.words import count_of
from grpo_tui.app.tui.looks.colours import push_colour
from grpo_tui.app.tui.screens.rollouts.state import (
    MAX_PROMPTS,
    RolloutsView,
    Search,
    changes,
    largest_scores,
)
from grpo_tui.app.tui.screens.watch.render import arrow, lane_lines, with_edge
from grpo_tui.app.tui.widgets.charts.stack import GAP, side_by_side
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
from grpo_tui.experiments.search import Match
from grpo_tui.experiments.values import GroupView, RolloutView, SearchHit

ORIGIN_NAMES: Mapping[str, str] = {"train": "training", "pinned": "pinned", "eval": "held-out"}
# The heading of what groups are ordered by, in place of the spread, or of the mean where the list
# is narrow.
ORDER_HEADINGS: Mapping[Order, str] = {
    "surprise": "surp",
    "reward": "max",
    "worst": "min",
    "failing": "right",
    "length": "len",
    "kl": "KL",
    "clip": "clip",
}
# Cells from which the list of groups has a second number, and how many answers are right.
TWO_COLUMNS, THREE_COLUMNS = 26, 40
RUN_COLUMNS = 40  # cells from which the prompts of the run have how often and when they were drawn
TEXT_LINES, NUMBER_LINES = 7, 3  # at least, of an answer and a token
# The numbers of a token that leave first where there is no room; what says why it is not pushed
# stays. Before them leave the sections below, the last one first.
CUT_FIRST = ("after", "passes", "gradient", "share", "prob", "ratio")
LEAST_COLUMN = 30  # cells of an answer beside an earlier one
LEAST_TABLE, COLUMN = 6, 7  # lines of a table of tokens at least, and cells of a number in it
LEAST_TOKEN = 10  # cells of a token's text in that table: of `</answer>` and a space
WIDER = {"ratio": 0, "KL": 1, "gradient": 2}  # more cells, for a sign or a power of ten
# Columns that leave a narrow table, in this order; the line of the token above it has them.
CUT_COLUMNS = ("after", "teacher", "ref", "KL", "gradient", "new", "ratio", "old")
REWARD_COLUMN = 7  # cells of a reward in the table of answers, at least
BREAKABLE = re.compile(r"</?\w+>|\s+|[^\s<]+|<")
LABEL = 9  # cells of a name before what it says of a token
TRACK = 16  # cells of the line that the ratio is on
BAR, SHORT_BAR = 8, 3  # cells of a reward's bar, and where names are long
MAX_REPLY = 8  # lines of a reply
Section = Callable[[RolloutsView, int, int], list[Line]]
laid_out = lru_cache(maxsize=64)(lay_out)


def origin_name(origin: str) -> str:
    """What an origin is called; one of another version is shown as it is."""
    return ORIGIN_NAMES.get(origin) or safe(origin, " ")


# -- groups, and one prompt over the steps ------------------------------------------------------


def group_blocks(view: RolloutsView, width: int, height: int) -> list[list[Line]]:
    """The lines of each group, from the heading on: its number, prompt and mean reward.

    Beside it stands the sorted measure or the spread, and `=` without a signal; a narrow list has
    the sorted measure alone. Where lines are left, the answers follow with their rewards, and the
    rest of the prompt.
    """
    measured = ORDER_HEADINGS.get(view.order)
    groups, rule = view.groups, view.step.run.right if view.step else ""
    names = ["mean", measured or "std"] if width >= TWO_COLUMNS else [measured or "mean"]
    any_judged = width >= THREE_COLUMNS and any(right_count(g, rule)[1] for g in groups)
    names = ["right"] * (any_judged and "right" not in names) + names
    sizes = [max(5, len(name) + 1) for name in names]
    columns = "".join(f"{name:>{size}}" for name, size in zip(names, sizes, strict=True)) + "  "
    blocks: list[list[Line]] = [[justified([], [(columns, "label")], width)]]
    rows = max(1, (height - 1) // max(1, len(groups)))
    available = max(1, width - 4 - len(columns))
    prompts = [last_question(group.prompt_text) for group in groups]
    # beside a prompt of one line there may be room for its answers
    longest = max(map(cell_len, prompts), default=0)
    beside = (available - min(max(LEAST_COLUMN, available // 2), longest) - 2) * (rows == 1)
    for position, group in enumerate(groups):
        if abs(position - view.group_at) > height:
            blocks.append([[]])  # it is out of sight
            continue
        selected = position == view.group_at
        statistics = {"mean": group.reward_mean, "std": group.reward_std}
        right, judged = right_count(group, rule)
        texts = [
            (f"{right}/{judged}" if judged else "–")
            if name == "right"
            else narrow(statistics.get(name, measure_of(group, view.order)), 4)
            for name in names
        ]
        number, *numbers_left = [f"{text:>{size}}" for text, size in zip(texts, sizes, strict=True)]
        answers = _rewards_lines(group, beside, 1) if 1 < len(group.rollouts) <= beside else [[]]
        size = available - (cells(answers[0]) + 2 if answers[0] else 0)
        first, *more_rows = wrap(prompts[position], size, max(1, rows - 1)) or [""]
        left = [
            (f"{group.index + 1:>2}", "label"),
            ("▸" if selected else " ", "focus"),
            (first, "headline" if selected else "text"),
        ]
        numbers = [
            *answers[0],
            (number, "text"),
            ("".join(numbers_left), "label"),
            (" =" if group.no_signal or group.reward_std == 0 else "  ", "label"),
        ]
        lines = [justified(left, numbers, width), *([("   ", ""), (o, "text")] for o in more_rows)]
        if rows > 1 and len(group.rollouts) > 1:
            rewards = _rewards_lines(group, width - 4, max(1, rows - len(lines)))
            lines += [[("   ", ""), *line] for line in rewards]
        blocks.append([list_row(line, width, selected=selected) for line in lines])
    return blocks


def _rewards_lines(group: GroupView, width: int, height: int) -> list[Line]:
    """The reward of each answer in the colour of its push; the arrows alone where that is long."""
    parts = [(f"{text} ", colour) for text, colour in map(_pushed, group.rollouts)]
    lines: list[Line] = [[]]
    for part in parts:
        if cells([*lines[-1], part]) > width:
            lines.append([])
        lines[-1].append(part)
    if len(lines) <= height:
        return lines
    if len(parts) > width:
        parts[width - 1 :] = [("…", "label")]
    return [[(text[:1], colour) for text, colour in parts]]


def _pushed(rollout: RolloutView) -> Part:
    """An answer's advantage as an arrow, and its reward."""
    sign = "" if rollout.advantage is None else arrow(rollout.advantage)
    return sign + short(rollout.reward, 1), push_colour(rollout.advantage)


def sampling_lines(view: RolloutsView, width: int) -> list[Line]:
    """What greedy and sampled answers to the same prompts scored, and why that differs."""
    means = {}
    for greedy, groups in view.by_sampling.items():
        recorded = [group.reward_mean for group in groups if group.reward_mean is not None]
        means[greedy] = fmean(recorded) if recorded else None
    if len(means) < 2:
        return []
    text = (
        f"Mean reward: greedy {short(means[True], 3)}, sampled {short(means[False], 3)}. "
        "Greedy takes the likeliest token each time, sampled draws tokens as training does: they "
        "differ where the model is undecided. t changes between them."
    )
    return [[], *paragraph(text, width, 9, "label")]


def hit_columns(step: str, kind: str, answer: str, reward: str, width: int) -> str:
    """The columns before the text of a hit; a narrow list has step and answer alone."""
    if width < RUN_COLUMNS:
        return f"{step:>4} {answer:>6} "
    return f"{step:>5} {pad(kind, 8)} {answer:>6} {reward:>6} "


def hit_lines(hits: Sequence[SearchHit], selected: int, width: int) -> list[Line]:
    """The hits of a search: step, kind, answer, reward, and the match with the text around it."""
    lines = []
    for position, hit in enumerate(hits):
        answer = f"{hit.group_index + 1}{letter(hit.index)}"
        reward = narrow(hit.reward, 6)
        head = hit_columns(str(hit.step), origin_name(hit.origin), answer, reward, width)
        head += "prompt: " * (hit.where == "prompt")
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
    """How far a search has come: `1 of 7`, `none`, with `…` while it runs."""
    count = len(search.matches)
    if not count:
        return "none" if search.done else "searching…"
    return f"{hit + 1:,} of {count:,}" + "…" * (not search.done)


def prompts_note(search: Search) -> str:
    """How many hits are in prompts alone, and the key that leaves them out or takes them again."""
    text = f"{search.in_prompts:,} in prompts"
    if search.answers_only:
        return f"{text} hidden: x shows them" if search.in_prompts else "x includes prompts"
    return f"{text}: x hides them" if search.in_prompts else text


def count_lines(search: Search, match: Match, width: int) -> list[Line]:
    """The matches by kind, those of prompts alone, and as bars those of this one's kind by step."""
    by_origin, by_step = Counter[str](), Counter[int]()
    for (origin, at), count in search.counts.items():
        by_origin[origin] += count
        by_step[at] += count * (origin == match.origin)
    in_answers = sum(match.in_answer for match in search.matches)
    where = f"{in_answers:,} in answers, {prompts_note(search)}"
    kinds = "  ".join(f"{origin_name(of)} {by_origin[of]:,}" for of in search.origins)
    by_step = +by_step
    first, last = min(by_step), max(by_step)
    name, end = f"step {first} ", f" {last}"
    values = [float(by_step[at]) for at in range(first, last + 1)]
    bar = sparkline(values, max(1, width - len(name) - len(end)), low=0.0)
    of_step = f"{by_step[match.step]:,} {origin_name(match.origin)}"
    position = f"step {match.step}: {of_step}   < > step   t kind"
    return [
        *paragraph(kinds, width, 2, "headline"),
        *paragraph(where, width, 2, "headline" if search.in_prompts else "label"),
        [(name, "label"), (bar, "series.reward"), (end, "label")] if first < last else [],
        [(clip(position, width), "label")],
        [(hit_columns("step", "kind", "answer", "reward", width), "label")],
    ]


def prompt_lines(view: RolloutsView, width: int, height: int) -> list[Line]:
    """The prompts of the run: right answers, mean reward, times sampled, and the last step."""
    part = f"to step {max(prompt.step for prompt in view.prompts)}"
    if len(view.prompts) == MAX_PROMPTS:
        part = f"the first {MAX_PROMPTS:,}"
    judged = any(prompt.judged for prompt in view.prompts)
    wide, again = width >= RUN_COLUMNS, any(prompt.visits > 1 for prompt in view.prompts)
    heads = {"right": judged, "mean": True, "times": wide and again, "last": wide}
    head = "".join(f"{name:>6}" for name, listed in heads.items() if listed)
    lines = [
        [(clip(f"{part} · esc closes the list", width), "label")],
        [(f"{head}  prompt", "label")],
    ]
    for position, prompt in enumerate(view.prompts):
        if abs(position - view.hit) > height:
            lines.append([])  # it is out of sight
            continue
        texts = {
            "right": f"{prompt.right}/{prompt.judged}" if prompt.judged else "–",
            "mean": narrow(prompt.mean, 4),
            "times": str(prompt.visits),
            "last": str(prompt.step),
        }
        numbers = "".join(f"{text:>6}" for name, text in texts.items() if heads[name])
        text = clip(last_question(prompt.prompt_text), max(1, width - len(head) - 3))
        line = [(f"{numbers}  ", "text"), (text, "text")]
        lines.append(list_row(line, width, selected=position == view.hit))
    return lines


def position_line(name: str, group: GroupView, sorted_by: str, width: int) -> Line:
    """The current position: run, step, and the prompt as far as it fits; the order of `n`."""
    line = [(f" {clip(name, 40)}", "headline"), (f"  step {group.step}", "text")]
    if group.origin != "train":
        how = ", greedy" if is_greedy(group) else ", sampled" * (group.origin == "eval")
        line.append((f"  {origin_name(group.origin)}{how}", "accent"))
    sort = f"sort {sorted_by}  " if sorted_by else ""
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
    values = [math.nan if reward is None else reward for reward in rewards]
    largest = max((value for value in values if value > 0), default=1.0)
    lowest = min((value for value in values if value < 0), default=0.0)
    bars = sparkline(values, len(values), low=lowest, high=largest)  # from 0: none is no reward
    current = next((i for i, visit in enumerate(same) if visit.key == group.key), 0)
    texts = [f"{visit.step} {bar}" for visit, bar in zip(same, bars, strict=True)]
    greedy = ", greedy," if is_greedy(group) else ""
    name = f" {origin_name(group.origin)} prompt{greedy} by step "
    end = f"  {short(rewards[0])} → {short(rewards[-1])}  [ ] step  d diff"
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
    items = []
    for rollout in rollouts:
        text, colour = _pushed(rollout)
        items.append((f"{letter(rollout.index)} {text}", colour))
    return strip(items, selected, width)


def sibling_lines(view: RolloutsView, width: int, height: int) -> list[Line]:
    """The group's answers, for comparison: with shades, or in as many lines as fit."""
    group = view.group
    if group is None or height < 3 or len(group.rollouts) < 2:
        return []
    numbers, blocks = range(len(group.rollouts)), list[list[Line]]()
    if sum(len(rollout.text) for rollout in group.rollouts) <= width * height:
        blocks = [_shaded(view, index, width - 1) for index in numbers]
    if not blocks or sum(map(len, blocks)) >= height:
        rows = max(1, (height - 1) // len(numbers))
        blocks = [
            [line for line in lane_lines(_after_thinking(view, i), width - 1, rows, group) if line]
            for i in numbers
        ]
    indices = visible([len(block) for block in blocks], height - 1, view.rollout_at)
    return [
        [("all answers to this prompt", "label")],
        *(line for i in indices for line in with_edge(blocks[i], i == view.rollout_at)),
    ]


def _after_thinking(view: RolloutsView, index: int) -> RolloutView:
    assert view.group is not None
    rollout = view.group.rollouts[index]
    if view.loaded and view.loaded.completions[index].thinking:
        return replace(rollout, text=rollout.text.partition(THINK_END)[2].strip())
    return rollout


def _shaded(view: RolloutsView, index: int, width: int) -> list[Line]:
    """An answer with its push, its reward and its tokens with their shades."""
    group = view.group
    assert group is not None
    (lead,) = lane_lines(replace(group.rollouts[index], text="", spans=()), width, 1, group)
    lead = [part for part in lead if part[0] != EMPTY_SIGN]  # the text has it
    if view.loaded is None:
        return [lead, *paragraph(group.rollouts[index].text, width, 99, "text")]
    return [lead, *_shaded_text(view.loaded, view.mode, index, width)]


@lru_cache(maxsize=64)
def _shaded_text(detail: GroupDetail, mode: HeatMode, index: int, width: int) -> list[Line]:
    completion, shades = detail.completions[index], shades_of(detail, mode)[index]
    rows = text_rows(completion, width)
    return [line for row in rows for line in row_lines(completion, -1, row, shades)]


def visit_lines(view: RolloutsView, width: int, height: int) -> list[Line]:
    """The same prompt over the steps: the reward and the text of this answer at each."""
    same, group = view.visits, view.group
    if len(same) < 2 or group is None or height < 3:
        return []
    current = next((i for i, visit in enumerate(same) if visit.key == group.key), 0)
    rows = max(1, min(6, (height - 1) // len(same)))
    blocks = []
    for visit in same:
        rollouts = visit.rollouts
        rollout = rollouts[clamped(view.rollout_at, len(rollouts))] if rollouts else None
        head = f"{visit.step:>5} {narrow(rollout.reward if rollout else None, 5):>6}  "
        text = " ".join(rollout.text.split()) if rollout else ""
        blocks.append(paragraph(text, width - 1, rows, "text", (head, "label")))
    indices = visible([len(block) for block in blocks], height - 1, current)
    return [
        [("this prompt by step", "label")],
        *(line for i in indices for line in with_edge(blocks[i], i == current)),
    ]


def section_lines(
    sections: Sequence[Section], view: RolloutsView, width: int, height: int
) -> list[Line]:
    """Sections with a blank line between them, as far as there is room."""
    lines: list[Line] = []
    for section in sections:
        start: list[Line] = [[]] if lines else []
        if part := section(view, width, height - len(lines) - len(start)):
            lines += [*start, *part]
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
    if not completion.by_token:
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
        length = f", {count_of(tokens, 'token')}" if any(span.length for span in spans) else ""
        head = [(f"turn {turn + 1} of {count}{length}", "label")]
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
    elif span.start < end <= len(texts):
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


def diff_lines(
    changes: Sequence[TextChange], width: int, tags: Container[str] = ("same", "removed", "added")
) -> list[Line]:
    """Changes of these kinds as text: removed words in [−…], added ones in [+…]."""
    styles: dict[str, Part] = {
        "same": ("{}", "text"),
        "removed": ("[−{}]", "push.0"),
        "added": ("[+{}]", "bold push.6"),
    }
    pieces, colours = [], []
    for change in changes:
        if change.tag in tags:
            parts = BREAKABLE.findall(styles[change.tag][0].format(change.text))
            pieces += parts
            colours += [styles[change.tag][1]] * len(parts)
    return [
        [(piece.text, colours[piece.token]) for piece in line] for line in lay_out(pieces, width)
    ]


def compared_lines(
    earlier: GroupView, later: GroupView, at: int, width: int, height: int
) -> list[Line]:
    """The answers of two visits, from the chosen one on, with what changed.

    They are samples of their own: the best is compared with the best. They are beside each other,
    or as one text where that is too narrow.
    """
    means = f"mean reward {short(earlier.reward_mean)} → {short(later.reward_mean)}"
    lines = [[(f"step {earlier.step} → {later.step}   {means}", "headline")]]
    lines += paragraph("by reward: the best answer beside the best", width, 1, "label")
    olds, news = (
        sorted(group.rollouts, key=lambda r: (r.reward is None, -(r.reward or 0.0)))
        for group in (earlier, later)
    )
    column = (width - GAP) // 2
    for rollout in (*later.rollouts[at:], *later.rollouts[:at]):
        before = olds[clamped(news.index(rollout), len(olds))]
        parts = changes(before.text, rollout.text)
        counts = Counter[str]()
        for change in parts:
            counts[change.tag] += len(change.text.split())
        changed = f"−{counts['removed']} +{counts['added']} words"
        if before.text == rollout.text:
            changed = "no changes"
        reward = f"reward {short(before.reward)} → {short(rollout.reward)}"
        letters = f"{letter(before.index)} → {letter(rollout.index)}"
        head = f"{letters}  {reward}   {changed}"
        lines += [[], [(clip(head, width), "label")]]
        if column < LEAST_COLUMN:
            lines += diff_lines(parts, width)
        else:
            texts = (diff_lines(parts, column, ("same", tag)) for tag in ("removed", "added"))
            lines += side_by_side(texts, column, ("  ", ""))
        if len(lines) >= height:
            break
    return lines


# -- the token under the cursor -----------------------------------------------------------------


def token_parts(
    completion: RolloutTokens, token: int, run: RunInfo, width: int
) -> dict[str, list[Line]]:
    """The token's probabilities, ratio, explanation and share of the loss, by name.

    Numbers are of the last pass.
    """
    row = completion.row
    assert row is not None
    text = safe(completion.token_text(token))
    number = bisect_left(completion.tokens, token) + 1
    title = f"← token {number} of {len(row.model_positions)} “{text or EMPTY_SIGN}” →"
    parts = {
        "title": [[(clip(title, width), "headline")]],
        "prob": [probability_line(completion, token, width)],
    }
    if completion.losses:
        if not row.after:
            text = "after the step: not recorded for this answer"
            parts["after"] = labelled([("", text)], LABEL, width, 2)
        parts["ratio"] = [_ratio_line(completion.losses[token])]
        texts = loss_texts(completion, token, run)
        parts |= {name: labelled([text], LABEL, width, 3) for name, text in texts.items()}
    return parts


def fitted(parts: Mapping[str, list[Line]], height: int) -> list[Line]:
    """The parts that fit, without those that `CUT_FIRST` names first."""
    lines = [line for part in parts.values() for line in part]
    count, cut = len(lines), list(CUT_FIRST)
    while len(lines) > height - (len(lines) < count) and cut:
        parts = {name: part for name, part in parts.items() if name != cut[0]}
        lines = [line for part in parts.values() for line in part]
        del cut[0]
    if len(lines) < count:
        lines = lines[: height - 1]
        lines.append([(f"… {count - len(lines)} more lines; z makes room", "label")])
    return lines


def table_lines(view: RolloutsView, width: int, height: int) -> list[Line]:
    """The numbers of the tokens around the cursor, a line each."""
    completion, row = view.completion, view.completion.row if view.completion else None
    if completion is None or row is None or not row.ids or height < LEAST_TABLE:
        return []
    stages, tokens = dict(completion.stages), completion.tokens
    columns = [*stages, *(WIDER if completion.losses else ())]
    widths = {name: max(COLUMN + WIDER.get(name, 0), len(name) + 1) for name in columns}
    for name in CUT_COLUMNS:
        if 5 + LEAST_TOKEN + sum(widths.values()) <= width:
            break
        widths.pop(name, None)
        stages.pop(name, None)
    space = max(LEAST_TOKEN, width - 5 - sum(widths.values()))
    head = "".join(f"{name:>{cells}}" for name, cells in widths.items())
    lines = [[(f"{'':>5}{pad('token', space)}{head}", "label")]]
    at = bisect_left(tokens, view.token)
    cut = len(tokens) > height - 1
    indices = visible([1] * len(tokens), height - 1 - cut, at, top=max(0, at - height // 2))
    for index in indices:
        token = tokens[index]
        text = safe(completion.token_text(token))
        line = [(f"{index + 1:>4} ", "label"), (pad(text or EMPTY_SIGN, space), "text")]
        for name, values in stages.items():
            number = probability(values[token], 2) if token < len(values) else ""
            line.append((f"{number:>{widths[name]}}", "text"))
        if completion.losses:
            loss = completion.losses[token]
            texts = {
                "ratio": _ratio_text(loss.ratio),
                "KL": "" if loss.kl is None else short(loss.kl, 3),
                "gradient": precise(loss.gradient),
            }
            styles = {"ratio": "bold series.clip"} if loss.side != "free" else {}
            line += [
                (f"{text:>{widths[name]}}", styles.get(name, "text"))
                for name, text in texts.items()
                if name in widths
            ]
        lines.append(list_row(line, width, selected=token == view.token))
    if cut:
        text = f"tokens {indices.start + 1}–{indices.stop} of {len(tokens)}, ←→ for more"
        lines.append([(f"{'':>5}{text}", "label")])
    return lines


def _ratio_text(ratio: float) -> str:
    """A ratio with the digits that tell it from 1, as in the panel, where they fit."""
    text = short(ratio, 3)
    return text if len(text) < COLUMN else narrow(ratio, COLUMN - 1)


def probability_line(completion: RolloutTokens, token: int, width: int) -> Line:
    """The token's probability from the reference to the step's end, with the digits that fit."""
    stages = completion.stages
    available = {name: values[token] for name, values in stages.items() if token < len(values)}
    digits = 3 if LABEL + 12 * len(available) <= width else 2
    line = [(f"{'prob.':<{LABEL}}", "label")]
    for name, value in available.items():
        gap = "" if len(line) == 1 else "  "
        line += [(f"{gap}{name} ", "label"), (probability(value, digits), "headline")]
    return line


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
    none = " (no numbers here)" if view.loaded and not view.shades else ""
    heat = f"heat: {HEAT_NAMES[view.mode]}{none}"
    if view.highlight is None:
        return [heat]
    value = short(view.highlight.value, 3)
    if view.measure == "clipped":
        value = f"{view.highlights.index(view.highlight) + 1} of {len(view.highlights)}"
    name = f"{MEASURES[view.measure]} {value}"
    note = f"{name}, step {view.cursor[0]}"
    return [f"{note} · {heat}", f"{note} · {HEAT_NAMES[view.mode]}", note, name]


# What fills the panel of an answer below the numbers of its token, the most important first.
SECTIONS: tuple[Section, ...] = (sibling_lines, visit_lines, table_lines)


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
    largest = largest_scores(view.step) if view.step else {}
    lines += [[], *function_lines(rollout, largest, width)]
    marks = {"✓": "good", "✗": "bad", "·": "label"}
    rule = view.step.run.right if view.step else ""
    labels = right_verdict(rollout, group, rule) + verdicts(rollout, group)
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


def group_reward_lines(view: RolloutsView, width: int) -> list[Line]:
    """The reward of each answer and what each function gave it, as far as columns fit."""
    group = view.group
    if group is None or len(group.rollouts) < 2 or width < 3 + REWARD_COLUMN:
        return []
    names = ["reward", *(reward.name for reward in group.rollouts[0].rewards)]
    names = names[: (width - 3) // REWARD_COLUMN]
    others = min(16, (width - 3 - REWARD_COLUMN) // max(1, len(names) - 1))
    sizes = [REWARD_COLUMN, *[others] * (len(names) - 1)]
    # a name that is too long is in two lines, divided at its last `_`
    parts = [
        name.rpartition("_")[::2] if cell_len(name) >= size else ("", name)
        for name, size in zip(names, sizes, strict=True)
    ]
    lines = [[], [("all answers", "label")]]
    for texts in zip(*parts, strict=True):
        heads = (" " + pad(t, size - 1, ">") for t, size in zip(texts, sizes, strict=True))
        lines += [[("   " + "".join(heads), "label")]] * any(texts)
    for position, rollout in enumerate(group.rollouts):
        values = {reward.name: reward.value for reward in rollout.rewards}
        texts = [short(rollout.reward), *(short(values.get(name)) for name in names[1:])]
        line = [
            (f"{letter(rollout.index):>2} ", "label"),
            *((f"{text:>{size}}", "text") for text, size in zip(texts, sizes, strict=True)),
        ]
        lines.append(list_row(line, width, selected=position == view.rollout_at))
    return lines


def function_lines(rollout: RolloutView, largest: Mapping[str, float], width: int) -> list[Line]:
    """Each reward function with bar, value, weight and reason.

    A bar is full at the largest score that the function gave in this step.
    """
    lines = []
    texts = [*map(score, rollout.rewards)]
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
            weight = short(reward.weight) if reward.weight == reward.weight else "not recorded"
            lines.append([(f"  × weight {weight}", "label")])
        lines += paragraph(reward.reason, width, 99, "text", ("  ", "")) if reward.reason else []
    return lines
