r"""Reversible escapes for text that SQLite or CSV cannot hold.

NUL is written `\x00` and a lone surrogate `\udXXX`; backslashes before either, or before text that
looks like either, are doubled. All other text is stored unchanged.
"""

import math
import re
import time
import unicodedata
from datetime import UTC, datetime
from functools import cache


class Escapes:
    """Writes some characters as escapes, and reads them back exactly.

    `hostile` is a class of characters; `tails` matches what follows the backslash of their escapes.
    """

    def __init__(self, hostile: str, tails: str) -> None:
        self._hostile = re.compile(f"[{hostile}]")
        self._encode = re.compile(f"(\\\\*)(?:([{hostile}])|({tails}))")
        self._decode = re.compile(rf"(\\+)({tails})")

    def escape(self, text: str) -> str:
        """Escape text; `unescape` restores it exactly."""
        if "\\" not in text and not self._hostile.search(text):
            return text
        return self._encode.sub(_escape_match, text)

    def unescape(self, text: str) -> str:
        """Restore the text that was given to `escape`."""
        return self._decode.sub(_unescape_match, text) if "\\" in text else text


def _escape_match(match: re.Match[str]) -> str:
    slashes, hostile, tail = match.groups()
    if hostile is None:
        return str(slashes) * 2 + str(tail)
    return str(slashes) * 2 + escape_of(hostile)


def escape_of(character: str) -> str:
    """The escape of a character, such as `\\x1b` or `\\u202e`."""
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def _unescape_match(match: re.Match[str]) -> str:
    slashes, tail = match.groups()
    unescaped = slashes[: len(slashes) // 2]
    if len(slashes) % 2 == 0:
        return unescaped + str(tail)
    return unescaped + chr(int(tail[1:], 16))


_STORED = Escapes("\x00\ud800-\udfff", "x00|ud[89a-f][0-9a-f]{2}")
unescape = _STORED.unescape


def escape(text: str) -> str:
    """Escape text for the store; `unescape` restores it exactly. NULL stays NULL."""
    if not text or (text.isascii() and "\0" not in text and "\\" not in text):
        return text
    return _STORED.escape(text)


@cache
def _visible_form(character: str) -> str:
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return {"\n": "↵", "\t": " "}.get(character) or escape_of(character)
    return character


def visible(text: str) -> str:
    """Return untrusted text on one line, with control and bidirectional characters made visible."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible_form, text))


def now_iso() -> str:
    """Return the current time as stored: ISO, UTC."""
    return iso(time.time())


def iso(at: float) -> str:
    """Format seconds as ISO text, UTC, with milliseconds; a number that is no time as it is."""
    try:
        moment = datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        return str(at)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds(text: str) -> float:
    """Parse ISO text to seconds; NaN for another text."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return math.nan


def ago(at: float, now: float) -> str:
    """Format an age in the largest fitting unit; `?` for NaN."""
    if math.isnan(at):
        return "?"
    span = max(0.0, now - at)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if span >= size:
            return f"{span / size:.0f} {unit}"
    return f"{span:.0f} s"
