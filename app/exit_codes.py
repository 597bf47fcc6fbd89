"""Exit statuses, and the one-line report of an error on stderr."""

import errno
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TextIO

from grpo_engine import errors
from grpo_engine.errors import quoted, shortened
from grpo_tui.app.streams import discard
from grpo_tui.app.text.safe_text import safe

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
WARNINGS: Final = 4  # what `audit` says of a run
ERRORS: Final = 5
INTERRUPTED: Final = 130

REFUSAL: Final = (
    "GRPO_TUI_REFUSAL"  # a file in which the process that started this one reads the message
)

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
UNUSABLE: Final = FULL | {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
}
LONG_WORD: Final = re.compile(r"\S{300,}")
OURS: Final = frozenset({"grpo_tui", "grpo_engine"})


def is_ours(error: BaseException) -> bool:
    """Return whether a person can act on the error: our own, memory, a path, or a full disk."""
    return (
        type(error) is MemoryError
        or (isinstance(error, OSError) and error.errno in (UNUSABLE if error.filename else FULL))
        or any(cls.__module__.partition(".")[0] in OURS for cls in type(error).__mro__)
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


def of_failure(error: str) -> int:
    """Return the exit status for an error of the engine by the name of its class."""
    return exit_code(getattr(errors, error, RuntimeError)(""))


def brief(message: str) -> str:
    """Cut very long words of a message, such as a path of 5,000 characters."""
    return LONG_WORD.sub(lambda part: shortened(part[0]), message)


def report(error: BaseException, stream: TextIO) -> int:
    """Print the error as one line and return the exit status."""
    message = safe(brief(" ".join(str(error).split()))) or type(error).__name__
    if isinstance(error, KeyboardInterrupt):
        message = "interrupted"
    if type(error).__module__ == "builtins" and isinstance(error, OSError):
        name = safe(quoted(str(error.filename))) if error.filename else "the output"
        message = f"{name} cannot be {'used' if error.filename else 'written'}: {error.strerror}"
    if type(error) is MemoryError:
        message = f"not enough memory ({message}); close other programs, or see `ulimit -v`"
    stream.write(f"grpo-tui: {message}\n")
    if path := os.environ.get(REFUSAL):
        with suppress(OSError):
            Path(path).write_text(message, encoding="utf-8")
    return exit_code(error)


def guarded(call: Callable[[], int]) -> int:
    """Call, and report an error that a person can act on; return the exit status."""
    try:
        status = call()
        sys.stdout.flush()
    except BrokenPipeError:
        status = FAILED  # The reader needs no more.
    except (KeyboardInterrupt, Exception) as error:
        if not (isinstance(error, KeyboardInterrupt) or is_ours(error)):
            raise
        status = report(error, sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:
        discard(sys.stdout)  # The interpreter would try again and print a traceback.
    return status
