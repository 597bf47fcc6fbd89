"""The program's entry point; it loads nothing before it knows whether it is the guardian."""

import os
import sys
from collections.abc import Sequence

from grpo_tui.app.guardian import guard, opens_workbench

COMPLETING = "_GRPO_TUI_COMPLETE"  # set by a shell that completes a word


def main(args: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; a screen gets a guardian."""
    if args is None and COMPLETING not in os.environ and opens_workbench(sys.argv[1:]):
        guard()
    from grpo_tui.app.cli.startup import protect

    protect()
    from grpo_tui.app.cli.main import main as run

    return run(args)
