"""The decorator of the program's values."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Make an immutable dataclass whose fields are given by name."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)
