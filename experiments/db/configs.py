"""A run's configuration as it is stored: tree, dotted paths and hash."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any


def config_tree(config: Any) -> dict[str, Any]:
    """Return the configuration as a plain tree, from a RunConfig or a mapping."""
    if hasattr(config, "model_dump"):
        return dict(config.model_dump(mode="json"))
    return dict(config)


def flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten the tree, one level of sections deep: dotted paths to JSON values."""
    paths: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            paths.update({f"{name}.{inner}": item for inner, item in value.items()})
            paths.pop("trainer.files", None)  # where a run was read from is no setting
        else:
            paths[name] = value
    return paths


def in_force(config: str | None, path: str) -> str | None:
    """Return the recipe's value of a setting as JSON; None if the recipe does not set it."""
    section, _, name = path.partition(".")
    if section != "algorithm" or not config:
        return None
    try:
        value = _resolved(json_text(json.loads(config).get(section) or {})).get(name)
    except (ValueError, TypeError, AttributeError, RecursionError):  # a damaged configuration
        return None
    return None if value is None else json_text(value)


@lru_cache(maxsize=1024)
def _resolved(algorithm: str) -> Mapping[str, Any]:
    # The first list of runs is drawn before pydantic is loaded.
    from grpo_engine.config.settings import AlgorithmConfig

    try:
        recipe = AlgorithmConfig.model_validate_json(algorithm).resolved()
    except ValueError:  # a recipe or a setting of another version
        return {}
    return dataclasses.asdict(recipe)


def json_text(value: Any) -> str:
    """Return compact ASCII JSON with sorted keys: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest(value: Any) -> str:
    return hashlib.sha256(json_text(value).encode()).hexdigest()[:16]


def config_hash(tree: Mapping[str, Any]) -> str:
    """Hash everything but the name."""
    return digest({key: value for key, value in tree.items() if key != "name"})


def promoted(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that have their own columns."""
    paths = flat(tree)
    return {
        "model": str(paths.get("model.path", "")),
        "task": str(paths.get("task.name", "")),
        "recipe": str(paths.get("algorithm.recipe", "")),
        "seed": _count(paths.get("seed")),
        "total_steps": _count(paths.get("steps")),
    }


def _count(value: Any) -> int | None:
    return None if value is None else int(value)
