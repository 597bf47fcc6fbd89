"""Values that are made anew only when what they depend on has changed."""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Latest:
    """The latest value of each name."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[object, Any]] = {}

    def latest(self, name: str, key: object, make: Callable[[], T]) -> T:
        """The value of this key, made unless it is the latest one."""
        if name not in self._latest or self._latest[name][0] != key:
            self._latest.pop(name, None)  # making the new one may end the old one, and fail
            self._latest[name] = key, make()
        value: T = self._latest[name][1]
        return value
