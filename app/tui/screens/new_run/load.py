"""What the New run screen reads: earlier runs for names and costs, and the settings of a run."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_engine.config.parse import build, settings
from grpo_engine.config.removed import without_removed
from grpo_engine.config.settings import RunConfig
from grpo_tui.experiments.errors import QueryError
from grpo_tui.experiments.values import RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

MOST_RUNS = 500
METRICS = ("completions/mean_length", "step_time", "reward")
COLUMNS = ("rollout.prompts", "rollout.group_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """A run to clone: its settings, and the ones that this version does not know."""

    run: RunSummary
    config: RunConfig
    unknown: tuple[str, ...] = ()


def load_runs(reader: "StoreReader") -> tuple[RunSummary, ...]:
    """The newest runs, with the data for cost estimates."""
    with suppress(QueryError):  # no run has these settings
        return reader.runs(columns=COLUMNS, metrics=METRICS, archived=True, limit=MOST_RUNS)
    return reader.runs(metrics=METRICS, archived=True, limit=MOST_RUNS)


def load_parent(reader: "StoreReader", ref: str) -> Parent:
    """The settings that a run was started with."""
    detail = reader.run(reader.resolve(ref).key)
    tree, unknown = known_only(detail.config)
    run = detail.summary
    config = build(tree, f"run {run.name or run.id}")
    return Parent(run=run, config=config, unknown=unknown)


def known_only(tree: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Split off the settings that this version does not know; return the rest and their paths."""
    known = settings()
    kept: dict[str, Any] = {}
    tree, removed = without_removed(tree)
    unknown = [*removed]
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
