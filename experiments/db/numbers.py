"""Numbers as SQLite and JSON take them, which have no NaN, and back."""

import json
import math
from collections.abc import Mapping
from typing import Any


def known(value: float | None) -> float | None:
    """A number as SQLite takes it; NaN would become NULL anyway."""
    return None if value is None or math.isnan(value) else float(value)


def nan_names(**values: float | None) -> str:
    """Which of the numbers are NaN and not merely absent."""
    return ",".join(name for name, value in values.items() if value is not None and value != value)


def number(value: float | None) -> float:
    """A stored number; NULL is NaN."""
    return math.nan if value is None else value


def dumps(values: Mapping[str, Any]) -> str:
    """Compact JSON of plain ASCII, so that any text survives; NaN and infinities as strings."""
    plain = {key: str(value) if _odd(value) else value for key, value in values.items()}
    return json.dumps(plain, separators=(",", ":"), allow_nan=False)


def loads(text: str) -> dict[str, float]:
    """Read back numbers that `dumps` wrote."""
    return {key: float(value) for key, value in json.loads(text).items()}


def _odd(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
