"""The program's entry point: a plain call opens the workbench directly, the rest goes to typer.

Loading typer takes as long as a third of the first paint.
"""

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from grpo_tui.app import exit_codes
from grpo_tui.app.cli.startup import name_store, open_workbench
from grpo_tui.app.streams import open_missing
from grpo_tui.app.text.harmless import protect_terminal
from grpo_tui.experiments.db.texts import visible

COMPLETING = "_GRPO_TUI_COMPLETE"  # set by the shell when it asks what a word may become


def plain_warning(message: object, *_: object, **__: object) -> str:
    """Format a warning as one line, for `warnings.formatwarning`."""
    return f"grpo-tui: {visible(str(message))}\n"


def main(args: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    open_missing()
    protect_terminal()
    warnings.formatwarning = plain_warning
    arguments = list(sys.argv[1:] if args is None else args)
    names_store = (
        len(arguments) == 2 and arguments[0] == "--db" and arguments[1][:1] not in ("", "-")
    )
    opens = not arguments or names_store
    if COMPLETING in os.environ or not opens:
        return int(import_module("grpo_tui.app.cli.main").main(arguments))
    if arguments:
        name_store(Path(arguments[1]))
    return exit_codes.guarded(open_workbench)
