"""What verbs share before they work: guarded streams, the store's path, a terminal, a process."""

import json
import os
import sys
import warnings
from pathlib import Path

from grpo_tui.app import exit_codes
from grpo_tui.app.streams import open_missing
from grpo_tui.app.text.safe_text import protect_terminal, safe
from grpo_tui.app.text.stderr import print_stderr


def protect() -> None:
    """Guard the standard streams, before anything is loaded that prints."""
    open_missing()
    protect_terminal()
    warnings.formatwarning = plain_warning


def plain_warning(message: object, *_: object, **__: object) -> str:
    """Format a warning as one line, for `warnings.formatwarning`."""
    return f"grpo-tui: {safe(str(message))}\n"


def name_store(path: Path | None) -> None:
    """Put the store's path into the environment, so that detached runs and workers inherit it."""
    if path is not None:
        os.environ["GRPO_TUI_DB"] = str(path.expanduser().absolute())


class NoTerminalError(ValueError):
    """The screen was asked for where there is no terminal."""


def require_terminal() -> None:
    """Raise if there is no terminal for the screen, nor textual-serve, which draws in a browser."""
    in_browser = os.environ.get("TEXTUAL_DRIVER") == "textual.drivers.web_driver:WebDriver"
    if not in_browser and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise NoTerminalError(
            "the screen needs a terminal; `grpo-tui logs RUN --follow` prints a run's lines, and "
            "`grpo-tui --help` lists what else does without one"
        )


def leave_to_background(*, as_json: bool) -> int:
    """Run the same command in the background, print how to refer to its run; return the status."""
    from grpo_tui.app.jobs.detach import LaunchError, start_detached

    try:
        started = start_detached(*(argument for argument in sys.argv[1:] if argument != "--detach"))
    except LaunchError as error:
        print_stderr(error.log or str(error))
        return error.code
    ref = started["name"] if "id" in started else str(Path(started["folder"]).absolute())
    print(json.dumps(started) if as_json else safe(ref))
    return exit_codes.OK
