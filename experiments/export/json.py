"""JSON for people and pipes: UTF-8, NaN and infinities as strings, control characters escaped."""

import json
import re
from collections.abc import Mapping
from typing import Any

from grpo_engine.events import encode
from grpo_tui.experiments.values import Unreadable

# Controls except tab and line ends, line separators, bidirectional marks, lone surrogates.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
    "\ud800-\udfff]"
)


def without_controls(text: str) -> str:
    """Escape what a terminal would interpret or cannot show, as JSON does."""
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def plain(value: Any) -> Any:
    """Convert to JSON values; numbers that JSON lacks become strings."""
    if isinstance(value, Unreadable):
        return str(value)
    if isinstance(value, float):
        return encode(value)
    if isinstance(value, list | tuple | frozenset | set):
        return [plain(item) for item in value]
    # The last check, since it is the slowest.
    if not isinstance(value, str) and isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return value


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return readable JSON."""
    return without_controls(json.dumps(plain(value), ensure_ascii=False, indent=indent))
