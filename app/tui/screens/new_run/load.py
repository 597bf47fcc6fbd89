"""What the New run screen reads: former runs for names and costs, and the settings of one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.errors import QueryError
from experiments.reader import StoreReader
from experiments.values import RunSummary
from grpo_engine.config.parse import build, settings
from grpo_engine.config.settings import RunConfig

MOST_RUNS = 500
METRICS = ("completions/mean_length", "step_time", "reward")
COLUMNS = ("rollout.prompts", "rollout.group_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """A run to clone: its settings, and which of them this version no longer knows."""

    run: RunSummary
    config: RunConfig
    unknown: tuple[str, ...] = ()


def load_runs(reader: StoreReader) -> tuple[RunSummary, ...]:
    """The newest runs with what costs are estimated from."""
    try:
        return reader.runs(columns=COLUMNS, metrics=METRICS, archived=True, limit=MOST_RUNS)
    except QueryError:  # no run has these settings yet
        return reader.runs(metrics=METRICS, archived=True, limit=MOST_RUNS)


def load_parent(reader: StoreReader, ref: str) -> Parent:
    """The settings of a run as they were."""
    detail = reader.run(reader.resolve(ref).key)
    tree, unknown = known_only(detail.config)
    run = detail.summary
    config = build(tree, f"run {run.name or run.id}")
    return Parent(run=run, config=config, unknown=unknown)


def known_only(tree: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The tree without settings that this version does not have, and their paths."""
    known = settings()
    kept: dict[str, Any] = {}
    unknown: list[str] = []
    for name, value in tree.items():
        inner = [path for path in known if path.startswith(f"{name}.")]
        if inner and isinstance(value, Mapping):
            kept[name] = {key: each for key, each in value.items() if f"{name}.{key}" in known}
            unknown += [f"{name}.{key}" for key in value if f"{name}.{key}" not in known]
        elif name in known or inner:
            kept[name] = value
        else:
            unknown.append(name)
    return kept, tuple(unknown)
