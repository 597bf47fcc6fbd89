"""Standard streams that are closed, or cannot be written any more."""

import os
import sys
from contextlib import suppress
from typing import TextIO


def open_missing() -> None:
    """Open the null device for each standard stream that is closed.

    It gets the stream's number, by which a file of the store would be written otherwise.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def discard(*streams: TextIO) -> None:
    """Write what is left in these streams, and what comes, to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        with suppress(OSError, ValueError):
            os.dup2(null, stream.fileno())
    os.close(null)
