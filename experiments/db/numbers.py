"""Convert numbers to and from SQLite and JSON, which have no NaN."""

import json
import math
from collections.abc import Mapping
from typing import Any


def known(value: float | None) -> float | None:
    """Return None for NaN, which SQLite would store as NULL anyway."""
    return None if value is None or math.isnan(value) else float(value)


def nan_names(**values: float | None) -> str:
    """Return the names of the numbers that are NaN, as opposed to missing."""
    return ",".join([name for name, value in values.items() if value != value])


def dumps(values: Mapping[str, Any]) -> str:
    """Return compact ASCII JSON, which preserves any text; NaN and infinities become strings."""
    plain = {key: str(value) if _odd(value) else value for key, value in values.items()}
    return json.dumps(plain, separators=(",", ":"), allow_nan=False)


def loads(text: str) -> dict[str, float]:
    return {key: float(value) for key, value in json.loads(text).items()}


def _odd(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
