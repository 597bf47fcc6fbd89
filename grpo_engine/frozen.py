"""The decorator of the program's values."""

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


def _equal(self: Any, other: Any) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    return self._values(self) == self._values(other)


def _hash(self: Any) -> int:
    return hash(self._values(self))


def _repr(self: Any) -> str:
    values = (f"{item.name}={getattr(self, item.name)!r}" for item in fields(self) if item.repr)
    return f"{type(self).__qualname__}({', '.join(values)})"


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Make an immutable dataclass whose fields are given by name.

    All share their comparison, hash and repr, and none gets its signature as a docstring: dataclass
    would compile these for each class, two thirds of the time that the class takes at the start.
    """
    cls.__doc__ = cls.__doc__ or cls.__name__
    for name, method in {"__eq__": _equal, "__hash__": _hash, "__repr__": _repr}.items():
        setattr(cls, name, method)
    made = dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)(cls)
    value: Any = made
    # The class comes first, so that the getter returns a tuple whatever the number of fields.
    value._values = attrgetter("__class__", *(item.name for item in fields(value) if item.compare))
    return made
