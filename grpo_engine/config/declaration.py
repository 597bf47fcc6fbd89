"""How a setting is declared, which values it takes, and the sentence that refuses any other.

YAML, `--set`, forms and Python all read, check and refuse values here.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from grpo_engine.config.custom import FORMS, is_name
from grpo_engine.config.safe_json import UnsafeJsonError, read_number
from grpo_engine.config.safe_yaml import dump_yaml, parse_yaml
from grpo_engine.errors import quoted, shortened

NEVER: Final = object()  # `off` of a setting that no value turns off
SWITCH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
STRICT = ConfigDict(strict=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a recipe, in words, with the settings that it reads."""

    applies: Callable[[Any], bool]
    text: str
    settings: tuple[str, ...]

    def __or__(self, other: "Condition") -> "Condition":
        return Condition(
            lambda r: self.applies(r) or other.applies(r),
            f"{self.text}, or {other.text}",
            (*self.settings, *other.settings),
        )


ALWAYS = Condition(lambda _: True, "", ())


def equals(name: str, *values: str) -> Condition:
    """The condition that the setting has one of these values."""
    listed = " or ".join(filter(None, [", ".join(values[:-1]), values[-1]]))
    return Condition(lambda r: getattr(r, name) in values, f"{name}={listed}", (name,))


def above(name: str, limit: float) -> Condition:
    """The condition that the setting is above a number."""
    return Condition(lambda r: getattr(r, name) > limit, f"{name} above {limit:g}", (name,))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting as it is declared; where it is declared gives its path and type."""

    help: str
    path: str = ""
    annotation: Any = None
    default: Any = None
    unit: str = ""
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    longest: int = 4096  # characters of a text
    example: str = ""
    belongs: str = ""  # the one of the six choices that it qualifies
    option: bool = False  # an entry of algorithm.options: papers fix its value
    off: Any = NEVER
    condition: Condition = ALWAYS  # read only if it applies

    @property
    def is_list(self) -> bool:
        return get_origin(self.annotation) is tuple

    @cached_property
    def types(self) -> set[Any]:
        """The types that a value may have, or an item of a list: `int | None` has two."""
        item = get_args(self.annotation)[0] if self.is_list else self.annotation
        parts = () if get_origin(item) in (Mapping, Literal) else get_args(item)
        return {get_origin(part) or part for part in parts or (item,)}

    @cached_property
    def choices(self) -> tuple[str, ...]:
        """The values of a choice; empty for numbers, switches and free text."""
        parts = (self.annotation, *get_args(self.annotation))
        return next((get_args(part) for part in parts if get_origin(part) is Literal), ())

    @property
    def open(self) -> bool:
        """Whether a function of the user may take the place of a choice."""
        return bool(self.choices) and str in self.types

    @property
    def number(self) -> type[int] | type[float] | None:
        """The type of its numbers; None if it takes none."""
        return next((number for number in (float, int) if number in self.types), None)

    def is_read(self, recipe: Any) -> bool:
        return self.condition.applies(recipe)

    def is_active(self, recipe: Any) -> bool:
        """Whether the recipe reads the setting and the setting is not off."""
        return self.is_read(recipe) and getattr(recipe, self.path) != self.off

    @property
    def _is_mapping(self) -> bool:
        return Mapping in self.types

    @property
    def allowed(self) -> str:
        """The values that the setting takes."""
        if self.choices:
            text = f"one of {', '.join(self.choices)}{f' or {FORMS}' * self.open}"
        elif bool in self.types:
            text = "true or false"
        elif self.number:
            limits = ((">", self.gt), ("≥", self.ge), ("<", self.lt), ("≤", self.le))
            span = " and ".join(f"{sign} {n:,.12g}" for sign, n in limits if n is not None)
            noun = "a whole number" if self.number is int else "a number"
            text = " ".join(filter(None, (noun, span, self.unit)))
        else:
            text = " or ".join(["text"] * (str in self.types) + ["a mapping"] * self._is_mapping)
        text = f"a list, each item {text}" if self.is_list else text
        return f"none (off) or {text}" if self.off is None else text

    def refusal(self, value: Any) -> str:
        """Why a value is refused, with an example of one that is not."""
        got = "nothing" if value is None else quoted(value)
        return f"must be {self.allowed}{self._proposal(value)}; got {got}"

    def _proposal(self, value: Any) -> str:
        if bool in self.types or (self.choices and not self.is_list):
            return ""
        if self.number:
            numbers = map(as_text, (self.default, self.ge, self.le, 1, 2))
            example = next(text for text in numbers if text and self.accepts(text))
        elif self._is_mapping:
            example = "{name: value}"
        else:
            example = '["one", "two"]' if self.is_list else f'"{shortened(as_text(value))}"'
        return f", such as {self.example or example}"

    def accepts(self, value: Any) -> bool:
        try:
            self._validated(value)
        except (ValueError, yaml.YAMLError):
            return False
        return True

    def checked(self, value: Any) -> Any:
        """The value in the setting's own type; ValueError says what it must be."""
        try:
            return self._validated(value)
        except ValidationError:
            raise ValueError(self.refusal(value)) from None
        except yaml.YAMLError as error:
            raise ValueError(" ".join(str(error).split())) from None

    def _validated(self, value: Any) -> Any:
        if self.annotation is Any:
            return value  # whoever reads it checks it
        result = self.parsed(value)
        if self.types == {Mapping} and isinstance(result, Mapping):
            return result  # pydantic checks the entries, and names those that are wrong
        result = self._adapter.validate_python(
            tuple(result) if isinstance(result, list) else result
        )
        if self.open and result not in (None, *self.choices) and not is_name(result):
            raise ValueError(self.refusal(value))
        for text in result if self.is_list else [result]:
            if isinstance(text, str) and len(text) > self.longest:
                raise ValueError(
                    f"has at most {self.longest:,} characters, got {quoted(text)}; shorten it"
                )
        return result

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        limits = Field(ge=self.ge, gt=self.gt, le=self.le, lt=self.lt)
        annotation: Any = Annotated[self.annotation, limits]
        return TypeAdapter(annotation, config=STRICT)

    def parsed(self, value: Any) -> Any:
        """Read a value from what a user wrote; what cannot be read stays as it is."""
        if self.annotation is Any:
            return parse_yaml(value) if isinstance(value, str) else value
        if not self.is_list:
            return self._parsed_item(value)
        items = read_list(value) if isinstance(value, str) else value
        return [*map(self._parsed_item, items)] if isinstance(items, list | tuple) else items

    def read(self, text: str) -> Any:
        """The value of a typed text, or the text if it cannot be read, to be refused later."""
        try:
            return self.parsed(text)
        except (ValueError, yaml.YAMLError):
            return text

    def _parsed_item(self, value: Any) -> Any:
        if isinstance(value, str) and value not in self.choices:
            if self.number:
                number = read_number(value)
                value = value if number is None else number
            elif self._is_mapping and (str not in self.types or value.lstrip().startswith("{")):
                value = _read_mapping(value)
            elif str not in self.types:
                value = SWITCH.get(value.lower(), value)
        if isinstance(value, bool) and (state := "on" if value else "off") in self.choices:
            return state  # YAML reads `off` as false and `on` as true
        if str(value) in self.choices:
            return str(value)  # YAML reads `8` as a number
        if self.number is int and isinstance(value, float) and value.is_integer():
            return int(value)
        return value


