"""What became of stored runs: their health, their reward at the end, their curve."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from grpo_engine.run_health import Health
from grpo_tui.app.charts.series import Series
from grpo_tui.app.text.numbers import averaged
from grpo_tui.app.text.run_columns import CURVE_WIDTH, Outcome
from grpo_tui.experiments.values import RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

SMOOTHED_OVER = 66  # steps; earlier ones are less than a thousandth of the moving average


def outcomes(reader: "StoreReader", runs: Sequence[RunSummary]) -> dict[int, Outcome]:
    """The outcomes of any number of runs by their keys, without curves."""
    from grpo_tui.experiments.db.tables import METRIC, RUN
    from grpo_tui.experiments.run_health import healths, points_of

    verdicts = healths(reader, runs)
    keys = [run.key for run in runs]
    lately = METRIC.c.step > RUN.c.step - SMOOTHED_OVER
    rewards = points_of(reader, keys, "reward", lately)
    return {
        key: Outcome(health=verdicts[key], reward=_smoothed([value for _, value in rewards[key]]))
        for key in keys
    }


def outcomes_with_curves(reader: "StoreReader", runs: Sequence[RunSummary]) -> dict[int, Outcome]:
    """The outcomes of a few runs, whose rewards are all read."""
    from grpo_tui.experiments.run_health import healths

    verdicts = healths(reader, runs)
    return {run.key: _with_curve(reader, run.key, verdicts[run.key]) for run in runs}


def _with_curve(reader: "StoreReader", run: int, health: Health) -> Outcome:
    rewards = reader.metric_series(run, "reward")
    return Outcome(
        health=health,
        reward=_smoothed(rewards.values),
        curve=tuple(averaged(rewards.values, CURVE_WIDTH)),
    )


def _smoothed(values: Sequence[float]) -> float:
    """The end of the curve on Watch."""
    return Series.of("reward", range(len(values)), values).value
