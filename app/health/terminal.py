"""Capabilities of the terminal: size, colours, Unicode, and clipboard access."""

import locale
import os
import re
import select
import shutil
import sys
import termios
import time
import tty
from typing import Final

from grpo_tui.app.health.facts import Fact, Level

ASK_CLIPBOARD: Final = b"\x1bP+q4d73\x1b\\\x1b[c"
"""Asks for the capability `Ms`, then for the device attributes, which every terminal sends."""
ANSWERS: Final = 0.3
SMALLEST: Final = (80, 24)


def facts() -> list[Fact]:
    """Report size, colours, Unicode and clipboard; less if no terminal is attached."""
    if not sys.stdout.isatty() and not sys.stderr.isatty():
        words = "none attached; the workbench needs one, all other verbs do not"
        return [Fact(area="Terminal", name="terminal", found=words), unicode()]
    return [size(), colours(), unicode(), clipboard()]


def size() -> Fact:
    """Columns and rows."""
    columns, rows = shutil.get_terminal_size()
    small = columns < SMALLEST[0] or rows < SMALLEST[1]
    return Fact(
        area="Terminal",
        name="size",
        found=f"{columns} columns, {rows} rows",
        level=Level.WARNING if small else Level.FINE,
        remedy="The workbench needs at least 80x24: enlarge the window." * small,
        numbers={"columns": columns, "rows": rows},
    )


def colours() -> Fact:
    """Report the number of colours that the environment declares."""
    term = os.environ.get("TERM", "")
    if os.environ.get("NO_COLOR"):
        words, count, remedy = "off (NO_COLOR is set)", 0, ""
    elif os.environ.get("COLORTERM", "").lower() in {"truecolor", "24bit"}:
        words, count, remedy = "16 million", 1 << 24, ""
    elif "256" in term or term.endswith("-direct") or "kitty" in term or "ghostty" in term:
        words, count, remedy = "256 and more", 256, ""
    else:
        words, count = f"16 (TERM={term or 'unset'})", 16
        remedy = "If the terminal supports more: export COLORTERM=truecolor."
    level = Level.WARNING if remedy else Level.FINE
    return Fact(
        area="Terminal",
        name="colours",
        found=words,
        level=level,
        remedy=remedy,
        numbers={"colours": count, "term": term},
    )


def unicode() -> Fact:
    """Report whether block and Braille characters can be written."""
    encoding = (getattr(sys.stdout, "encoding", None) or locale.getpreferredencoding(False)).lower()
    able = encoding.replace("-", "").replace("_", "") == "utf8"
    return Fact(
        area="Terminal",
        name="Unicode",
        found=f"yes ({encoding})" if able else f"no, the encoding is {encoding}",
        level=Level.FINE if able else Level.WARNING,
        remedy="" if able else "Charts will be drawn in ASCII: export LANG=C.UTF-8.",
        numbers={"encoding": encoding},
    )


def clipboard() -> Fact:
    """Report whether the terminal declares OSC 52 clipboard access."""
    answer = ask(ASK_CLIPBOARD)
    able = takes_clipboard(answer)
    if able is None:
        words = "the terminal did not answer; copying may work all the same"
    elif able:
        words = "yes, copying works over SSH as well"
    else:
        words = "the terminal does not offer it"
    remedy = ""
    if able is False:
        remedy = "Copy with the terminal's own selection (hold Shift), or allow OSC 52 in it."
        if os.environ.get("TMUX"):
            remedy = "In tmux: set -s set-clipboard on."
    return Fact(
        area="Terminal", name="OSC 52", found=words, remedy=remedy, numbers={"clipboard": able}
    )


def takes_clipboard(answer: bytes) -> bool | None:
    """Parse an answer for `Ms`, or for 52 among the device attributes; None means no answer."""
    if re.search(rb"\x1bP1\+r4[dD]73", answer):
        return True
    attributes = re.search(rb"\x1b\[\?([\d;]*)c", answer)
    if attributes is None:
        return None
    return b"52" in attributes[1].split(b";")


def ask(question: bytes) -> bytes:
    """Write a query to the terminal and read until its attributes arrive or the timeout ends."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return b""
    answer = b""
    try:
        before = termios.tcgetattr(terminal)
        try:
            tty.setcbreak(terminal, termios.TCSANOW)
            os.write(terminal, question)
            end = time.monotonic() + ANSWERS
            while not re.search(rb"\x1b\[\?[\d;]*c", answer):
                left = end - time.monotonic()
                if left <= 0 or not select.select([terminal], [], [], left)[0]:
                    break
                answer += os.read(terminal, 1024)
        finally:
            termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
    except (OSError, termios.error):
        return answer
    finally:
        os.close(terminal)
    return answer
