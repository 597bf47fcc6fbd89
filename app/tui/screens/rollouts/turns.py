"""A dialogue on Rollouts: its turns, folded to a line or open with tokens, and what was replied."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from grpo_engine.events import Span
from grpo_tui.app.inspector.dialogue import CALLS, Said, parts
from grpo_tui.app.inspector.layout import Line as TokenLine
from grpo_tui.app.inspector.layout import Piece, lay_out
from grpo_tui.app.text.numbers import seconds, short
from grpo_tui.app.text.safe_text import cell_len, clip, safe, wrap
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.widgets.panel import Line

HEADS = ("folded", "open")
UNFOLDS, FOLDS = "   space unfolds all", "   space folds all"
MOST_REPLIED = 8  # lines of a reply that are shown


@dataclass(frozen=True, slots=True)
class Note:
    """A line of a dialogue without tokens of its own; `token` is the first one of its turn."""

    kind: Literal["folded", "open", "said", "reply", "told", "error"]
    text: str
    token: int
    reply: str = ""
    right: str = ""
    failed: bool = False


def turn_at(spans: Sequence[Span], token: int) -> int:
    """The turn of a token."""
    return next((one.turn for one in reversed(spans) if one.start <= token), 0)


def dialogue_rows(
    text: str, spans: Sequence[Span], texts: Sequence[str], width: int, opened: int | None
) -> tuple[TokenLine | Note, ...]:
    """The lines of a dialogue; only the turn `opened` has its tokens, or every turn if None.

    `texts` are those of the tokens, or one text if the tokens are unknown.
    """
    rows: list[TokenLine | Note] = []
    count = 1 + max((span.turn for span in spans), default=0)
    known = len(texts) == sum(span.length for span in spans)
    for turn, said in groupby(parts(text, spans), lambda one: one.span.turn if one.span else count):
        members = list(said)
        if opened is None or turn == opened:
            key = FOLDS if opened is None else UNFOLDS
            key = key if count > 1 and (opened is not None or not rows) else ""
            rows += _open(turn, count, members, texts if known else None, width, key)
        else:
            rows.append(_folded(turn, members, width))
    return tuple(rows)


def _head(said: Sequence[Said]) -> tuple[int, str, bool]:
    """A turn's first token, its reward in words, and whether its environment failed."""
    spans = [one.span for one in said if one.span is not None]
    failed = any(span.error for span in spans)
    rewards = [span.reward for span in spans if span.reward is not None]
    right = "failed" if failed else f"reward {short(sum(rewards))}" if rewards else ""
    return (spans[0].start if spans else 0), right, failed


def _folded(turn: int, said: Sequence[Said], width: int) -> Note:
    token, right, failed = _head(said)
    own, heard = (
        "".join(one.text for one in said if one.is_reply == is_reply)[: 8 * width]
        for is_reply in (False, True)
    )
    if any(one.has_calls for one in said):
        own = CALLS.sub("", own)
    elif heard:
        heard = f"‹{heard}›"
    own, heard = (" ".join(safe(text, " ").split()) for text in (own, heard))
    room = width - len(right) - 8
    heard = clip(heard, max(room // 2, room - cell_len(own) - 3))
    return Note("folded", f"▸ {turn + 1:>2}  {clip(own, room - cell_len(heard) - 3)}", token,
                f" {heard}", right, failed)  # fmt: skip


def _open(
    turn: int, count: int, said: Sequence[Said], texts: Sequence[str] | None, width: int, key: str
) -> Iterator[TokenLine | Note]:
    token, right, failed = _head(said)
    length = sum(one.span.length for one in said if one.span and not one.is_reply)
    tokens = f", {length} token{'s' if length != 1 else ''}" if length else ""
    yield Note("open", f"▾ turn {turn + 1} of {count}{tokens}{key}", token,
               right=right, failed=failed)  # fmt: skip
    for one in said:
        if one.span is None or (not one.is_reply and texts is None):
            yield from (Note("said", part, token) for part in wrap(one.text, width, 99))
        elif not one.is_reply:
            start, end = one.span.start, one.span.start + one.span.length
            for line in lay_out(texts[start:end] if texts else (), width):
                yield tuple(Piece(start + each.token, each.text, each.cells) for each in line)
        else:
            yield from _reply(one, one.span, token, width)


def _reply(said: Said, span: Span, token: int, width: int) -> Iterator[Note]:
    """What the environment replied, what it told of itself, and why it failed."""
    if said.has_calls:
        replied = [clip(line, width - 2) for line in said.text.splitlines()[:MOST_REPLIED]]
    else:
        replied = wrap(f"‹{said.text}›", width - 2, MOST_REPLIED) if said.text else []
    yield from (Note("reply", f"  {part}", token) for part in replied)
    told = [f"{name} {value}" for name, value in span.info.items()]
    if span.ms is not None:
        told.append(f"{span.ms:.0f} ms" if span.ms < 1000 else seconds(span.ms / 1000))
    if told:
        yield Note("told", clip(f"  {span.name}: {'   '.join(told)}", width), token)
    yield from (
        Note("error", f"  {part}", token) for part in wrap(span.error, width - 2, 4) if part
    )


def note_line(note: Note, width: int, palette: Palette) -> Line:
    """A line between the tokens."""
    label, text = style(palette.label), style(palette.text)
    looks = {"folded": text, "said": text, "error": style(palette.bad)}
    line: Line = [(note.text, looks.get(note.kind, label)), (note.reply, label)]
    gap = width - sum(cell_len(part) for part, _ in line) - cell_len(note.right)
    right = style(palette.bad if note.failed else palette.headline)
    return [*line, (" " * max(1, gap), None), (note.right, right)] if note.right else line
