r"""Text that survives: reversible escapes for what SQLite and CSV cannot hold.

NUL is written `\x00` and a lone surrogate `\udXXX`; the backslashes in front of either, or of text
that only looks like one of them, are doubled. All other text stays as it is.
"""

import re
import unicodedata
from datetime import UTC, datetime
from typing import Annotated

_HOSTILE = re.compile("[\x00\ud800-\udfff]")
_ENCODE = re.compile("(\\\\*)(?:([\x00\ud800-\udfff])|(x00|ud[89a-f][0-9a-f]{2}))")
_DECODE = re.compile(r"(\\+)(x00|ud[89a-f][0-9a-f]{2})")

Escaped = Annotated[str, "escaped"]  # a column whose text is stored by `escape`


def escape(text: str) -> str:
    """Make the text storable; `unescape` gives it back exactly."""
    if "\\" not in text and not _HOSTILE.search(text):
        return text
    return _ENCODE.sub(_escape_match, text)


def _escape_match(match: re.Match[str]) -> str:
    slashes, hostile, tail = match.groups()
    if hostile is None:
        return str(slashes) * 2 + str(tail)
    return str(slashes) * 2 + ("\\x00" if hostile == "\x00" else f"\\u{ord(hostile):04x}")


def unescape(text: str) -> str:
    """Give back the text that `escape` was given."""
    return _DECODE.sub(_unescape_match, text) if "\\" in text else text


def _unescape_match(match: re.Match[str]) -> str:
    slashes, tail = match.groups()
    kept = slashes[: len(slashes) // 2]
    if len(slashes) % 2 == 0:
        return kept + str(tail)
    return kept + ("\x00" if tail == "x00" else chr(int(tail[1:], 16)))


class _Visible(dict[int, str]):
    """The visible form of each character, worked out when it is first met."""

    def __missing__(self, code: int) -> str:
        shown = chr(code)
        if unicodedata.category(shown) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            shown = f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
        self[code] = shown
        return shown


_VISIBLE = _Visible({ord("\n"): "↵", ord("\t"): " "})


def visible(text: str) -> str:
    """Untrusted text on one line, with control and bidirectional characters made visible."""
    if text.isascii() and text.isprintable():
        return text
    return text.translate(_VISIBLE)


def now_iso() -> str:
    """The time, UTC, as it is stored."""
    return iso(datetime.now(UTC).timestamp())


def iso(at: float) -> str:
    """A time in seconds as ISO text, UTC, to the millisecond."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds(text: str) -> float:
    """The time in seconds of ISO text."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def ago(at: float, now: float) -> str:
    """How long ago, in the largest fitting unit."""
    span = max(0.0, now - at)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if span >= size:
            return f"{span / size:.0f} {unit}"
    return f"{span:.0f} s"
