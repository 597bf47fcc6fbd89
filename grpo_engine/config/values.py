"""Turns what a user wrote for a setting into the setting's kind of value."""

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import yaml

from grpo_engine.config.safe_yaml import RefusedError, parse_yaml, read_number


def kinds_of(annotation: Any) -> set[Any]:
    """The types that a setting may have: `int | None` has two, a list is `tuple`."""
    parts = get_args(annotation) if get_origin(annotation) not in (tuple, Mapping) else ()
    return {get_origin(part) or part for part in (annotation, *parts)}


def typed(value: Any, annotation: Any) -> Any:
    """A text as the setting's kind of value; ValueError if it can be none or has two meanings."""
    kinds = kinds_of(annotation)
    try:
        if isinstance(value, bool):
            return _truth(value, annotation, kinds)
        if tuple in kinds and isinstance(value, str | list | tuple):
            items = read_list(value) if isinstance(value, str) else value
            return [typed(item, get_args(annotation)[0]) for item in items]
        if not isinstance(value, str) or str in kinds:
            return value
        if kinds & {int, float}:
            number = read_number(value)
            return value if number is None else number
        if Mapping in kinds and value.lstrip().startswith("{"):
            return parse_yaml(value)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    return value


def _truth(value: bool, annotation: Any, kinds: set[Any]) -> Any:
    if kinds & {int, float} and bool not in kinds:
        raise ValueError("must be a number")
    # YAML reads `off` as false and `on` as true
    word = "on" if value else "off"
    return word if Literal in kinds and word in get_args(annotation) else value


def read_list(text: str) -> list[Any]:
    """`a,b`, or a list in YAML or JSON."""
    is_list = text.lstrip().startswith(("[", "- "))
    try:
        value = parse_yaml(text)
    except RefusedError:
        if is_list:
            raise
        value = text
    except yaml.YAMLError as error:
        if is_list:
            words = " ".join(str(getattr(error, "problem", error)).split())
            raise ValueError(f"is no list: {words}; write [one, two] or one,two") from None
        value = text
    if isinstance(value, list):
        return value
    parts = [part.strip() for part in text.split(",")] if value is not None else []
    if "" in parts:
        raise ValueError("has an empty item; remove the comma that is too many")
    return parts
