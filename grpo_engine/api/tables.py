"""Metrics and rollouts of a run as mappings and sequences, and as pandas tables on request."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from grpo_engine.errors import MissingPackageError
from grpo_engine.events import Group

if TYPE_CHECKING:
    from pandas import DataFrame

Series = Mapping[int, float]


class Metrics(Mapping[str, Series]):
    """Every metric of a run by name: its value by step."""

    def __init__(self, series: Mapping[str, Series]) -> None:
        self._series = series

    def __getitem__(self, name: str) -> Series:
        return self._series[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._series)

    def __len__(self) -> int:
        return len(self._series)

    def __repr__(self) -> str:
        steps = {step for series in self._series.values() for step in series}
        return f"<{len(self)} metrics of {len(steps)} steps; to_pandas() makes a table>"

    def to_pandas(self) -> "DataFrame":
        """A table with a row for each step and a column for each metric."""
        table = _pandas().DataFrame({name: dict(series) for name, series in self.items()})
        return table.sort_index().rename_axis("step")


class Rollouts(Sequence[Group]):
    """The groups of a step: each has its prompt and its rollouts."""

    def __init__(self, step: int, groups: Sequence[Group]) -> None:
        self.step, self._groups = step, tuple(groups)

    @overload
    def __getitem__(self, index: int) -> Group: ...
    @overload
    def __getitem__(self, index: slice) -> "Rollouts": ...
    def __getitem__(self, index: int | slice) -> "Group | Rollouts":
        if isinstance(index, slice):
            return Rollouts(self.step, self._groups[index])
        return self._groups[index]

    def __len__(self) -> int:
        return len(self._groups)

    def __repr__(self) -> str:
        count = sum(len(group.rollouts) for group in self)
        return f"<{len(self)} groups, {count} rollouts of step {self.step}>"

    def rows(self) -> list[dict[str, Any]]:
        """A flat row for each rollout; every reward function has a column."""
        return [
            {
                "step": self.step, "group": group.index, "index": rollout.index,
                "prompt": group.prompt_text, "target": group.target, "completion": rollout.text,
                "finish": rollout.finish, "reward": rollout.reward,
                "advantage": rollout.advantage,
                **{f"rewards/{reward.name}": reward.value for reward in rollout.rewards},
            }
            for group in self
            for rollout in group.rollouts
        ]  # fmt: skip

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
