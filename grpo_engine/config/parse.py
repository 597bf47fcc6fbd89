"""The settings as data: list them, read them from YAML and `--set`, report what is wrong."""

import math
import unicodedata
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from grpo_engine.config.other_names import meant
from grpo_engine.config.recipe_settings import ANY, Setting
from grpo_engine.config.recipes import SETTINGS
from grpo_engine.config.removed import REMOVED, without_removed
from grpo_engine.config.safe_yaml import RefusedError, dump_yaml, parse_yaml, read_text
from grpo_engine.config.settings import AlgorithmConfig, RunConfig, Section
from grpo_engine.config.values import kinds_of, read_list
from grpo_engine.errors import ConfigError, RecipeError, quoted, shortened


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingInfo:
    """One setting as shown in forms, tables and help."""

    path: str
    annotation: Any
    default: Any
    help: str
    unit: str
    main: bool
    choices: tuple[str, ...]
    low: float | None
    high: float | None
    low_open: bool
    high_open: bool
    off: float | None = None  # a legal value outside the range


@cache
def settings() -> Mapping[str, SettingInfo]:
    """Every setting by its dotted path, in the order of the tree."""
    found: dict[str, SettingInfo] = {}
    for name, field in RunConfig.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            for inner, inner_field in field.annotation.model_fields.items():
                found[f"{name}.{inner}"] = _info(f"{name}.{inner}", inner_field)
        else:
            found[name] = _info(name, field)
    return found


def _info(path: str, field: Any) -> SettingInfo:
    extra = field.json_schema_extra or {}
    limits: dict[str, float] = {}
    off = None
    for mark in field.metadata:
        if isinstance(mark, Setting) and mark.range != ANY:
            limits["gt" if mark.range.above else "ge"] = mark.range.low
            limits |= {"le": mark.range.high} if mark.range.high < math.inf else {}
            off = mark.off if mark.off_apart else None
        for kind in ("ge", "gt", "le", "lt"):
            if (value := getattr(mark, kind, None)) is not None:
                limits[kind] = value
    return SettingInfo(
        path=path,
        annotation=field.annotation,
        default=field.default,
        help=field.description or "",
        unit=str(extra.get("unit", "")),
        main=bool(extra.get("main", False)),
        choices=_choices(field.annotation),
        low=limits.get("ge", limits.get("gt")),
        high=limits.get("le", limits.get("lt")),
        low_open="gt" in limits,
        high_open="lt" in limits,
        off=off,
    )


def _choices(annotation: Any) -> tuple[str, ...]:
    for part in (annotation, *get_args(annotation)):
        if get_origin(part) is Literal:
            return tuple(str(value) for value in get_args(part))
    return ()


def shown(value: Any) -> str:
    """Format a setting's value as the user would type it."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case float():
            return f"{value:.12g}"
        case list() | tuple():
            text = ",".join(map(shown, value))
            if not value or _read_back(text) == list(map(shown, value)):
                return text
            return dump_yaml(list(value), default_flow_style=True, width=10**6).strip()
        case dict():
            return dump_yaml(value, default_flow_style=True, width=10**6).strip()
        case _:
            return str(value)


def _read_back(text: str) -> list[Any] | None:
    try:
        return read_list(text)
    except (ValueError, yaml.YAMLError):
        return None


def allowed(info: SettingInfo) -> str:
    """Describe a setting's range or allowed values."""
    if info.choices:
        return " · ".join(info.choices)
    low = None if info.low is None else f"{'>' if info.low_open else '≥'} {info.low:,.12g}"
    high = None if info.high is None else f"{'<' if info.high_open else '≤'} {info.high:,.12g}"
    words = " and ".join(part for part in (low, high) if part)
    apart = "" if info.off is None else f", or {info.off:g}"
    return f"{words}{apart} {info.unit}".strip()


def number_kind(info: SettingInfo) -> type[int] | type[float] | None:
    """Whether a setting has whole numbers or any numbers; None if it has neither."""
    kinds = (info.annotation, *get_args(info.annotation))
    if bool in kinds:
        return None
    return float if float in kinds else int if int in kinds else None


