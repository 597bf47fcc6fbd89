"""Where the terminal is, whether it still exists, and copying text."""

import errno
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual.app import App

MOST_OSC52 = 70_000
# clipboard tools, and the variable that says that there is such a clipboard
TOOLS = (("pbcopy", ""), ("wl-copy", "WAYLAND_DISPLAY"), ("xclip -selection clipboard", "DISPLAY"))


def over_ssh() -> bool:
    """Whether the terminal is on another machine."""
    return bool(os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY"))


def clipboard_tool() -> list[str]:
    """The command that fills the clipboard of this machine; empty if there is none."""
    tools = (tool.split() for tool, needs in TOOLS if not needs or os.environ.get(needs))
    usable = [tool for tool in tools if shutil.which(tool[0])]
    return usable[0] if usable and not over_ssh() else []


def copy(app: "App[int]", text: str) -> str:
    """Copy in the best available way; return a short message on the result."""
    if not text:
        return "Nothing is selected here that could be copied."
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    count = f"{len(text):,} characters"
    if tool := clipboard_tool():
        try:
            subprocess.run(
                tool,
                input=text.encode(),
                check=True,
                timeout=2,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except (OSError, subprocess.SubprocessError):
            pass
        else:
            return f"Copied {count}."
    if len(text.encode()) > MOST_OSC52:
        return f"{count} are too many for the terminal's clipboard; `grpo-tui export` writes them."
    app.copy_to_clipboard(text)
    return f"Sent {count} to the terminal's clipboard."


def notification(text: str) -> str:
    """The escape sequence for a desktop notification (OSC 9) with the bell."""
    plain = "".join(char for char in text if char.isprintable())[:200]
    return f"\x1b]9;{plain}\x07\x07"


def is_lost() -> bool:
    """Whether the terminal is gone for good."""
    import termios

    try:
        termios.tcgetattr(sys.__stdin__.fileno() if sys.__stdin__ else 0)
    except termios.error as error:
        return bool(error.args and error.args[0] == errno.EIO)
    except (OSError, ValueError):
        return True
    return False


def discard_output() -> None:
    """Redirect the standard streams to the null device, so that no write can fail or block."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)
