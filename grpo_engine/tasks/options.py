"""Reads `task.options`: checks names and types, and suggests close names."""

from collections.abc import Mapping
from math import inf
from typing import Any

from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError, nearest, quoted


def read_options(config: TaskConfig, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults updated with the task's options; a wrong name or type is an error."""
    chosen = dict(defaults)
    for name, value in config.options.items():
        if name not in defaults:
            available = ", ".join(defaults) or "no options"
            raise DataError(
                f"task.options: {config.name} has no option {quoted(name)}"
                f"{nearest(name, defaults, 1)}; it takes {available}",
                "task.options",
            )
        default = defaults[name]
        types = (int, float) if isinstance(default, float) else type(default)
        wrong = isinstance(value, bool) != isinstance(default, bool)
        if default is not None and (wrong or not isinstance(value, types)):
            raise DataError(
                f"task.options.{name} must be like {default!r}, got {quoted(value)}",
                "task.options",
            )
        chosen[name] = value
    return chosen


def check_range(options: Mapping[str, Any], name: str, low: float, high: float = inf) -> None:
    """Refuse an option outside its range."""
    if not low <= options[name] <= high:
        raise DataError(
            f"task.options.{name} must be >= {low}{f' and <= {high}' if high < inf else ''}, got "
            f"{options[name]}",
            "task.options",
        )