def in_range(info: SettingInfo, value: float) -> bool:
    """Whether a number is one that the setting takes."""
    low = -math.inf if info.low is None else info.low
    high = math.inf if info.high is None else info.high
    inside = (low < value if info.low_open else low <= value) and (
        value < high if info.high_open else value <= high
    )
    return math.isfinite(value) and (inside or value == info.off)


def takes(info: SettingInfo, text: str) -> bool:
    """Whether a text is a number in the setting's range, or several where it is a list."""
    try:
        values = [float(part) for part in (read_list(text) if _is_list(info) else [text])]
    except (TypeError, ValueError, yaml.YAMLError):
        return False
    whole = number_kind(info) is int
    return all(in_range(info, value) and not (whole and value % 1) for value in values)


def _is_list(info: SettingInfo) -> bool:
    return get_origin(info.annotation) is tuple


def not_a_number(info: SettingInfo, text: str, *examples: object) -> str:
    """Why a setting's number is refused, with one that is not; empty if the number is fine.

    The command line, YAML files and New run all say it in these words.
    """
    kind = number_kind(info)
    empty_is_fine = _is_list(info) or type(None) in get_args(info.annotation)
    if kind is None or takes(info, text) or (not text and empty_is_fine):
        return ""
    example = _number_example(info, *examples)
    noun = "whole number" if kind is int else "number"
    noun = " ".join(filter(None, [f"{noun}s" if _is_list(info) else f"a {noun}", allowed(info)]))
    return f"must be {noun}, such as {example}; got {shortened(text) or 'nothing'}"


def _number_example(info: SettingInfo, *examples: object) -> str:
    tried = map(shown, (*examples, info.default, info.low, info.high, 1, 2, 0.5))
    return next(text for text in tried if text and takes(info, text))


def flatten(config: RunConfig) -> dict[str, Any]:
    """Return the config as JSON values by dotted path."""
    flat: dict[str, Any] = {}
    for name, value in config.model_dump(mode="json").items():
        if isinstance(getattr(config, name), Section):
            flat.update({f"{name}.{inner}": item for inner, item in value.items()})
        else:
            flat[name] = value
    return flat