def _read_mapping(text: str) -> Any:
    """A mapping from YAML; other text is returned as it is, to be refused with an example."""
    try:
        return parse_yaml(text)
    except UnsafeJsonError:
        raise
    except yaml.YAMLError:
        return text


def declared(default: Any, help: str, **details: Any) -> Setting:
    """A setting of its default's type; a number is not negative unless `ge` or `gt` says so."""
    if type(default) in (int, float) and "gt" not in details:
        details.setdefault("ge", 0)
    return Setting(default=default, help=help, **{"annotation": type(default), **details})


def setting(default: Any, help: str, **details: Any) -> Any:
    """Declare a field of a dataclass or of a pydantic model as a setting of the field's type."""
    return as_field(declared(default, help, **details))


def as_field(item: Setting) -> Any:
    # pydantic reads a dataclass's field, whose metadata become arguments of its own
    return field(default=item.default, metadata={"json_schema_extra": {"setting": item}})


def as_text(value: Any) -> str:
    """A setting's value as the user would type it."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case float():
            return f"{value:.12g}"
        case list() | tuple():
            text = ",".join(map(as_text, value))
            with suppress(ValueError, yaml.YAMLError):
                if not value or read_list(text) == list(map(as_text, value)):
                    return text
            return _in_a_line(list(value))
        case dict():
            return _in_a_line(value)
        case _:
            return str(value)


def _in_a_line(value: Any) -> str:
    return dump_yaml(value, default_flow_style=True, width=10**6, allow_unicode=True).strip()


def read_list(text: str) -> list[Any]:
    """`a,b`, or a list in YAML or JSON."""
    is_list = text.lstrip().startswith(("[", "- "))
    try:
        value = parse_yaml(text)
    except yaml.YAMLError as error:
        if is_list and isinstance(error, UnsafeJsonError):
            raise
        if is_list:
            problem = " ".join(str(getattr(error, "problem", error)).split())
            raise ValueError(f"is no list: {problem}; write [one, two] or one,two") from None
        value = text
    if isinstance(value, list):
        return value
    parts = [part.strip() for part in text.split(",")] if value is not None else []
    if "" in parts:
        raise ValueError("has an empty item; remove the comma that is too many")
    return parts
