"""Startup shared by the plain call and the verbs: store path, warnings, opening the workbench."""

import gc
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from grpo_tui.app import exit_codes
from grpo_tui.app.text.stderr import print_stderr
from grpo_tui.experiments.db.texts import visible


def plain_warning(message: object, *_: object, **__: object) -> str:
    """Format a warning as one line, for `warnings.formatwarning`."""
    return f"grpo-tui: {visible(str(message))}\n"


def name_store(path: Path) -> None:
    """Put the store's path into the environment, so that detached runs and workers inherit it."""
    os.environ["GRPO_TUI_DB"] = str(path.absolute())


class NoTerminalError(ValueError):
    """The screen was asked for where there is no terminal."""


def require_terminal() -> None:
    """Raise if there is no terminal for the screen."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise NoTerminalError(
            "the screen needs a terminal; `grpo-tui logs RUN --follow` prints a run's lines, and "
            "`grpo-tui --help` lists what else does without one"
        )


def open_workbench() -> int:
    """Open the workbench, if there is a terminal."""
    require_terminal()
    gc.disable()  # objects loaded so far stay loaded; the workbench collects later ones
    try:
        return int(import_module("grpo_tui.app.tui.app").main() or exit_codes.OK)
    finally:
        gc.enable()


def leave_to_background(*, as_json: bool) -> NoReturn:
    """Run the same command in the background, print the run's name, and end this one."""
    from grpo_tui.app.jobs.detach import LaunchError, start_detached

    try:
        started = start_detached(*(word for word in sys.argv[1:] if word != "--detach"))
    except LaunchError as error:
        print_stderr(error.log or str(error))
        raise SystemExit(error.code) from None
    print(json.dumps(started) if as_json else visible(started["name"]))
    raise SystemExit(exit_codes.OK)
