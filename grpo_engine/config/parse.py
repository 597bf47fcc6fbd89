"""The settings as data: list them, read them from YAML and `--set`, report what is wrong."""

import unicodedata
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from grpo_engine.config.aliases import meant
from grpo_engine.config.declaration import Setting
from grpo_engine.config.recipes import path_of
from grpo_engine.config.removed import REMOVED, without_removed
from grpo_engine.config.safe_json import UnsafeJsonError, read_text
from grpo_engine.config.safe_yaml import dump_yaml, parse_yaml
from grpo_engine.config.settings import RunConfig, Section
from grpo_engine.errors import CheckpointError, ConfigError, RecipeError, quoted

SECTIONS = {
    name: field.default
    for name, field in RunConfig.model_fields.items()
    if isinstance(field.default, Section)
}


@cache
def settings() -> Mapping[str, Setting]:
    """Every setting by its dotted path, in the order of the tree."""
    result = dict(RunConfig.settings())
    for section, default in SECTIONS.items():
        result |= {f"{section}.{name}": item for name, item in default.settings().items()}
    return {path: replace(item, path=path) for path, item in result.items()}


@cache
def entries() -> Mapping[str, Setting]:
    """Every declared entry of the settings that are mappings, by its dotted path."""
    result = {
        f"{section}.{name}.{entry}": item
        for section, default in SECTIONS.items()
        for name, allowed in default.entries.items()
        for entry, item in allowed.items()
    }
    return {path: replace(item, path=path) for path, item in result.items()}


def flatten(config: RunConfig) -> dict[str, Any]:
    """The config as JSON values by dotted path."""
    tree, result = config.model_dump(mode="json"), {}
    for path in settings():
        section, _, name = path.rpartition(".")
        result[path] = (tree[section] if section else tree)[name]
    return result


def changed(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by dotted path that are not the defaults."""
    usual = flatten(RunConfig())
    return {
        path: value
        for path, value in flat.items()
        if (
            value not in (None, *REMOVED[path].usual)
            if path in REMOVED
            else path not in usual or value != usual[path]
        )
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
    for key, new in over.items():
        old = merged.get(key)
        if key in SECTIONS and isinstance(old, Mapping) and isinstance(new, Mapping):
            old = {
                name: item for name, item in old.items() if not _is_replaced(key, name, old, new)
            }
            merged[key] = {
                **old,
                **{name: _over(old.get(name), item) for name, item in new.items()},
            }
        else:
            merged[key] = new
    return merged


class Entries(dict[str, Any]):
    """Entries to change in a setting that is a mapping; its others stay."""


def _over(old: Any, new: Any) -> Any:
    return {**old, **new} if isinstance(new, Entries) and isinstance(old, Mapping) else new


OWNER = {"rewards.weights": "rewards.functions", "task.options": "task.name"}
OWNERS = ("algorithm.recipe", *OWNER.values())  # settings whose change takes others with it


def _is_replaced(section: str, name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether a setting belongs to another one that `new` replaces."""
    if section == "algorithm":
        return "recipe" in old and "recipe" in new
    path = OWNER.get(f"{section}.{name}", "")
    owner = path.rpartition(".")[2]
    if owner not in new or owner not in old:
        return False
    try:
        return bool(settings()[path].parsed(old[owner]) != settings()[path].parsed(new[owner]))
    except (ValueError, yaml.YAMLError):
        return True  # an unreadable value is refused later


def parse_sets(pairs: Iterable[str] | None) -> dict[str, Any]:
    """Parse `a.b=c` arguments into a tree."""
    tree: dict[str, Any] = {}
    for pair in pairs or ():
        path, sign, text = pair.partition("=")
        path = path.strip()
        if not sign:
            raise ConfigError(f"--set {quoted(pair)} has no `=`; write --set section.name=value")
        assign(tree, path, _parsed(path, text))
    return tree


def _parsed(path: str, text: str) -> Any:
    """The value of a setting or of an entry of a mapping; what cannot be read stays text."""
    declared = settings().get(path)
    try:
        if declared is None:
            return parse_yaml(text)
        empty = NoneType in declared.types and text.strip() in ("", "~", "null")
        return None if empty else declared.parsed(text)
    except (ValueError, yaml.YAMLError) as error:
        if declared is None and isinstance(error, UnsafeJsonError):
            raise ConfigError(f"{path}: {error}", _setting_of(path)) from None
        return text


def assign(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set one setting, or one entry of a mapping, in a tree by its dotted path."""
    root = _setting_of(path)
    section, _, name = root.rpartition(".")
    target = tree.setdefault(section, {}) if section else tree
    if path == root:
        target[name] = value
    else:
        target.setdefault(name, Entries())[path[len(root) + 1 :]] = value


def _setting_of(path: str) -> str:
    if path in settings() or path in REMOVED:
        return path
    root = ".".join(path.split(".")[:2])
    if root != path and root in settings() and Mapping in settings()[root].types:
        return root
    raise ConfigError(f"there is no setting {quoted(path)}{meant(path, settings())}")


class ConfigProblem(NamedTuple):
    """What is wrong with a configuration, and the paths of the settings that would fix it."""

    text: str
    settings: tuple[str, ...]
    at: str = ""  # the path, if the message does not name it

    def __str__(self) -> str:
        return f"{self.at}: {self.text}" if self.at else self.text


def build(tree: Mapping[str, Any], source: str = "the configuration") -> RunConfig:
    """Build the config from a tree; raise one ConfigError that lists every problem.

    A warning names settings of earlier versions that have no effect.
    """
    current, notes = without_removed(tree)
    for note in notes.values():
        warnings.warn(note, stacklevel=2)
    try:
        return RunConfig.model_validate(current)
    except ValidationError as error:
        raise ConfigError(f"{source}: {'; '.join(map(str, _problems(error)))}") from error


def with_steps(config: RunConfig, steps: int, step: int) -> RunConfig:
    """The settings of a run that is resumed at `step` and trains up to `steps`."""
    if steps < step:
        raise CheckpointError(
            f"{steps} steps are fewer than the {step} that the run has; give {step + 1} or more"
        )
    return build(merge(config.model_dump(mode="json"), {"steps": steps}))


def problems(tree: Mapping[str, Any]) -> tuple[ConfigProblem, ...]:
    try:
        RunConfig.model_validate(without_removed(tree)[0])
    except ValidationError as error:
        return _problems(error)
    return ()


def _problems(error: ValidationError) -> tuple[ConfigProblem, ...]:
    return tuple(dict.fromkeys(map(_problem, error.errors())))


def _problem(item: Any) -> ConfigProblem:
    path, value = ".".join(map(str, item["loc"])), item["input"]
    if item["type"] == "extra_forbidden":
        return ConfigProblem(f"there is no setting {quoted(path)}{meant(path, settings())}", ())
    error = item.get("ctx", {}).get("error")
    setting = next((name for name in settings() if f"{path}.".startswith(f"{name}.")), "")
    if setting:
        text = str(error) if error else settings()[setting].refusal(value)
        return ConfigProblem(text, (setting,), path)
    if error:
        names = getattr(error, "settings", ())
        if isinstance(error, RecipeError):
            names = (*(_setting_of(path_of(name)) for name in names), "algorithm.recipe")
        return ConfigProblem(str(error), names)
    return ConfigProblem(f"must hold settings; got {quoted(value)}", (), path)
