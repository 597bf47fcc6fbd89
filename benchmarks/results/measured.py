"""What the stored runs of an experiment measured, by setting."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import numpy.typing as npt

from grpo_tui.experiments.compare.runs import compare
from grpo_tui.experiments.compare.statistics import mean_interval
from grpo_tui.experiments.compare.values import Comparison, Effect, PairedTest, Ranking
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.values import RunSummary

Values = npt.NDArray[np.float64]
TRL = "-trl"  # ends the name of a setting that TRL trained


@dataclass(frozen=True)
class Measured:
    """The completed runs of an experiment by setting, in the order in which they are declared.

    Runs are told apart by their names, `EXPERIMENT-SETTING-NUMBER`.
    """

    reader: StoreReader
    runs: Mapping[str, Sequence[RunSummary]]

    @classmethod
    def of(
        cls, reader: StoreReader, experiment: str, settings: Sequence[str], seeds: int = 1
    ) -> "Measured":
        """Read the runs; settings of which fewer seeds have completed are left out."""
        by_name = {run.name: run for run in reader.runs(archived=True)}
        runs = {
            name: [
                run
                for number in range(1, 100)
                if (run := by_name.get(f"{experiment}-{name}-{number}"))
                and run.status == "completed"
            ]
            for setting in settings
            for name in (setting, setting + TRL)
        }
        return cls(reader, {name: group for name, group in runs.items() if len(group) >= seeds})

    def comparison(self, *settings: str, reach: str = "") -> Comparison:
        """Compare's result for these settings, or for all of them; the first is the baseline."""
        chosen = [run for name in settings or self.runs for run in self.runs[name]]
        return compare(self.reader, chosen, baseline=chosen[0], reach=reach)

    def ranking(self, mode: str, *settings: str, reach: str = "") -> Ranking | None:
        """The settings ranked by held-out answers that were taken greedily or sampled."""
        rankings = self.comparison(*settings, reach=reach).rankings
        return next((ranking for ranking in rankings if ranking.mode == mode), None)

    def test(self, mode: str, baseline: str, setting: str) -> PairedTest:
        """The test of one setting against another, by held-out answers of this mode."""
        ranking = self.ranking(mode, baseline, setting)
        assert ranking is not None, f"{baseline} and {setting} have no {mode} evaluation in common"
        return next(item.test for item in ranking.settings if item.test)

    def setting_of(self, runs: Sequence[str]) -> str:
        """The setting of runs by their ids."""
        return next(
            name for name, group in self.runs.items() if {run.id for run in group} & set(runs)
        )

    def curves(self, setting: str, metric: str) -> tuple[list[int], Values]:
        """The steps at which all seeds have a value, and the values by seed and step."""
        series = [self._series(run, metric) for run in self.runs.get(setting, ())]
        steps = sorted(set.intersection(*map(set, series))) if series else []
        return steps, np.array([[values[step] for step in steps] for values in series])

    def _series(self, run: RunSummary, metric: str) -> dict[int, float]:
        series = self.reader.metric_series(run.key, metric)
        pairs = zip(series.steps, series.values, strict=True)
        return {step: value for step, value in pairs if value is not None}

    def values(self, setting: str, metric: str, first: int, last: int) -> list[float]:
        """The mean of a metric over steps, by seed; empty where it was not measured."""
        series = [self._series(run, metric) for run in self.runs[setting]]
        chosen = [[v for step, v in values.items() if first <= step <= last] for values in series]
        return [fmean(values) for values in chosen if values]

    def total(self, setting: str, metric: str, last: float = math.inf) -> str:
        """The sum of a metric over the steps up to one as text, as the mean over seeds."""
        series = [self._series(run, metric) for run in self.runs[setting]]
        if not all(series):
            return ""
        sums = [sum(v for step, v in values.items() if step <= last) for values in series]
        return number(fmean(sums), 0)

    def mean(self, setting: str, metric: str, first: int, last: int, digits: int = 3) -> str:
        """The mean over seeds as text, with half of its 95 % interval; empty if unknown."""
        return with_interval(self.values(setting, metric, first, last), digits)


def with_interval(values: Sequence[float], digits: int = 3) -> str:
    """The mean as text, with half of its 95 % interval where there are two values at least."""
    if not values:
        return ""
    low, high = mean_interval(values)
    half = "" if low is None or high is None else f"±{number((high - low) / 2, digits)}"
    return number(fmean(values), digits) + half


def difference(effect: Effect) -> str:
    """A difference of shares in points, with its 95 % interval."""
    low, middle, high = (
        f"{100 * value:+.1f}".replace("-", "−")
        for value in (effect.low, effect.difference, effect.high)
    )
    return f"{middle} [{low}, {high}]"


def number(value: float, digits: int = 3) -> str:
    """A number of so many decimal places, without the zero before the point."""
    text = f"{value:.{digits}f}".replace("-", "−")
    return text.replace("0.", ".", 1) if abs(value) < 1 and digits else text


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows as a table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def p_text(p: float) -> str:
    """A p-value, which is never zero."""
    return number(p) if p >= 0.001 else "<.001"