def changed(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by dotted path that are not the defaults."""
    usual = flatten(RunConfig())
    return {
        path: value for path, value in flat.items() if path not in usual or value != usual[path]
    }


def read_yaml(path: Path) -> dict[str, Any]:
    text = read_text(path)
    try:
        tree = parse_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} cannot be used as YAML: {error}") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{path} must contain sections like `rollout:`, got {type(tree).__name__}"
        )
    return tree


def write_yaml(config: RunConfig, *, only_changed: bool = True) -> str:
    """Return a config as YAML; by default only what differs from the defaults.

    Settings of the algorithm are written with the recipe that they belong to. If a text has
    invisible characters, everything beyond ASCII is escaped.
    """
    tree = config.model_dump(mode="json", exclude_defaults=only_changed)
    if changes := tree.get("algorithm"):
        tree["algorithm"] = {"recipe": config.algorithm.recipe, **changes}
    text = dump_yaml(tree, allow_unicode=True)
    if any(unicodedata.category(char) == "Cf" for char in text):
        return dump_yaml(tree, allow_unicode=False)
    return text


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `over` into `base`, section by section.

    A recipe named in `over` comes with its own settings: those beside a recipe named in `base` are
    dropped. New rewards drop the weights of the old ones, and a new task the old one's options.
    """
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        is_section = key in RunConfig.model_fields and isinstance(
            RunConfig.model_fields[key].default, BaseModel
        )
        if is_section and isinstance(old, Mapping) and isinstance(value, Mapping):
            kept = {
                name: item for name, item in old.items() if not _replaced(key, name, old, value)
            }
            merged[key] = {**kept, **{name: _over(kept.get(name), value[name]) for name in value}}
        else:
            merged[key] = value
    return merged


class Entries(dict[str, Any]):
    """Single entries of a setting that is a mapping; the others stay."""


def _over(old: Any, new: Any) -> Any:
    if isinstance(new, Entries) and isinstance(old, Mapping):
        return {**old, **new}
    return new


BELONGS_TO = {("rewards", "weights"): "functions", ("task", "options"): "name"}
# settings whose change takes others with it
OWNERS = ("algorithm.recipe", *(f"{section}.{name}" for (section, _), name in BELONGS_TO.items()))


def _replaced(section: str, name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether a setting belongs to another one that `new` replaces."""
    if section == "algorithm":
        return "recipe" in old and "recipe" in new
    owner = BELONGS_TO.get((section, name), "")
    return owner in new and owner in old and _items(new[owner]) != _items(old[owner])


def _items(value: Any) -> Any:
    """A list in one form, to compare it with another."""
    items = _read_back(value) if isinstance(value, str) else value
    return tuple(items) if isinstance(items, list | tuple) else value


def parse_sets(pairs: Iterable[str]) -> dict[str, Any]:
    """Parse `a.b=c` arguments into a tree; a value is YAML, or plain text for a text setting."""
    tree: dict[str, Any] = {}
    known = settings()
    for pair in pairs:
        path, sign, text = pair.partition("=")
        path = path.strip()
        if not sign:
            raise ConfigError(f"--set {quoted(pair)} has no `=`; write --set section.name=value")
        root = _setting_of(path, known)
        of_setting = path == root and root in known
        put(tree, path, _parse_value(known[root], text) if of_setting else _entry(path, text))
    return tree


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set one setting, or one entry of a mapping, in a tree by its dotted path."""
    root = _setting_of(path, settings())
    section, _, name = root.partition(".")
    place = tree.setdefault(section, {}) if name else tree
    if path == root:
        place[name or section] = value
    else:
        place.setdefault(name or section, Entries())[path[len(root) + 1 :]] = value


def _setting_of(path: str, known: Mapping[str, SettingInfo]) -> str:
    if path in known or path in REMOVED:
        return path
    parts = path.split(".")
    root = ".".join(parts[:2])
    if len(parts) > 2 and root in known and get_origin(known[root].annotation) is not None:
        return root
    raise ConfigError(f"there is no setting {quoted(path)}{meant(path, known)}")


def _parse_value(info: SettingInfo, text: str) -> Any:
    """A setting's value by its kind; what cannot be read stays text, and `build` refuses it."""
    kinds = kinds_of(info.annotation)
    if info.annotation is str or text in info.choices:
        return text
    try:
        if tuple in kinds:
            return read_list(text)
        value = parse_yaml(text)
    except (ValueError, yaml.YAMLError):
        return text
    takes_text = str in kinds and not (Mapping in kinds and isinstance(value, dict))
    return text if takes_text and value is not None else value


def _entry(path: str, text: str) -> Any:
    """The value of one entry of a mapping: YAML, or text where that is none."""
    try:
        return parse_yaml(text)
    except RefusedError as error:
        raise ConfigError(f"{path}: {error}", _setting_of(path, settings())) from None
    except yaml.YAMLError:
        return text


# examples of mappings whose values are not just any
MAPPINGS = {
    "rewards.options": "{function: {name: value}}",
    "task.others": "{countdown: 0.5}",
    "task.environment": "{name: file.py:Class}",
}


class Problem(NamedTuple):
    """What is wrong with a configuration, and the paths of the settings that would fix it."""

    words: str
    settings: tuple[str, ...]
    at: str = ""  # the place, if the message does not name it

    def __str__(self) -> str:
        return f"{self.at}: {self.words}" if self.at else self.words


def build(tree: Mapping[str, Any], where: str = "the configuration") -> RunConfig:
    """Build the config from a tree; raise one ConfigError that lists every problem.

    A warning names settings of earlier versions, which are left out.
    """
    kept, notes = without_removed(tree)
    for note in notes.values():
        warnings.warn(note, stacklevel=2)
    try:
        return RunConfig.model_validate(kept)
    except ValidationError as error:
        words = "; ".join(map(str, _problems(error, tree)))
        raise ConfigError(f"{where}: {words}") from error


def problems(tree: Mapping[str, Any]) -> tuple[Problem, ...]:
    try:
        RunConfig.model_validate(dict(tree))
    except ValidationError as error:
        return _problems(error, tree)
    return ()


def _problems(error: ValidationError, tree: Mapping[str, Any]) -> tuple[Problem, ...]:
    return tuple(dict.fromkeys(_problem(item, tree) for item in error.errors()))


def _problem(item: Any, tree: Mapping[str, Any]) -> Problem:
    path = ".".join(str(part) for part in item["loc"])
    setting = next((name for name in settings() if f"{path}.".startswith(f"{name}.")), "")
    if item["type"] == "extra_forbidden":
        return Problem(f"there is no setting {quoted(path)}{meant(path, settings())}", ())
    if setting and (words := not_a_number(settings()[setting], shown(item["input"]))):
        return _unread(setting, tree) or Problem(words, (setting,), path)
    if item["type"] == "value_error":
        error = item["ctx"]["error"]
        if setting:
            return _unread(setting, tree) or Problem(str(error), (setting,), path)
        return _of_error(error)
    if setting and {str, Mapping} <= kinds_of(settings()[setting].annotation):
        path, kind = setting, "mapping_type"
    else:
        kind = item["type"]
    words = _expected(path, setting, kind)
    if not words:
        words = str(item["msg"])[0].lower() + str(item["msg"])[1:]
    got = "nothing" if item["input"] is None else quoted(item["input"])
    return Problem(f"{words}, got {got}", (setting,) if setting else (), path)


def _of_error(error: Exception) -> Problem:
    """The problem of an error that names its settings."""
    named = getattr(error, "settings", ())
    if isinstance(error, RecipeError):
        named = tuple(f"algorithm.{name}" for name in (*named, "recipe"))
    return Problem(str(error), named)


def _unread(setting: str, tree: Mapping[str, Any]) -> Problem | None:
    """Why no value of an algorithm's setting would do: the recipe does not read it."""
    section, _, leaf = setting.partition(".")
    algorithm = tree.get(section)
    if section != "algorithm" or leaf in ("recipe", "beta") or not isinstance(algorithm, Mapping):
        return None
    facts = SETTINGS[leaf]
    try:
        chosen = AlgorithmConfig.model_validate({**algorithm, leaf: None}).resolved()
    except ValidationError:
        return None
    if facts.read(chosen):
        return None
    others = (setting, *(f"{section}.{name}" for name in (*facts.when.settings, "recipe")))
    words = f"has no effect with recipe {chosen.name}: it is read only with {facts.when.words}"
    return Problem(words, others, setting)


def _expected(path: str, setting: str, kind: str) -> str:
    """What a setting takes, by the kind of the error; empty if that does not say it."""
    known = settings()
    if kind in ("model_type", "model_attributes_type") and not setting:
        inner = next((info for info in known.values() if info.path.startswith(f"{path}.")), None)
        return f"must hold settings, such as {_example(inner)}" if inner else ""
    if kind in ("string_type", "string_unicode"):
        return "must be text; put quotes around it"
    if kind in ("bool_type", "bool_parsing"):
        return "must be true or false"
    info = known.get(setting)
    if info is None:
        return ""
    choices = ", ".join(info.choices)
    if kind == "literal_error":
        return f"must be one of {choices}"
    if kind in ("tuple_type", "list_type") and path == setting:
        return f"must be a list, such as [{choices or 'one, two'}]"
    if kind in ("mapping_type", "dict_type", "is_instance_of") and path == setting:
        text = "text or " * (str in kinds_of(info.annotation))
        return f"must be {text}a mapping, such as {MAPPINGS.get(setting, '{name: value}')}"
    return ""


def _example(info: SettingInfo) -> str:
    return f"`{info.path.partition('.')[2]}: {shown(info.default)}`"
