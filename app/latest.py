"""Values that are computed again only when their key has changed."""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Latest:
    """The latest value of each name."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[object, Any]] = {}

    def latest(self, name: str, key: object, make: Callable[[], T]) -> T:
        """The value for this key; computed unless the latest value has it."""
        if name not in self._latest or self._latest[name][0] != key:
            self._latest.pop(name, None)  # Making the new value may close the old one, and fail.
            self._latest[name] = key, make()
        value: T = self._latest[name][1]
        return value
