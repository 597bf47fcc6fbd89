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
from grpo_tui.app.cli.startup import name_store, open_workbench, plain_warning

COMPLETING = "_GRPO_TUI_COMPLETE"  # set by the shell when it asks what a word may become


def main(args: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    words = list(sys.argv[1:] if args is None else args)
    opens = not words or (len(words) == 2 and words[0] == "--db" and not words[1].startswith("-"))
    if COMPLETING in os.environ or not opens:
        return int(import_module("grpo_tui.app.cli.main").main(words))
    warnings.formatwarning = plain_warning
    if words:
        name_store(Path(words[1]))
    try:
        return open_workbench()
    except (KeyboardInterrupt, Exception) as error:
        if not (isinstance(error, KeyboardInterrupt) or exit_codes.is_ours(error)):
            raise
        return exit_codes.report(error, sys.stderr)
