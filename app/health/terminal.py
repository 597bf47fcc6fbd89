"""Capabilities of the terminal: size, colours and Unicode."""

import locale
import shutil
import sys
from typing import Final

from rich.console import Console

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
    return Check("size", f"{columns} columns, {rows} rows", remedy)


def colours() -> Check:
    """The colours that the environment declares."""
    system = Console(force_terminal=True).color_system or "none"
    remedy = "If the terminal supports more: export COLORTERM=truecolor."
    return Check("colours", system, remedy * (system in ("none", "standard")))


def unicode() -> Check:
    """Whether block and Braille characters can be written."""
    encoding = (getattr(sys.stdout, "encoding", None) or locale.getpreferredencoding(False)).lower()
    if encoding.replace("-", "").replace("_", "") == "utf8":
        return Check("Unicode", f"yes ({encoding})")
    remedy = "Charts will be drawn in ASCII: export LANG=C.UTF-8."
    return Check("Unicode", f"no, the encoding is {encoding}", remedy)
