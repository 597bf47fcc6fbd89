"""JSON for people and pipes: UTF-8, NaN and infinities as strings, control characters escaped."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from grpo_tui.experiments.values import Unreadable

# DEL and C1 controls, line separators, bidirectional marks, lone surrogates
_UNSEEN = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def number_text(value: float) -> str:
    """Return the shortest text that parses to the same float; NaN, Infinity, -Infinity."""
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def plain(value: Any) -> Any:
    """Convert to JSON values; numbers that JSON lacks become strings."""
    if isinstance(value, Unreadable):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else number_text(value)
    if isinstance(value, list | tuple | frozenset | set):
        return [plain(item) for item in value]
    # last, since it takes the longest to ask
    if not isinstance(value, str) and isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return value


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return readable JSON; escape only what a terminal would interpret or cannot show."""
    text = json.dumps(plain(value), ensure_ascii=False, indent=indent)
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
