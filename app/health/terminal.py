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

from grpo_tui.app.health.checks import Check

ASK_CLIPBOARD: Final = b"\x1bP+q4d73\x1b\\\x1b[c"
"""Asks for the capability `Ms`, then for the device attributes, which every terminal sends."""
ANSWERS: Final = 0.3
SMALLEST: Final = (80, 24)


def checks() -> list[Check]:
    """Size, colours, Unicode and clipboard; less if no terminal is attached."""
    if not sys.stdout.isatty() and not sys.stderr.isatty():
        text = "none attached; the workbench needs one, all other verbs do not"
        return [Check("terminal", text), unicode()]
    return [size(), colours(), unicode(), clipboard()]


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


def clipboard() -> Check:
    """Whether the terminal declares OSC 52 clipboard access."""
    able = supports_clipboard(ask(ASK_CLIPBOARD))
    if able is None:
        text = "the terminal did not answer; copying may work all the same"
    elif able:
        text = "yes, copying works over SSH as well"
    elif os.environ.get("TMUX"):
        text = "not offered; in tmux: set -s set-clipboard on"
    else:
        text = "not offered; copy with the terminal's own selection (hold Shift), or allow OSC 52"
    return Check("OSC 52", text, numbers={"clipboard": able})


def supports_clipboard(answer: bytes) -> bool | None:
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
