"""Settings from keywords: sections as mappings, dotted paths, and Python objects for names."""

import functools
import inspect
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from grpo_engine import names
from grpo_engine.api.records import open_store
from grpo_engine.config.custom import Custom
from grpo_engine.config.parse import assign
from grpo_engine.config.recipes import OPEN, Recipe, changes, path_of, recipe
from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import ConfigError
from grpo_engine.extends import Layer, config_of, file_layers, preset_layer
from grpo_engine.platform.interpreter import command
from grpo_engine.presets import starting_preset
from grpo_engine.run.user_objects import UserObjects
from grpo_engine.tasks.base import Task
from grpo_engine.tasks.code import has_rows, rows_of

Settings = RunConfig | Mapping[str, Any] | str | Path
SHORT = {"tools": "task.tools", "environment": "task.environment"}  # keywords of their own


def settings_of(
    config: Settings | None, preset: str | None, keywords: Mapping[str, Any]
) -> tuple[RunConfig, UserObjects]:
    """Merge the preset, the configuration or YAML file, and the keywords, in this order.

    Without the first two, keywords begin with what `--set` begins with on the command line.

    Objects among the keywords become names in the settings; those without a name that another
    process could import are returned as given.
    """
    tree, objects = named_tree(keywords)
    if config is None and preset is None:
        preset, sentence = starting_preset(tree)
        if preset is not None:
            print(sentence, file=sys.stderr)
    return merged(config, preset, tree), objects


def merged(config: Settings | None, preset: str | None, tree: dict[str, Any]) -> RunConfig:
    """The preset, then the configuration or YAML file, then the tree."""
    first = (preset_layer(preset),) if preset is not None else ()
    files = _layers(config) if config is not None else ()
    return config_of((*first, *files, Layer(source="the keywords", tree=tree)))


