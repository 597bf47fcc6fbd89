"""Startup shared by the plain call and the verbs: store path, warnings, opening the workbench."""

import gc
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from grpo_tui.app import exit_codes


def plain_warning(message: object, *_: object, **__: object) -> str:
    """Format a warning as one line, for `warnings.formatwarning`."""
    return f"grpo-tui: {message}\n"


def name_store(path: Path) -> None:
    """Put the store's path into the environment, so that detached runs and workers inherit it."""
    os.environ["GRPO_TUI_DB"] = str(path.absolute())


def open_workbench() -> int:
    """Open the workbench, if there is a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        sys.stderr.write("grpo-tui: the workbench needs a terminal; see grpo-tui --help\n")
        return exit_codes.USAGE
    gc.disable()  # objects loaded so far stay loaded; `IdleGarbageCollection` collects later ones
    try:
        return int(import_module("grpo_tui.app.tui.app").main() or exit_codes.OK)
    finally:
        gc.enable()


def leave_to_background(*, as_json: bool) -> NoReturn:
    """Run the same command in the background, and end this one."""
    from grpo_tui.app.jobs.detach import start_detached

    words = [word for word in sys.argv[1:] if word != "--detach"]
    raise SystemExit(start_detached(words, as_json=as_json))
