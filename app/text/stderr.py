"""What is said to people beside the data on stdout."""

import sys

from experiments.db.texts import visible


def say(text: str) -> None:
    """Narrate on stderr, so that stdout holds data alone."""
    sys.stderr.write("".join(f"{visible(line)}\n" for line in text.split("\n")))
