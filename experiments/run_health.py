"""The health of stored runs, with the same few queries for one run and for all."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import or_, select

from grpo_engine.alerts.change import SPAN, Evaluation, MetricChange
from grpo_engine.metrics import count_of
from grpo_engine.run_health import Health, Judge, RunFacts, change_over, health, trio
from grpo_tui.experiments.db.tables import ALERT, METRIC, METRIC_KEY, METRIC_SUMMARY, RUN, RUN_PARAM
from grpo_tui.experiments.read.connection import among
from grpo_tui.experiments.values import MetricSummary, RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

ACCURACY = ("eval/accuracy", "eval/greedy/accuracy")
SETTINGS = ("evaluation.accuracy", "evaluation.problems", "rewards.functions", "rewards.weights")


def healths(reader: "StoreReader", runs: Sequence[RunSummary]) -> dict[int, Health]:
    """The health of runs by their keys."""
    keys = [run.key for run in runs]
    settings, alerts = _settings(reader, keys), _alerts(reader, keys)
    functions = _functions(reader, keys)
    metrics = reader.metric_summaries(keys, (*ACCURACY, *map(count_of, ACCURACY)))
    judges = {key: Judge.of(settings[key], functions[key]) for key in keys}
    held_out = {key: _held_out(metrics.get(key, {}), settings[key]) for key in keys}
    training = _training(
        reader, {key: judges[key].function for key in keys if len(held_out[key]) < 2}
    )
    return {
        run.key: health(
            RunFacts(
                step=run.step,
                active=run.active,
                error=run.error if run.status == "failed" else "",
                alerts=alerts[run.key],
                held_out=held_out[run.key],
                judge=judges[run.key],
                training=training.get(run.key),
            )
        )
        for run in runs
    }


def _held_out(
    metrics: Mapping[str, MetricSummary], settings: Mapping[str, Any]
) -> tuple[Evaluation, ...]:
    """Of sampled answers, or of greedy ones where there are no others."""
    for key in ACCURACY:
        metric, count = metrics.get(key), metrics.get(count_of(key))
        if metric is None or metric.first is None:
            continue
        first, best, last = (
            (step or 0, float(value or 0.0))
            for step, value in (
                (metric.first_step, metric.first),
                (metric.max_step, metric.max),
                (metric.last_step, metric.last),
            )
        )
        answers = count.last if count is not None else settings.get("evaluation.problems")
        return trio(first, best, last, answers)
    return ()


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
    """The metrics of each run that are named after a reward function."""
    name = METRIC_KEY.c.name
    ids = reader.pairs(
        select(METRIC_KEY.c.id, name).where(
            or_(name.like("rewards/%/mean"), name.like("eval/%rewards/%"))
        )
    )
    columns = METRIC_SUMMARY.c
    query = select(columns.run_id, columns.key_id)
    metrics: dict[int, list[str]] = defaultdict(list)
    for run, key in reader.rows(query.where(among(columns.run_id, keys), columns.key_id.in_(ids))):
        metrics[run].append(ids[key])
    return metrics


def _training(reader: "StoreReader", functions: Mapping[int, str]) -> dict[int, MetricChange]:
    """How the mean of each run's function changed from its first ten steps to its last ten."""
    changes = {}
    for function in {*functions.values()} - {""}:
        runs = [run for run, name in functions.items() if name == function]
        for run, values in ends_of(reader, runs, f"rewards/{function}/mean").items():
            if (change := change_over(values)) is not None:
                changes[run] = change
    return changes


def ends_of(
    reader: "StoreReader", runs: Sequence[int], key: str, first: int = SPAN, last: int = SPAN
) -> dict[int, list[float]]:
    """The values of a metric in the first and the last steps of runs, in order; no NaN."""
    columns = METRIC.c
    key_id = select(METRIC_KEY.c.id).filter_by(name=key).scalar_subquery()
    query = (
        select(columns.run_id, columns.value)
        .join_from(METRIC, RUN)
        .where(
            among(columns.run_id, runs),
            columns.key_id == key_id,
            or_(columns.step <= first, columns.step > RUN.c.step - last),
            columns.value.is_not(None),
        )
        .order_by(columns.run_id, columns.step)
    )
    values: dict[int, list[float]] = defaultdict(list)
    for run, value in reader.rows(query):
        values[run].append(value)
    return values
