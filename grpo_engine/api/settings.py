"""Settings from keywords: sections as mappings, dotted paths, and Python objects for names."""

import functools
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from grpo_engine import names
from grpo_engine.config.parse import build, merge, put, read_yaml
from grpo_engine.config.recipes import SETTINGS, Recipe, recipe
from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import ConfigError
from grpo_engine.platform.interpreter import command
from grpo_engine.presets import preset as read_preset
from grpo_engine.run.given import Given
from grpo_engine.tasks.base import BUILT_IN, Task

Settings = RunConfig | Mapping[str, Any] | str | Path
SHORT = {"tools": "task.tools", "environment": "task.environment"}  # keywords of their own


def settings_of(
    config: Settings | None, preset: str | None, keywords: Mapping[str, Any]
) -> tuple[RunConfig, Given]:
    """Merge the preset, the configuration or YAML file, and the keywords, in this order.

    Objects among the keywords become names in the settings; those without a name that another
    process could import are returned as given.
    """
    own = tree_of(keywords)
    given = _name_objects(own, _task_name(config, preset, own))
    where = "the keywords"
    if config is not None:
        tree, where = _tree(config)
        own = merge(tree, own)
    if preset is not None:
        own, where = merge(read_preset(preset).tree, own), f"preset {preset} and {where}"
    return build(own, where), given


def tree_of(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords as a tree of sections; a dotted path is one setting."""
    tree: dict[str, Any] = {}
    keywords = {SHORT.get(key, key): value for key, value in keywords.items()}
    for key, value in keywords.items():
        if "." not in key and value is not None:
            tree[key] = _section(key, value)
    for key, value in keywords.items():
        if "." in key and not (key in SHORT.values() and value is None):
            put(tree, key, value)
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
        case "task", _:
            return {"name": str(value) if isinstance(value, Path) else value}
    return value


def _are_settings(value: Mapping[str, Any]) -> bool:
    """Whether a mapping holds settings of the task, not rows by split."""
    return not value or (
        all(isinstance(name, str) for name in value)
        and not any(
            isinstance(part, Iterable) and not isinstance(part, str | Mapping)
            for part in value.values()
        )
    )


def _of_recipe(made: Recipe) -> dict[str, Any]:
    """The recipe's name, and the settings in which it differs from the recipe of that name."""
    own = recipe(made.name)
    changed = {
        name: getattr(made, name) for name in SETTINGS if getattr(made, name) != getattr(own, name)
    }
    return {"recipe": made.name, **changed}


def _tree(config: Settings) -> tuple[dict[str, Any], str]:
    if isinstance(config, RunConfig):
        return config.model_dump(mode="json", exclude_unset=True), "the configuration"
    if isinstance(config, Mapping):
        return tree_of(config), "the configuration"
    return read_yaml(Path(config)), str(config)


def _task_name(config: Settings | None, preset: str | None, own: Mapping[str, Any]) -> Any:
    """The task that the run will have."""
    trees = [own]
    trees += [] if config is None else [_tree(config)[0]]
    trees += [] if preset is None else [read_preset(preset).tree]
    found = (tree["task"].get("name") for tree in trees if isinstance(tree.get("task"), Mapping))
    return next(filter(None, found), RunConfig().task.name)


# -- objects ----------------------------------------------------------------------------------


def _name_objects(tree: dict[str, Any], task: Any) -> Given:
    """Replace objects in the tree by names; return those that only this process has."""
    section = tree.get("rewards")
    functions: dict[str, Callable[..., Any]] = {}
    if isinstance(section, dict) and isinstance(section.get("functions"), list | tuple):
        objects = [one for one in section["functions"] if callable(one)]
        section["functions"] = [
            name_object(one, functions) if callable(one) else one for one in section["functions"]
        ]
        # the user knows the form of their own rows, but not that a built-in task is a chat
        if objects and isinstance(task, str) and task.partition(":")[0] in BUILT_IN:
            section.setdefault("completions", "text")
    return Given(task=_name_task(tree), rewards=functions, environments=_name_environments(tree))


def _name_environments(tree: dict[str, Any]) -> dict[str, Any]:
    """Replace tools and environments in the tree by names, as rewards."""
    section, given = tree.get("task"), dict[str, Any]()
    if not isinstance(section, dict):
        return given

    def named(one: Any) -> Any:
        return one if isinstance(one, str) or one is None else name_object(one, given)

    if (tools := section.get("tools")) is not None:
        alone = isinstance(tools, str) or callable(tools)
        section["tools"] = [named(one) for one in ([tools] if alone else tools)]
    own = section.get("environment")
    if isinstance(own, Mapping):
        section["environment"] = {name: named(one) for name, one in own.items()}
    elif own is not None:
        section["environment"] = named(own)
    return given


def _name_task(tree: dict[str, Any]) -> Any:
    section = tree.get("task")
    if not isinstance(section, dict) or isinstance(section.get("name", ""), str):
        return None
    source = section["name"]
    if callable(source) and (named := importable(source)):
        section["name"] = named
        return None
    if not (callable(source) or isinstance(source, Task | Iterable)):
        raise ConfigError(
            f"task must be a name, a Task, a function or rows, got {type(source).__name__}"
        )
    own = source.name if isinstance(source, Task) else getattr(source, "__name__", "rows")
    section["name"] = names.GIVEN + own.strip("<>")
    # an iterator can be read once, and an evaluation or a resumed run needs the rows again
    return source if callable(source) or isinstance(source, Task | Mapping) else list(source)


def name_object(function: Any, given: dict[str, Any], *, again: bool = False) -> str:
    """The name in the settings; an object that cannot be imported is put into `given`.

    `again` replaces what has its name, wherever the function is now.
    """
    if not again and (named := importable(function)):
        return named
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    own = getattr(inner, "__name__", type(inner).__name__).strip("<>")
    number, name = 1, names.GIVEN + own
    while name in given and not again:
        number += 1
        name = f"{names.GIVEN}{own}_{number}"
    given[name] = function
    return name


def importable(found: Any) -> str:
    """The name by which a new interpreter finds this function or class; empty if it cannot.

    What is defined in a script is not imported from there: that would run the script again.
    """
    module, path = getattr(found, "__module__", None) or "", getattr(found, "__qualname__", "")
    loaded = sys.modules.get(module)
    if (
        loaded is None
        or module == "__main__"
        or not (inspect.isroutine(found) or inspect.isclass(found))
    ):
        return ""
    here: Any = loaded
    for part in path.split("."):
        here = getattr(here, part, None)
    file = getattr(loaded, "__file__", None)
    if here is not found or not file:
        return ""
    if module == loaded.__name__ and _finds_itself(module.partition(".")[0]):
        return f"{module}:{path}"
    alone = "." not in module and file.endswith(".py")
    return f"{Path(file).resolve()}:{path}" if alone else ""


@functools.cache
def _finds_itself(package: str) -> bool:
    """Whether a new interpreter imports the package from the same place as this one."""
    code = (
        "import importlib.util, sys; found = importlib.util.find_spec(sys.argv[1]); "
        "print(found.origin if found and found.origin else '')"
    )
    done = subprocess.run(
        command(code, package),
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    own = getattr(sys.modules.get(package), "__file__", None)
    return bool(own) and Path(done.stdout.strip() or "/") == Path(own or "")
