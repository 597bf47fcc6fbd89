"""Results of a comparison: frozen values of plain Python."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_engine.frozen import frozen
from grpo_engine.metrics import Direction, function_of
from grpo_tui.experiments.values import RunSummary

UNEQUAL_RATIO = 1.5  # of two amounts of training that are not equal
TRAINER = "trainer.name"  # a setting of runs that another trainer recorded
CODE = "code of "  # begins what a code file of the user is called among the settings


@frozen
class SettingDifference:
    """A setting that differs between the compared runs; values are in the order of the runs.

    It is minor if it affects the record alone, or if a run is older than the setting.
    """

    path: str
    values: tuple[Any, ...]
    minor: bool = False


def changes_rewards(path: str) -> bool:
    """Whether an answer may get another reward where this setting or code file differs."""
    names = ("rewards.functions", "rewards.weights", "rewards.options")
    return path.startswith((*names, CODE))


def reads_rewards(key: str, differing: Sequence[SettingDifference]) -> bool:
    """Whether a metric is of rewards that the runs gave otherwise.

    Functions of the same name are the same ones unless code differs.
    """
    paths = [item.path for item in differing if changes_rewards(item.path)]
    if function_of(key):
        return any(path.startswith(CODE) for path in paths)
    return (
        bool(paths)
        and re.fullmatch(r"reward(_std|_low|_high)?", key.rpartition("/")[2]) is not None
    )


@frozen
class MetricCell:
    """One metric of one compared run, and its difference from the baseline if there is one.

    `best_n`, `last_n` and `at_n` are the numbers of samples behind a held-out mean, if recorded.
    """

    best: float | None
    best_step: int | None
    last: float | None
    last_step: int | None
    at: float | None
    at_step: int | None
    delta_best: float | None  # none as well where values are not comparable
    best_n: float | None = None
    last_n: float | None = None
    at_n: float | None = None


@frozen
class MetricComparison:
    """One metric of all compared runs.

    Rewards by other functions, weights or code are not comparable and have no direction.
    """

    key: str
    direction: Direction
    cells: tuple[MetricCell, ...]
    comparable: bool = True


@frozen
class Evaluated:
    """One side of a paired test: a setting's runs, and their shares of right samples."""

    runs: tuple[str, ...]
    shares: tuple[float, ...]
    steps: tuple[int, ...]
    samples: int

    @property
    def share(self) -> float:
        """The mean over the runs."""
        return sum(self.shares) / len(self.shares)


@dataclass(frozen=True, slots=True)
class Effect:
    """A setting's difference to another: mean, 95 % interval, p-value.

    `more_seeds` (of each setting) or `more_problems` would show the measured difference in four of
    five cases; None where no practical number is enough, or where the effect of seeds is unknown.
    """

    difference: float
    low: float
    high: float
    p_value: float
    method: str
    more_seeds: int | None = None
    more_problems: int | None = None


@frozen
class PairedTest(Effect):
    """Two settings on the same held-out problems, each pooled over its runs."""

    mode: str
    problems: int
    own: Evaluated
    other: Evaluated


@frozen
class Reached:
    """The work until a metric first reached a threshold: medians over runs, None if never."""

    runs: int
    step: float | None
    tokens: float | None
    seconds: float | None


@frozen
class RankedSetting:
    """A setting of a sweep, pooled over its seeds; `test` is against the baseline's setting.

    `may_be_best` is False if the leading setting is better for sure.
    """

    own: Evaluated
    test: PairedTest | None
    may_be_best: bool
    reached: Reached


@frozen
class MainEffect(Effect):
    """What a setting's value changes, averaged over the values of the other settings of a sweep.

    The difference is the mean over `pairs` of settings that differ in this one alone, of shares
    of right samples.
    """

    path: str
    value: Any
    base: Any
    share: float
    base_share: float
    pairs: int


@frozen
class Ranking:
    """The settings of a sweep from best to worst, by greedy or by sampled held-out evaluation.

    The intervals hold for all settings at once in 95 of 100 sweeps; with one seed per setting
    (`seeds` False) they say nothing about other seeds.
    """

    mode: str
    problems: int
    comparisons: int
    seeds: bool
    metric: str
    threshold: float
    settings: tuple[RankedSetting, ...]
    effects: tuple[MainEffect, ...] = ()  # if several settings vary by themselves


@frozen
class Comparison:
    """Runs side by side; `by_recipe` are settings that differ only because their recipes do.

    `equal_work` is whether the evaluations are of equal work, and not the last ones of all runs;
    `cut_at` is the work after which there are others, if any.
    """

    runs: tuple[RunSummary, ...]
    baseline: str | None
    at: str
    equal_work: bool = False
    cut_at: str = ""
    differing: tuple[SettingDifference, ...]
    by_recipe: tuple[SettingDifference, ...] = ()
    same: Mapping[str, Any]
    sources: tuple[str, ...] = ()  # a diff of the user's functions, from the baseline's
    metrics: tuple[MetricComparison, ...]
    seeds: tuple[tuple[str, ...], ...]  # the ids of runs that differ only in the seed
    rankings: tuple[Ranking, ...] = ()
    notes: tuple[str, ...]

    @property
    def incomparable(self) -> frozenset[str]:
        """The metrics whose values say nothing about each other, as the rewards differ."""
        return frozenset(item.key for item in self.metrics if not item.comparable)

    @property
    def reward_settings(self) -> tuple[str, ...]:
        """The settings and code files that differ and make rewards incomparable."""
        return tuple(item.path for item in self.differing if changes_rewards(item.path))

    @property
    def by_trainer(self) -> tuple[SettingDifference, ...]:
        """The trainers, where these differ."""
        return tuple(item for item in self.differing if item.path == TRAINER)
