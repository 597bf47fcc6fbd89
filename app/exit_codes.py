"""Exit statuses, and the one-line report of an error on stderr."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, TextIO

from grpo_tui.experiments.db.texts import visible

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
INTERRUPTED: Final = 130

REFUSAL: Final = "GRPO_TUI_REFUSAL"  # names a file for the message, for the process that started it

OURS: Final = frozenset({"grpo_tui", "grpo_engine"})


def is_ours(error: BaseException) -> bool:
    """Return whether one of our packages raised the error on purpose, or memory is short."""
    return type(error) is MemoryError or any(
        cls.__module__.partition(".")[0] in OURS for cls in type(error).__mro__
    )


def exit_code(error: BaseException) -> int:
    """Return the exit status for an error, by its stdlib base class.

    LookupError and FileNotFoundError: not found. ValueError: bad input. Anything else: failed.
    """
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, LookupError | FileNotFoundError):
        return NOT_FOUND
    if isinstance(error, ValueError):
        return USAGE
    return FAILED


def report(error: BaseException, stream: TextIO) -> int:
    """Print the error as one line and return the exit status."""
    message = visible(" ".join(str(error).split())) or type(error).__name__
    if type(error) is MemoryError:
        message = f"not enough memory ({message}); close other programs, or see `ulimit -v`"
    stream.write(f"grpo-tui: {message}\n")
    if place := os.environ.get(REFUSAL):
        with suppress(OSError):
            Path(place).write_text(message, encoding="utf-8")
    return exit_code(error)
