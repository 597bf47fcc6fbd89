"""The one place that makes text of models, users and files safe to display, at the right width.

`safe` is for texts: escape sequences, control and bidirectional characters, lone surrogates and
invisible characters become visible signs, and sequences whose width terminals disagree on (joined
emoji, flags) are split. `protect_terminal` is for streams: it guards against the text that was not
made safe, and against what other libraries print. Fields and Textual's output have guards as well,
which keep indices and widths.
"""

import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import compress, takewhile
from typing import IO, Any

from rich.cells import cell_len as _rich_cell_len

ELLIPSIS = "…"
JOINER_SIGN = "⁀"
NEWLINE_SIGN = "⏎"
MAX_MARKS = 2  # combining marks of a character
# A line breaks at these; `p = .010` and `.1 GB` stay whole.
SPACE = re.compile(r"(?<![=<]) (?![=<]|[GM]B\b)")
# What no line end divides: a tag such as <answer>, and a number.
UNDIVIDED = re.compile(r"</?\w{1,24}>|\d(?:[\d.,]{0,22}\d)?")
LONGEST = 28  # characters of what is not divided, and more

_TAB = "    "
_SUSPECT = re.compile(
    r"[^\x20-\x7e\u00a1-\u00ac\u00ae-\u02ff\u0370-\u0482\u3040-\u30ff\u4e00-\u9fff]"
)
# Controls but tab and line ends, lone surrogates, and what hides or reorders text (category Cf).
_ACTING = (
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
_ACTING_CHARACTER = re.compile(f"[{_ACTING}]")
_ACTING_ON_A_LINE = re.compile(f"[{_ACTING}\n\r]")
# Colours and progress bars pass a stream: clear a line, move up, hide the cursor, go back.
_GUARDED = re.compile(rf"(\x1b\[[0-9;]*[mKA]|\x1b\[\?25[hl]|\x08)|[{_ACTING}]")


@lru_cache(maxsize=4096)
def _sign(char: str) -> str:
    """Return the visible form of one suspect character, if its neighbours do not matter."""
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if code == 0x200D:
        return JOINER_SIGN
    if code in (0xFE0E, 0xFE0F):
        return ""
    if 0x1F1E6 <= code <= 0x1F1FF:
        return chr(0xFF21 + code - 0x1F1E6)
    if 0x1F3FB <= code <= 0x1F3FF:
        return JOINER_SIGN + char
    category = unicodedata.category(char)
    if category in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    if category == "Zs":
        return " "
    if category in ("Mn", "Me"):
        return char
    if _rich_cell_len(char) == 0:
        return f"\\u{code:04x}"
    return char


def safe(text: str, newline: str = NEWLINE_SIGN) -> str:
    """Make everything in the text visible and harmless; `newline` replaces a line end."""
    if text.isascii() and text.isprintable():
        return text
    text = text.replace("\r\n", "\n").replace("\t", _TAB)
    return newline.join(_clean(part) for part in text.split("\n"))


def _clean(text: str) -> str:
    marks = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal marks
        char = match.group()
        if char in "\ufe0e\ufe0f" or unicodedata.category(char) not in ("Mn", "Me"):
            return _sign(char)
        position = match.start()
        if position == 0:
            marks = 1
            return "◌" + char
        follows = unicodedata.category(text[position - 1]) in ("Mn", "Me")
        marks = marks + 1 if follows else 1
        return char if marks <= MAX_MARKS else ""

    return _SUSPECT.sub(replace, text)


@lru_cache(maxsize=1024)
def safe_by_character(text: str) -> str:
    """Make a field's text safe by one sign for each character, so that indices stay."""
    if text.isprintable():
        return text
    signs = {char: _sign(char) for char in _ACTING_ON_A_LINE.findall(text)}
    return text.translate({ord(c): s if len(s) == 1 else "\ufffd" for c, s in signs.items()})


def without_acting(text: str) -> str:
    """Leave out what a terminal would obey; these characters take no cells, so that widths stay."""
    if text.isprintable():
        return text
    return _ACTING_CHARACTER.sub(
        lambda char: "\ufffd" if unicodedata.category(char[0]) == "Cs" else "", text
    )


class SafeStream:
    """A text stream to a terminal in which only colours and progress bars are obeyed."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text, with everything else that a terminal would obey made visible."""
        if not text.isprintable():
            text = _GUARDED.sub(lambda match: match[1] or _sign(match[0]), text)
        return self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def protect_terminal() -> None:
    """Let nothing act on the terminal that this program or a library prints."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream.isatty():
            setattr(sys, name, SafeStream(stream))


def cell_len(text: str) -> int:
    """Return the number of terminal cells of safe text."""
    return len(text) if text.isascii() else _rich_cell_len(text)


def _fitting(text: str, width: int) -> int:
    """Return how many leading characters fit into `width` cells, marks kept with their base."""
    if text.isascii():
        return min(len(text), width)
    used = 0
    for position, char in enumerate(text):
        used += _rich_cell_len(char)
        if used > width:
            return position
    return len(text)


def clip(text: str, width: int) -> str:
    """Make safe and cut to `width` cells; a cut text ends in `…`."""
    if width <= 0:
        return ""
    cut = len(text) > 8 * width + 64
    text = safe(text[: 8 * width + 64])
    if not cut and cell_len(text) <= width:
        return text
    return text[: _fitting(text, width - 1)] + ELLIPSIS


def clip_middle(text: str, width: int) -> str:
    """Make safe and cut to `width` cells; a cut text has `…` in the middle."""
    text = safe(text)
    if width < 3 or cell_len(text) <= width:
        return clip(text, width)
    return clip(text, width - width // 2) + clip_start(text, width // 2 + 1)[1:]


def clip_start(text: str, width: int) -> str:
    """Make safe and keep the last `width` cells; a cut text begins with `…`."""
    if width <= 0:
        return ""
    cut = len(text) > 8 * width + 64
    text = safe(text[-(8 * width + 64) :])
    if not cut and cell_len(text) <= width:
        return text
    return ELLIPSIS + text[len(text) - _fitting(text[::-1], width - 1) :]


def clip_distinct(names: Sequence[str], width: int, *, by_words: bool = True) -> list[str]:
    """Cut names to `width` cells so that different ones stay different.

    With `by_words`, words that all have at the end are left out first, then those at the start and
    between, without a `…`. A number in front tells names apart where nothing else does; all are
    empty where that cannot be.
    """
    names = [*map(safe, names)]
    count = len({*names})
    if count < 2 or max(map(cell_len, names)) <= width:
        return [clip_middle(name, width) for name in names]
    parts = [name.split() for name in names]
    head, tail = _alike(parts), _alike([name[::-1] for name in parts])
    forms = [[name[:-tail] for name in parts]] if tail else []
    forms.append([name[head : len(name) - tail] for name in parts])
    if len({*map(len, parts)}) == 1:
        differs = [len({*column}) > 1 for column in zip(*parts, strict=True)]
        forms.append([[*compress(name, differs)] for name in parts])
    shorter = [[" ".join(name).rstrip(",") for name in form] for form in forms]
    shorter = shorter if by_words else [names]
    fitting = (form for form in shorter if max(map(cell_len, form)) <= width)
    cuts = (clip, clip_start, clip_middle)
    cut = ([function(name, width) for name in shorter[-1]] for function in cuts)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names), 1)}
    numbered = [clip(f"{numbers[name]} {name}", width) for name in names]
    return next(
        (
            labels
            for labels in (*fitting, *cut, numbered)
            if len({*labels}) == count and all(labels)
        ),
        [""] * len(names),
    )


def _alike(rows: Sequence[Sequence[str]]) -> int:
    """How many first words all rows have in common."""
    columns = zip(*rows, strict=False)
    return sum(1 for _ in takewhile(lambda column: len({*column}) == 1, columns))


def excerpt(text: str, start: int, end: int, width: int) -> tuple[str, str, str]:
    """Return what is before, in and after a part of the text, cut to `width` cells around it."""
    part = clip(text[start:end], width)
    available = width - cell_len(part)
    after = clip(text[end:], available - cell_len(clip_start(text[:start], available // 3)))
    return clip_start(text[:start], available - cell_len(after)), part, after


def pad(text: str, width: int, align: str = "<") -> str:
    """Clip to `width` cells and pad with spaces; align is `<`, `>` or `^`."""
    text = clip(text, width)
    available = max(0, width - cell_len(text))
    left = {"<": 0, ">": available, "^": available // 2}[align]
    return " " * left + text + " " * (available - left)


def wrap(text: str, width: int, max_lines: int, *, from_end: bool = False) -> list[str]:
    """Wrap safe text into at most `max_lines` lines of `width` cells, at spaces if possible.

    Overflow is cut with `…`, at the end, or at the start if `from_end`.
    """
    if width <= 0 or max_lines <= 0:
        return []
    available = width * max_lines
    over = len(text) > 8 * available + 256
    if over:
        text = text[-(8 * available + 256) :] if from_end else text[: 8 * available + 256]
    lines: list[str] = []
    for paragraph in safe(text, "\n").split("\n"):
        lines.extend(_break(paragraph, width))
        if len(lines) > max_lines and not from_end:
            break
    if len(lines) <= max_lines and not over:
        return lines
    if from_end:
        cut = lines[-max_lines:]
        first = ELLIPSIS + cut[0]
        cut[0] = first[: _fitting(first, width)]
        return cut
    cut = lines[:max_lines]
    last = cut[-1]
    cut[-1] = last[: _fitting(last, width - 1)].rstrip() + ELLIPSIS
    return cut


def _before_undivided(text: str, end: int) -> int:
    """Where the tag or number begins that a break at `end` would divide; else `end`."""
    for part in UNDIVIDED.finditer(text, max(0, end - LONGEST), end + LONGEST):
        least = 0 if part[0].startswith("<") else end // 2  # a number may be long
        if least < part.start() < end < part.end():
            return part.start()
    return end


def _break(text: str, width: int) -> list[str]:
    lines = []
    while (end := _fitting(text, width)) < len(text):
        end = max(1, end)
        spaces = (space.start() for space in SPACE.finditer(text, width // 2 + 1, end + 4))
        end = max((space for space in spaces if space <= end), default=_before_undivided(text, end))
        lines.append(text[:end])
        text = text[end:].removeprefix(" ")
    lines.append(text)
    return lines
