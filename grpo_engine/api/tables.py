"""Metrics and rollouts of a run as mappings and sequences, and as pandas tables on request."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from grpo_engine.errors import MissingPackageError, nearest, quoted
from grpo_engine.events import Group

if TYPE_CHECKING:
    from pandas import DataFrame

Series = Mapping[int, float]


class Metrics(dict[str, Series]):
    """Every metric of a run by name: its value by step."""

    def __missing__(self, name: str) -> Series:
        raise KeyError(f"the run has no metric {quoted(name)}{nearest(name, self)}")

    def __repr__(self) -> str:
        steps = {step for series in self.values() for step in series}
        return f"<{len(self)} metrics of {len(steps)} steps; to_pandas() makes a table>"

    def to_pandas(self) -> "DataFrame":
        """A table with a row for each step and a column for each metric."""
        table = _pandas().DataFrame({name: dict(series) for name, series in self.items()})
        return table.sort_index().rename_axis("step")


class Rollouts(list[Group]):
    """The groups of a step: each has its prompt and its rollouts."""

    def __init__(self, step: int, groups: Iterable[Group]) -> None:
        super().__init__(groups)
        self.step = step

    def __repr__(self) -> str:
        count = sum(len(group.rollouts) for group in self)
        return f"<{len(self)} groups, {count} rollouts of step {self.step}>"

    def rows(self) -> list[dict[str, Any]]:
        """A flat row for each rollout; every reward function has a column."""
        return [
            {
                "step": self.step,
                "group": group.index,
                "index": rollout.index,
                "prompt": group.prompt_text,
                "target": group.target,
                "completion": rollout.text,
                "finish": rollout.finish,
                "reward": rollout.reward,
                "advantage": rollout.advantage,
                "failed": rollout.failed,
                **{f"rewards/{reward.name}": reward.value for reward in rollout.rewards},
            }
            for group in self
            for rollout in group.rollouts
        ]

    def to_pandas(self) -> "DataFrame":
        """A table with a row for each rollout."""
        return _pandas().DataFrame(self.rows())


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise MissingPackageError(
            "to_pandas needs the package pandas: `pip install pandas`"
        ) from error
    return pandas
