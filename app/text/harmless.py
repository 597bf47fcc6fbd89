"""The last guard of a terminal: characters that it would obey do not get through.

Every place makes its texts safe by itself; this is for the one that was forgotten, and for what
other libraries print.
"""

import re
import sys
import unicodedata
from functools import lru_cache
from typing import IO, Any

from grpo_tui.experiments.db.texts import escape_of

# control characters but tab and line ends, lone surrogates, what reorders or hides text
_ACTING = (
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb"
)
ACTING = re.compile(f"[{_ACTING}]")
# obeyed: colours, and what progress bars do: clear a line, move up, hide the cursor, go back
OBEYED = re.compile(rf"(\x1b\[[0-9;]*[mKA]|\x1b\[\?25[hl]|\x08)|[{_ACTING}]")


def without_acting(text: str) -> str:
    """Leave out what a terminal would obey; these characters take no cells."""
    if text.isprintable():
        return text
    return ACTING.sub(lambda char: "\ufffd" if unicodedata.category(char[0]) == "Cs" else "", text)


@lru_cache(maxsize=1024)
def signs(text: str) -> str:
    """Replace each character that a terminal would obey by one visible sign; indices stay."""
    return text if text.isprintable() else re.sub(f"[{_ACTING}\n\r]", _sign, text)


def _sign(match: re.Match[str]) -> str:
    code = ord(match.group())
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else "\ufffd"


def protect_terminal() -> None:
    """Let nothing act on the terminal that this program or a library prints."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream.isatty():
            setattr(sys, name, HarmlessStream(stream))


class HarmlessStream:
    """A text stream to a terminal in which only colours and progress bars are obeyed."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text, with everything else that a terminal would obey made visible."""
        if isinstance(text, str) and not text.isprintable():
            text = OBEYED.sub(lambda match: match.group(1) or escape_of(match.group()), text)
        return self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
