"""The declaration of a recipe's setting, and what follows from it."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

from grpo_engine.errors import quoted

NEVER: Final = object()  # a setting that no value turns off


class Range(NamedTuple):
    """An interval of numbers; `above` excludes the lower end."""

    low: float
    high: float = math.inf
    above: bool = False

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int | float):
            return False
        inside = self.low < value if self.above else self.low <= value
        return inside and value <= min(self.high, sys.float_info.max)

    def __str__(self) -> str:
        words = f"{'above' if self.above else 'at least'} {self.low:g}"
        return words if self.high == math.inf else f"{words} and at most {self.high:g}"


ANY = Range(-math.inf)


@dataclass(frozen=True, slots=True)
class When:
    """A condition on a recipe, its wording, and the settings it reads."""

    holds: Callable[[Any], bool]
    words: str
    settings: tuple[str, ...]

    def __or__(self, other: "When") -> "When":
        return When(
            lambda r: self.holds(r) or other.holds(r),
            f"{self.words}, or {other.words}",
            (*self.settings, *other.settings),
        )


ALWAYS = When(lambda _: True, "", ())


def chosen(name: str, *values: str) -> When:
    """The condition that the setting has one of these values."""
    *most, last = values
    listed = f"{', '.join(most)} or {last}" if most else last
    return When(lambda r: getattr(r, name) in values, f"{name}={listed}", (name,))


def more(name: str, than: float) -> When:
    """The condition that the setting is above a number."""
    return When(lambda r: getattr(r, name) > than, f"{name} above {than:g}", (name,))


class Meaning(NamedTuple):
    """What a value of a choice means: its part of the recipe's sentence and of its formula.

    For a signal, also what it compares within a group and whether each token has its own advantage.
    """

    words: str = ""
    formula: Sequence[str] = ()
    compares: Literal["", "completions", "steps"] = ""
    per_token: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The facts of one setting; its name, type and default are those of the recipe's field.

    `said` is added to the wording of the choice that the setting belongs to. In the formula,
    `factor` comes before the objective, `gate` before objective and penalty, `term` after them,
    `outside` after the sum over tokens. All five are left out when the setting is off or not read.
    """

    help: str
    name: str = ""
    kind: Any = None
    default: Any = None
    label: str = ""  # in the lab
    belongs: str = ""  # which of the six choices it belongs to
    main: bool = False  # one of the eight settings that matter most
    unit: str = ""
    range: Range = ANY
    off: Any = NEVER
    when: When = ALWAYS
    steps: tuple[Any, ...] = ()  # values that the lab steps through
    meanings: Mapping[str, Meaning] = field(default_factory=dict)
    said: str = ""
    factor: str = ""
    gate: str = ""
    term: str = ""
    outside: str = ""

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a choice; empty for numbers and switches."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    def read(self, recipe: Any) -> bool:
        return self.when.holds(recipe)

    def active(self, recipe: Any) -> bool:
        """Whether the recipe reads the setting and the setting is not off."""
        return self.read(recipe) and getattr(recipe, self.name) != self.off

    @property
    def allowed(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.kind is bool:
            return "true or false"
        if self.kind is str:
            return "a name"
        words = f"a whole number {self.range}" if self.kind is int else str(self.range)
        if self.off is None:
            return f"none (off) or {words}"
        return f"{self.off:g} (off) or {words}" if self.off_apart else words

    @property
    def off_apart(self) -> bool:
        """Whether a number outside the range is legal because it turns the setting off."""
        return isinstance(self.off, int | float) and self.off not in self.range

    def checked(self, value: Any) -> Any:
        """The value in the setting's own type; a ValueError names the legal values."""
        given = value
        if isinstance(value, str) and self.range != ANY:
            with suppress(ValueError):  # a number in quotes
                value = float(value)
        if self.choices or self.kind is bool:
            legal = value in self.choices if self.choices else isinstance(value, bool)
        elif self.kind is str:
            legal = isinstance(value, str) and bool(value)
        elif value is None or isinstance(value, bool):
            legal = value is None and self.off is None
        else:
            legal = value in self.range or (self.off_apart and value == self.off)
            legal = legal and (self.kind is not int or value == int(value))
        if not legal:
            raise ValueError(f"must be {self.allowed}, got {quoted(given)}")
        if self.choices or self.kind is str or value is None:
            return value
        return self.kind(value) if self.kind in (int, bool) else float(value)


def setting(default: Any, help: str, **facts: Any) -> Any:
    return field(default=default, metadata={"setting": Setting(help=help, **facts)})


def number(
    default: float | None, help: str, *, low: float = 0, high: float = math.inf,
    above: bool = False, **facts: Any,
) -> Any:  # fmt: skip
    """Declare a setting with a range: from `low`, or `above` it, to `high`."""
    return setting(default, help, range=Range(low, high, above), **facts)
