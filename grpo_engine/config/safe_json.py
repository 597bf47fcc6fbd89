"""Reads untrusted JSON and settings files: bounded in size, without repeated names."""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_engine.errors import ConfigError, quoted

MOST_BYTES = 1_000_000
MOST_DIGITS = 400
NUMBER = re.compile(
    r"[-+]?(?:(?P<whole>\d[\d_]*)|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)?)$", re.ASCII
)


class UnsafeJsonError(ValueError):
    """The text is ambiguous or exceeds a bound."""


def read_text(path: Path) -> str:
    """Read a settings file; ConfigError if it is no UTF-8 text of at most 1 MB."""
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path} is not a file")
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check the path") from error
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{path} is larger than {MOST_BYTES / 1e6:.0f} MB: no settings are")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error}") from error


def read_number(text: str) -> int | float | None:
    """Parse a number; None if the text is no number, UnsafeJsonError if no float can hold it."""
    text = text.strip()
    match = NUMBER.match(text)
    if match is None:
        return None
    if match["whole"]:
        if len(text) > MOST_DIGITS:
            raise UnsafeJsonError(f"{quoted(text)} is too long for a number")
        return int(text)
    value = float(text)
    if math.isinf(value):
        raise UnsafeJsonError(f"{quoted(text)} is too large: numbers end at 1.8e308")
    if value == 0 and re.search("[1-9]", re.split("[eE]", text)[0]):
        raise UnsafeJsonError(f"{quoted(text)} is too small: write 0, or at least 5e-324")
    return value


def parse_json(text: str) -> Any:
    """Parse JSON; ValueError if it is invalid, repeats a name, or no float holds a number."""
    try:
        return json.loads(
            text,
            object_pairs_hook=once,
            parse_float=read_number,
            parse_int=read_number,
            parse_constant=_no_number,
        )
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; ValueError if it repeats a name."""
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{quoted(twice)} is given twice")
    return result


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number in JSON")
