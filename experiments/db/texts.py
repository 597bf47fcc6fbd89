r"""Reversible escapes for text that SQLite cannot hold, and times as text.

NUL is written `\x00` and a lone surrogate `\udXXX`; backslashes before either, or before text that
looks like either, are doubled. All other text is stored unchanged.
"""

import math
import re
import time
import unicodedata
from datetime import UTC, datetime
from functools import cache, lru_cache

_SPECIAL = re.compile("[\\\\\x00\ud800-\udfff]")
_ESCAPED = re.compile("(\\\\*)(?:([\x00\ud800-\udfff])|(x00|ud[89a-f][0-9a-f]{2}))")
_ESCAPES = re.compile(r"(\\+)(x00|ud[89a-f][0-9a-f]{2})")


def escape(text: str) -> str:
    """Escape text for the store; `unescape` restores it exactly. NULL stays NULL."""
    if not text or not _SPECIAL.search(text):
        return text
    return _ESCAPED.sub(_escape_match, text)


def _escape_match(match: re.Match[str]) -> str:
    slashes, hostile, tail = match.groups()
    return f"{slashes}{slashes}{tail if hostile is None else escape_of(hostile)}"


def unescape(text: str) -> str:
    """Restore the text that was given to `escape`."""
    return _ESCAPES.sub(_unescape_match, text) if "\\" in text else text


def _unescape_match(match: re.Match[str]) -> str:
    slashes, tail = match.groups()
    count, is_escape = divmod(len(slashes), 2)
    return "\\" * count + (chr(int(tail[1:], 16)) if is_escape else tail)


def words_pattern(text: str) -> str:
    """The pattern of a text whose case and spacing do not count."""
    return "(?i)" + r"\s+".join(map(re.escape, text.split()))


def contains_words(pattern: str, stored: bytes | None) -> bool:
    """Whether a stored text matches a pattern that is escaped as it is."""
    text = unescape((stored or b"").decode("utf-8", "replace"))
    return _compiled(pattern).search(text) is not None


@lru_cache(maxsize=8)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(unescape(pattern))


def escape_of(character: str) -> str:
    """The escape of a character, such as `\\x1b` or `\\u202e`."""
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


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
    """Format seconds as ISO text, UTC, with milliseconds; a number out of range as it is."""
    try:
        time_utc = datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        return str(at)
    return time_utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds(text: str) -> float:
    """Parse ISO text to seconds; NaN for any other text."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return math.nan
