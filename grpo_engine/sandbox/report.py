"""What a call in the sandbox did wrong, as the child describes it and the client passes it on."""

import json
import sys
import traceback
from types import TracebackType
from typing import Any, Literal

from grpo_engine.errors import EngineError
from grpo_engine.frozen import frozen
from grpo_engine.platform.interpreter import ROOT

PACKAGE = str(ROOT / "grpo_engine")


MEMORY_GB = "memory_gb"  # attribute of a user's function or class: the memory that it may need
REMEDIES = {
    "memory": f"; make it need less, or set its attribute {MEMORY_GB} to what it may need",
    "timeout": "; make it faster, or raise rewards.time_limit",
}


class TooLateError(Exception):
    """An awaitable took longer than its limit."""


class ProcessLostError(Exception):
    """What all calls of a process share has ended or hangs, so that the process has to end as well.

    Without a text the call is late.
    """


@frozen
class Failure:
    """Why a call has no value; `location` is `file:line` and `source` that line."""

    cause: Literal["exception", "timeout", "crash", "memory", "loading"]
    message: str
    location: str = ""
    source: str = ""
    traceback: str = ""

    def __str__(self) -> str:
        """What happened, and where."""
        return f"{self.message} (at {self.location})" if self.location else self.message

    @property
    def remedy(self) -> str:
        """What to do about it, for the end of a message; empty if that is not known."""
        return REMEDIES.get(self.cause, "")

    @property
    def line(self) -> str:
        """Where it happened, with the code if that is known."""
        return f"{self.location}: {self.source}" if self.source else self.location


def timeout(limit: float, location: str = "") -> Failure:
    return Failure(cause="timeout", message=f"took longer than {limit:g} s", location=location)


def is_users(file: str) -> bool:
    """Whether a source file is neither Python's, nor an installed package's, nor ours."""
    installed = "site-packages" in file or "/lib/python" in file or file.startswith("<")
    return not installed and not file.startswith(PACKAGE)


def describe(error: BaseException) -> Failure:
    """What an exception in a call says, with the innermost line in a user's file."""
    if isinstance(error, EngineError):
        return Failure(cause="exception", message=str(error))
    trace = _below(error.__traceback__)
    frames = traceback.extract_tb(trace)
    users = [frame for frame in frames if is_users(frame.filename)] or frames
    last = users[-1] if users else None
    location = f"{last.filename}:{last.lineno}" if last else ""
    if isinstance(error, SyntaxError) and error.filename:
        location = f"{error.filename}:{error.lineno}"
    if isinstance(error, SystemExit):
        message = f"called sys.exit({error.code!r})"
    else:
        message = f"{type(error).__name__}: {error}".removesuffix(": ")
    lines = traceback.format_exception(type(error), error, trace)
    return Failure(
        cause="memory" if isinstance(error, MemoryError) else "exception",
        message=message[:4000],
        location=location,
        source=last.line or "" if last else "",
        traceback="".join(lines)[-20_000:],
    )


def _below(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without this package's frames at its top."""
    while trace is not None and trace.tb_next is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(PACKAGE) and "importlib" not in file and "asyncio" not in file:
            break
        trace = trace.tb_next
    return trace


def line_of(thread: int) -> str:
    """The innermost line of a thread in a user's file, as `file:line`."""
    frame = sys._current_frames().get(thread)
    stack = traceback.extract_stack(frame) if frame else []
    users = (f"{f.filename}:{f.lineno}" for f in reversed(stack) if is_users(f.filename))
    return next(users, "")


def plain(value: Any) -> Any:
    """The value as JSON if possible, else as text."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return str(value)[:10_000]
    return value
