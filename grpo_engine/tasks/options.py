"""Reads `task.options`: checks names and values, and suggests close names."""

from collections.abc import Mapping
from typing import Any, Final

from grpo_engine.config.declaration import Setting, declared
from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError, nearest, quoted

SEED: Final = declared(0, "Chooses the problems; another seed gives others.", ge=None)


def read_options(config: TaskConfig, declared: Mapping[str, Setting]) -> dict[str, Any]:
    """Return the defaults updated with the task's options; a wrong name or value is an error."""
    chosen = {name: option.default for name, option in declared.items()}
    for name, value in config.options.items():
        if name not in declared:
            available = ", ".join(declared) or "no options"
            raise DataError(
                f"task.options: {config.name} has no option {quoted(name)}"
                f"{nearest(name, declared, 1)}; it takes {available}",
                "task.options",
            )
        try:
            chosen[name] = declared[name].checked(value)
        except ValueError as error:
            raise DataError(f"task.options.{name} {error}", "task.options") from None
    return chosen


def require_at_least(options: Mapping[str, Any], name: str, low: float) -> None:
    """Refuse an option below a limit that follows from the others."""
    if options[name] < low:
        raise DataError(
            f"task.options.{name} must be >= {low}, got {options[name]}", "task.options"
        )
