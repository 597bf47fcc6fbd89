"""Where the command starts: a plain call opens the workbench at once, all else is read by typer.

Typer takes as long to load as a third of the first picture to draw.
"""

import gc
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from app import exit_codes


def main(args: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    words = list(sys.argv[1:] if args is None else args)
    if words and not (len(words) == 2 and words[0] == "--db" and not words[1].startswith("-")):
        return int(import_module("app.main").main(words))
    warnings.formatwarning = plain_warning
    if words:
        name_store(Path(words[1]))
    try:
        return open_workbench()
    except (KeyboardInterrupt, Exception) as error:
        if not (isinstance(error, KeyboardInterrupt) or exit_codes.is_ours(error)):
            raise
        return exit_codes.report(error, sys.stderr)


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
    gc.disable()  # nothing of what is loaded now goes again; `Tidying` collects from then on
    try:
        return int(import_module("app.app").main() or exit_codes.OK)
    finally:
        gc.enable()
