"""What a plain call and the verbs share: the store's name, warnings, opening the workbench."""

import gc
import os
import sys
from importlib import import_module
from pathlib import Path

from app import exit_codes


def plain_warning(message: object, *_: object, **__: object) -> str:
    """A warning as one line; for `warnings.formatwarning`."""
    return f"grpo-tui: {message}\n"


def name_store(path: Path) -> None:
    """Use this store; in the environment, so that detached runs and workers find the same one."""
    os.environ["GRPO_TUI_DB"] = str(path.absolute())


def open_workbench() -> int:
    """Open the screens, where there is a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        sys.stderr.write("grpo-tui: the workbench needs a terminal; see grpo-tui --help\n")
        return exit_codes.USAGE
    gc.disable()  # what is loaded now stays loaded; `IdleGarbageCollection` collects from then on
    try:
        return int(import_module("app.tui.app").main() or exit_codes.OK)
    finally:
        gc.enable()
