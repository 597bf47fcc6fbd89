"""Sweeps: a grid of settings and seeds as runs of the queue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from grpo_tui.experiments.db.configs import config_tree, flat

if TYPE_CHECKING:
    from grpo_engine.config.settings import RunConfig


Point = tuple[Mapping[str, Any], "RunConfig"]  # typed values by path, and all settings


@dataclass(frozen=True, slots=True)
class Sweep:
    axes: Mapping[str, Sequence[Any]]  # values by path
    runs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]  # values, and all settings


def sweep_of(points: Sequence[Point], seeds: int) -> Sweep:
    """Repeat each point with a number of seeds, counted up from its seed."""
    runs = []
    for texts, config in points:
        tree = config_tree(config)
        values = flat(tree)
        for number in range(seeds):
            seed = values["seed"] + number
            point = {path: values.get(path, text) for path, text in texts.items()} | {"seed": seed}
            runs.append((point, tree | {"seed": seed, "name": ""}))
    axes = {path: list(dict.fromkeys(point[path] for point, _ in runs)) for path in runs[0][0]}
    return Sweep(axes, runs)


def values_in(text: str) -> list[str]:
    """The values of a list in YAML: commas in brackets or quotes do not separate."""
    try:
        root: Any = yaml.compose(f"[{text}]", yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return [value.strip() for value in text.split(",")]
    return [text[node.start_mark.index - 1 : node.end_mark.index - 1] for node in root.value] or [
        ""
    ]
