"""A run's configuration as the store keeps it: the tree, its paths, its fingerprint."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from experiments.db.texts import escape


def config_tree(config: Any) -> dict[str, Any]:
    """The configuration as a plain tree, from a RunConfig or a mapping."""
    if hasattr(config, "model_dump"):
        return dict(config.model_dump(mode="json"))
    return dict(config)


def flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree as dotted paths, one level of sections deep, to JSON values."""
    paths: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            paths.update({f"{name}.{inner}": item for inner, item in value.items()})
        else:
            paths[name] = value
    return paths


def json_text(value: Any) -> str:
    """Compact JSON of plain ASCII with sorted keys: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def verbatim(tree: Mapping[str, Any]) -> str:
    """The tree as JSON in its own order, of plain ASCII."""
    return json.dumps(tree, separators=(",", ":"))


def config_hash(tree: Mapping[str, Any]) -> str:
    """A fingerprint of everything but the name."""
    rest = {key: value for key, value in tree.items() if key != "name"}
    return hashlib.sha256(json_text(rest).encode()).hexdigest()[:16]


def promoted(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are columns of their own."""
    paths = flat(tree)
    return {
        "model": escape(str(paths.get("model.path", ""))),
        "task": escape(str(paths.get("task.name", ""))),
        "recipe": escape(str(paths.get("algorithm.recipe", ""))),
        "seed": int(paths.get("seed") or 0),
        "total_steps": int(paths.get("steps") or 0),
    }


def number_of(value: Any) -> float | None:
    """What a filter compares; None where the setting is no number."""
    return float(value) if isinstance(value, bool | int | float) else None
