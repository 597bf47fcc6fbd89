"""Messages for people on stderr."""

import sys

from grpo_tui.app.text.safe_text import safe


def print_stderr(text: str) -> None:
    """Print to stderr, so that stdout contains only data."""
    sys.stderr.write(safe(text, "\n") + "\n")
