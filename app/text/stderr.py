"""Messages for people on stderr."""

import sys

from grpo_tui.experiments.db.texts import visible


def print_stderr(text: str) -> None:
    """Print to stderr, so that stdout contains only data."""
    sys.stderr.write("".join(f"{visible(line)}\n" for line in text.split("\n")))