def tree_of(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords as a tree of sections; a dotted path is one setting."""
    tree: dict[str, Any] = {}
    keywords = {SHORT.get(key, key): value for key, value in keywords.items()}
    for key, value in keywords.items():
        if "." not in key and value is not None:
            tree[key] = _section(key, value)
    for key, value in keywords.items():
        if "." in key and not (key in SHORT.values() and value is None):
            assign(tree, key, value)
    return tree


def _section(key: str, value: Any) -> Any:
    """A keyword's value as the tree of settings has it; an object becomes the setting it names."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Mapping) and not (key == "task" and not _are_settings(value)):
        return {name: dict(v) if isinstance(v, Mapping) else v for name, v in value.items()}
    match key, value:
        case "algorithm", Recipe():
            return _of_recipe(value)
        case "algorithm", _:
            return {"recipe": value}
        case "model", _:
            return {"path": str(value)}
        case "rewards", _ if callable(value) or isinstance(value, str):
            return {"functions": [value]}
        case "rewards", _:
            return {"functions": list(value)}
        case "remote", str():
            return {"url": value}
        case "task", _:
            return {"name": str(value) if isinstance(value, Path) else value}
    return value


def _are_settings(value: Mapping[str, Any]) -> bool:
    """Whether a mapping holds settings of the task, not rows by split."""
    return not value or (
        all(isinstance(name, str) for name in value)
        and not any(has_rows(part) and not isinstance(part, Mapping) for part in value.values())
    )


def _of_recipe(changed: Recipe) -> dict[str, Any]:
    """The recipe's name, and the settings in which it differs from the recipe of that name."""
    tree: dict[str, Any] = {"algorithm": {"recipe": changed.name}}
    for name, value in changes(recipe(changed.name), changed).items():
        assign(tree, path_of(name), value)
    return dict(tree["algorithm"])


def _layers(config: Settings) -> tuple[Layer, ...]:
    if isinstance(config, str | Path):
        return file_layers(Path(config), _settings_of_run)
    if isinstance(config, RunConfig):
        tree = config.model_dump(mode="json", exclude_unset=True)
    else:
        tree = tree_of(config)
    return (Layer(source="the configuration", tree=tree),)


def _settings_of_run(run: str) -> Mapping[str, Any]:
    store = open_store(record=True)
    return store.settings(run) if store is not None else {}


# -- objects ----------------------------------------------------------------------------------


def named_tree(keywords: Mapping[str, Any]) -> tuple[dict[str, Any], UserObjects]:
    """The keywords as a tree with names for objects; and those that only this process has."""
    tree = tree_of(keywords)
    rewards, functions, environments = (dict[str, Any]() for _ in range(3))
    for name, settings, named in (
        ("rewards", ("functions",), rewards),
        ("algorithm", OPEN, functions),
        ("task", ("tools", "environment"), environments),
    ):
        section = tree.get(name)
        for setting in settings:
            if isinstance(section, dict) and setting in section:  # anything else is refused
                value = section[setting]
                # a name alone would be read as a list, with a comma in its path as a separator
                value = [value] if setting == "tools" and callable(value) else value
                section[setting] = _named(value, named)
    objects = UserObjects(
        task=_name_task(tree), rewards=rewards, functions=functions, environments=environments
    )
    return tree, objects


def _named(value: Any, objects: dict[str, Any]) -> Any:
    """A setting's value with names for the objects in it."""
    if isinstance(value, Custom) and value.startswith(names.IN_PROCESS):
        value = value.function
    if isinstance(value, Mapping):
        return {name: _named(item, objects) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_named(item, objects) for item in value]
    is_plain = value is None or isinstance(value, str | int | float)
    return value if is_plain else name_object(value, objects)


def _name_task(tree: dict[str, Any]) -> Any:
    section = tree.get("task")
    if not isinstance(section, dict) or isinstance(section.get("name", ""), str):
        return None
    source = section["name"]
    if callable(source) and (named := importable(source)):
        section["name"] = named
        return None
    if not (callable(source) or isinstance(source, Task) or has_rows(source)):
        raise ConfigError(
            f"task must be a name, a Task, a function or rows, got {type(source).__name__}"
        )
    name = source.name if isinstance(source, Task) else getattr(source, "__name__", "rows")
    section["name"] = names.IN_PROCESS + name.strip("<>")
    # an iterator can be read once, and an evaluation or a resumed run needs the rows again
    return source if callable(source) or isinstance(source, Task | Mapping) else rows_of(source)


def name_object(function: Any, objects: dict[str, Any], *, replace: bool = False) -> str:
    """The name in the settings; an object that cannot be imported is put into `objects`.

    `replace` replaces what has its name, wherever the function is now.
    """
    if not replace and (named := importable(function)):
        return named
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    base = name = names.IN_PROCESS + getattr(inner, "__name__", type(inner).__name__).strip("<>")
    number = 1
    while name in objects and not replace:
        number += 1
        name = f"{base}_{number}"
    objects[name] = function
    return name


def importable(item: Any) -> str:
    """The name by which a new interpreter finds this function or class; empty if it cannot.

    What is defined in a script is not imported from there: that would run the script again.
    """
    module, path = getattr(item, "__module__", None) or "", getattr(item, "__qualname__", "")
    loaded = sys.modules.get(module)
    is_code = inspect.isroutine(item) or inspect.isclass(item)
    file = getattr(loaded, "__file__", None)
    if not (loaded and file and is_code) or module == "__main__":
        return ""
    attribute: Any = loaded
    for name in path.split("."):
        attribute = getattr(attribute, name, None)
    if attribute is not item:
        return ""
    if module == loaded.__name__ and _finds_itself(module.partition(".")[0]):
        return f"{module}:{path}"
    is_script = "." not in module and file.endswith(".py")
    return f"{Path(file).resolve()}:{path}" if is_script else ""


@functools.cache
def _finds_itself(package: str) -> bool:
    """Whether a new interpreter imports the package from the same place as this one."""
    code = (
        "import importlib.util, sys; found = importlib.util.find_spec(sys.argv[1]); "
        "print(found.origin if found and found.origin else '')"
    )
    result = subprocess.run(
        command(code, package),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    file = getattr(sys.modules.get(package), "__file__", None)
    return bool(file) and result.stdout.strip() == str(file)
