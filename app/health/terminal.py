"""Capabilities of the terminal: size, colours and Unicode."""

import locale
import os
import shutil
import sys
from typing import Final

from grpo_tui.app.health.checks import Check

SMALLEST: Final = (80, 24)


def checks() -> list[Check]:
    """Size, colours and Unicode; less if no terminal is attached."""
    if not sys.stdout.isatty() and not sys.stderr.isatty():
        text = "none attached; the workbench needs one, all other verbs do not"
        return [Check("terminal", text), unicode()]
    return [size(), colours(), unicode()]


def size() -> Check:
    """Columns and rows."""
    columns, rows = shutil.get_terminal_size()
    is_small = columns < SMALLEST[0] or rows < SMALLEST[1]
    remedy = "The workbench needs at least 80x24: enlarge the window." * is_small
    numbers = {"columns": columns, "rows": rows}
    return Check("size", f"{columns} columns, {rows} rows", remedy, numbers=numbers)


def colours() -> Check:
    """The number of colours that the environment declares."""
    term, remedy = os.environ.get("TERM", ""), ""
    if os.environ.get("NO_COLOR"):
        text, count = "off (NO_COLOR is set)", 0
    elif os.environ.get("COLORTERM", "").lower() in {"truecolor", "24bit"}:
        text, count = "16 million", 1 << 24
    elif "256" in term or term.endswith("-direct") or "kitty" in term or "ghostty" in term:
        text, count = "256 and more", 256
    else:
        text, count = f"16 (TERM={term or 'unset'})", 16
        remedy = "If the terminal supports more: export COLORTERM=truecolor."
    return Check("colours", text, remedy, numbers={"colours": count, "term": term})


def unicode() -> Check:
    """Whether block and Braille characters can be written."""
    encoding = (getattr(sys.stdout, "encoding", None) or locale.getpreferredencoding(False)).lower()
    numbers = {"encoding": encoding}
    if encoding.replace("-", "").replace("_", "") == "utf8":
        return Check("Unicode", f"yes ({encoding})", numbers=numbers)
    remedy = "Charts will be drawn in ASCII: export LANG=C.UTF-8."
    return Check("Unicode", f"no, the encoding is {encoding}", remedy, numbers=numbers)
