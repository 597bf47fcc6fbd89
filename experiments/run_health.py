"""The health of stored runs, with the same few queries for one run and for all."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, or_, select

from grpo_engine.alerts.change import SPAN
from grpo_engine.run_health import ACCURACY, HEALTH_METRICS, Evidence, Health, Judge, Point, health
from grpo_tui.experiments.db.tables import ALERT, METRIC, METRIC_KEY, METRIC_SUMMARY, RUN, RUN_PARAM
from grpo_tui.experiments.read.connection import among
from grpo_tui.experiments.values import RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

SETTINGS = (
    "evaluation.accuracy",
    "evaluation.problems",
    "rewards.functions",
    "rewards.weights",
    "rollout.prompts",
    "trainer.name",
)


def healths(reader: "StoreReader", runs: Sequence[RunSummary]) -> dict[int, Health]:
    """The health of runs by their keys."""
    return {key: health(evidence) for key, evidence in evidence_of(reader, runs).items()}


def evidence_of(reader: "StoreReader", runs: Sequence[RunSummary]) -> dict[int, Evidence]:
    """What the health of runs depends on, by their keys."""
    keys = [run.key for run in runs]
    settings, alerts = _settings(reader, keys), _alerts(reader, keys)
    functions = _functions(reader, keys)
    judges = {key: Judge.of(settings[key], functions[key]) for key in keys}
    judged_points = _training(reader, judges)
    points = {name: points_of(reader, keys, name) for name in HEALTH_METRICS}
    return {
        run.key: Evidence.of(
            settings[run.key],
            {name: by_run.get(run.key, ()) for name, by_run in points.items()}
            | {judges[run.key].metric: judged_points.get(run.key, ())},
            judge=judges[run.key],
            step=run.step,
            active=run.active,
            error=run.error if run.status == "failed" else "",
            alerts=alerts[run.key],
        )
        for run in runs
    }


def _settings(reader: "StoreReader", keys: Sequence[int]) -> dict[int, dict[str, Any]]:
    columns = RUN_PARAM.c
    query = select(columns.run_id, columns.path, columns.value)
    values: dict[int, dict[str, Any]] = defaultdict(dict)
    for run, path, value in reader.rows(
        query.where(among(columns.run_id, keys), columns.path.in_(SETTINGS))
    ):
        values[run][path] = value
    return values


def _alerts(reader: "StoreReader", keys: Sequence[int]) -> dict[int, dict[str, str]]:
    """The explanations of the alerts that were raised in the last ten steps, by rule."""
    columns = ALERT.c
    query = select(columns.run_id, columns.rule, columns.explanation).join_from(ALERT, RUN)
    recent = columns.last_step >= RUN.c.step - SPAN
    alerts: dict[int, dict[str, str]] = defaultdict(dict)
    for run, rule, explanation in reader.rows(
        query.where(among(columns.run_id, keys), recent, columns.muted == 0)
    ):
        alerts[run][rule] = explanation
    return alerts


def _functions(reader: "StoreReader", keys: Sequence[int]) -> dict[int, list[str]]:
    """The metrics of each run that say who judges it: accuracy, and those of reward functions."""
    name = METRIC_KEY.c.name
    ids = reader.pairs(
        select(METRIC_KEY.c.id, name).where(
            or_(name.in_(ACCURACY), name.like("rewards/%/mean"), name.like("eval/%rewards/%"))
        )
    )
    columns = METRIC_SUMMARY.c
    query = select(columns.run_id, columns.key_id)
    metrics: dict[int, list[str]] = defaultdict(list)
    for run, key in reader.rows(query.where(among(columns.run_id, keys), columns.key_id.in_(ids))):
        metrics[run].append(ids[key])
    return metrics


def _training(reader: "StoreReader", judges: Mapping[int, Judge]) -> dict[int, list[Point]]:
    """The means of each run's judging function in the steps that its health depends on."""
    step, last = METRIC.c.step, RUN.c.step
    half = (last - last % SPAN) // 2
    steps = or_(step <= SPAN, (step > half - SPAN) & (step <= half), step > last - 2 * SPAN)
    points = dict[int, list[Point]]()
    for metric in {judge.metric for judge in judges.values() if judge.function}:
        runs = [run for run, judge in judges.items() if judge.metric == metric]
        points |= points_of(reader, runs, metric, steps)
    return points


def points_of(
    reader: "StoreReader", runs: Iterable[int], key: str, where: ColumnElement[bool] | None = None
) -> dict[int, list[Point]]:
    """The steps and values of a metric of runs, in order; no NaN."""
    columns = METRIC.c
    key_id = select(METRIC_KEY.c.id).filter_by(name=key).scalar_subquery()
    query = (
        select(columns.run_id, columns.step, columns.value)
        .join_from(METRIC, RUN)
        .where(among(columns.run_id, runs), columns.key_id == key_id, columns.value.is_not(None))
        .order_by(columns.run_id, columns.step)
    )
    rows = reader.rows(query if where is None else query.where(where))
    points: dict[int, list[Point]] = defaultdict(list)
    for run, step, value in rows:
        points[run].append((step, value))
    return points
