"""Queries on steps: metrics, passes, alerts, evaluations, checkpoints."""

import re
from array import array
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Select, func, select

from grpo_engine import events as ev
from grpo_tui.experiments import values as v
from grpo_tui.experiments.db.tables import (
    ALERT,
    EVALUATION,
    EVALUATION_SAMPLE,
    EVENT,
    METRIC,
    METRIC_KEY,
    METRIC_SUMMARY,
    STEP,
    UPDATE_PASS,
)
from grpo_tui.experiments.errors import NothingStoredError
from grpo_tui.experiments.read.connection import Reading

_OF_TASK = re.compile(r"eval/task/(?:(?!/rewards/).)+/reward")


def _is_judged(example_key: str, metrics: Mapping[str, float]) -> bool:
    """Whether an evaluation with these metrics measured the accuracy of a problem's task."""
    tasks = [name.removesuffix("/reward") for name in metrics if _OF_TASK.fullmatch(name)]
    first, *others = tasks or ["eval"]
    of = (one for one in others if f"eval/task/{example_key}".startswith(f"{one}/"))
    return f"{next(of, first)}/accuracy" in metrics


class MetricQuestions(Reading):
    def metric_keys(self, run: int) -> tuple[str, ...]:
        """Return a run's metrics in order of first appearance."""
        query = (
            select(METRIC_KEY.c.name)
            .join_from(METRIC_SUMMARY, METRIC_KEY)
            .where(METRIC_SUMMARY.c.run_id == run)
        )
        return tuple(self._column(query.order_by(METRIC_KEY.c.id)))

    def metric_series(
        self, run: int, key: str, *, after: int = -1, upto: int | None = None
    ) -> v.MetricSeries:
        query = _values(run, key).where(METRIC.c.step > after).order_by(METRIC.c.step)
        if upto is not None:
            query = query.where(METRIC.c.step <= upto)
        rows = self._all(query)
        steps, values = zip(*rows, strict=True) if rows else ((), ())
        return v.MetricSeries(run=run, key=key, steps=steps, values=values)

    def metric_arrays(
        self, run: int, key: str, *, after: int = -1
    ) -> "tuple[array[int], array[float]]":
        """Return the series as packed arrays, in a tenth of the memory."""
        series = self.metric_series(run, key, after=after)
        return array("q", series.steps), array("d", series.values)

    def value_at(self, run: int, key: str, step: int) -> tuple[float | None, int | None]:
        """Return a metric's last finite value up to a step, and its step."""
        row = self._first(
            _values(run, key)
            .where(METRIC.c.step <= step, METRIC.c.value.is_not(None))
            .order_by(METRIC.c.step.desc())
            .limit(1)
        )
        return (row.value, row.step) if row else (None, None)

    def step_within(self, run: int, axis: str, limit: float) -> int | None:
        """Return the last step within a number of tokens, or of seconds excluding pauses."""
        amount = {"tokens": STEP.c.tokens, "wall": STEP.c.elapsed}[axis]
        query = select(func.max(STEP.c.step)).where(
            STEP.c.run_id == run, STEP.c.hidden == 0, amount <= limit
        )
        last: int | None = self._value(query)
        return last

    def metrics_at(self, run: int, step: int) -> dict[str, float]:
        query = (
            select(METRIC_KEY.c.name, METRIC.c.value)
            .join_from(METRIC_SUMMARY, METRIC_KEY)
            .join(METRIC, (METRIC.c.key_id == METRIC_KEY.c.id) & (METRIC.c.run_id == run))
            .where(METRIC_SUMMARY.c.run_id == run, METRIC.c.step == step)
        )
        return self._dict(query.order_by(METRIC_KEY.c.id))

    def last_metric_step(self, run: int) -> int:
        """Return the last step of any metric; evaluations may follow the last finished step."""
        last = func.max(METRIC_SUMMARY.c.last_step)
        return int(self._value(select(last).where(METRIC_SUMMARY.c.run_id == run)) or 0)

    def most_passes(self, run: int) -> int:
        """Return the largest number of passes over a step's rollouts."""
        last = func.max(UPDATE_PASS.c["pass"])
        return int(self._value(select(last).where(UPDATE_PASS.c.run_id == run)) or 0)

    def steps(
        self, run: int, *, after: int = -1, upto: int | None = None
    ) -> tuple[v.StepView, ...]:
        """Return the finished steps beyond `after`."""
        query = self._select(v.StepView, STEP).where(
            STEP.c.run_id == run, STEP.c.hidden == 0, STEP.c.step > after
        )
        if upto is not None:
            query = query.where(STEP.c.step <= upto)
        return self._views(v.StepView, query.order_by(STEP.c.step))

    def work(
        self, run: int, *, after: int = -1
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]:
        """Return the steps beyond `after` with cumulative tokens and seconds excluding pauses."""
        elapsed = func.coalesce(STEP.c.elapsed, 0.0)
        rows = self._all(
            select(STEP.c.step, STEP.c.tokens, elapsed)
            .where(STEP.c.run_id == run, STEP.c.hidden == 0, STEP.c.step > after)
            .order_by(STEP.c.step)
        )
        steps, tokens, seconds = zip(*rows, strict=True) if rows else ((), (), ())
        return steps, tokens, seconds

    def passes(self, run: int, step: int) -> tuple[ev.PassFinished, ...]:
        query = self._passes().where(
            UPDATE_PASS.c.run_id == run, UPDATE_PASS.c.step == step, UPDATE_PASS.c.hidden == 0
        )
        return self._views(ev.PassFinished, query.order_by(UPDATE_PASS.c.seq))

    def _passes(self) -> Select[Any]:
        return self._select(ev.PassFinished, UPDATE_PASS, UPDATE_PASS.c.seq, index="pass")

    def alerts(self, run: int) -> tuple[v.AlertView, ...]:
        """Return the alerts of a run, latest first."""
        query = self._select(v.AlertView, ALERT, group="group_index", step="last_step")
        query = query.where(ALERT.c.run_id == run)
        return self._views(v.AlertView, query.order_by(ALERT.c.last_step.desc(), ALERT.c.id.desc()))

    def muted_alerts(self, run: int) -> frozenset[str]:
        query = select(ALERT.c.rule).where(ALERT.c.run_id == run, ALERT.c.muted)
        return frozenset(self._column(query))

    def evaluations(self, run: int, *, rows: bool = False) -> tuple[v.EvaluationView, ...]:
        """Return the held-out evaluations of a run, oldest first."""
        query = self._select(v.EvaluationView, EVALUATION)
        query = query.where(EVALUATION.c.run_id == run, EVALUATION.c.hidden == 0)
        found = self._views(v.EvaluationView, query.order_by(EVALUATION.c.seq))
        return tuple(map(self._with_samples, found)) if rows else found

    def evaluation(self, evaluation: int) -> v.EvaluationView:
        query = self._select(v.EvaluationView, EVALUATION).where(EVALUATION.c.id == evaluation)
        for found in self._views(v.EvaluationView, query):
            return self._with_samples(found)
        raise NothingStoredError(f"evaluation {evaluation} is not in the store")

    def _with_samples(self, found: v.EvaluationView) -> v.EvaluationView:
        return replace(found, rows=self._samples(found.key, found.metrics))

    def _samples(
        self, evaluation: int, metrics: Mapping[str, float]
    ) -> tuple[ev.EvaluationSample, ...]:
        """Return the rows of an evaluation; older files have 0 right where nothing was judged."""
        query = self._select(ev.EvaluationSample, EVALUATION_SAMPLE)
        query = query.where(EVALUATION_SAMPLE.c.evaluation_id == evaluation)
        rows = self._views(ev.EvaluationSample, query.order_by(EVALUATION_SAMPLE.c.position))
        return tuple(
            replace(row, correct=None)
            if row.correct == 0 and not _is_judged(row.example_key, metrics)
            else row
            for row in rows
        )

    def checkpoints(self, run: int) -> tuple[v.CheckpointView, ...]:
        """Return a run's saved checkpoints, oldest first, including those of hidden attempts."""
        rows = self._all(
            select(EVENT.c.at, EVENT.c.payload)
            .where(EVENT.c.run_id == run, EVENT.c.kind == "CheckpointSaved")
            .order_by(EVENT.c.seq)
        )
        return tuple(
            v.CheckpointView(
                step=event.step, path=event.path, best=event.best, at=at,
                exists=Path(event.path).exists(),
            )
            for at, event in rows
            if isinstance(event, ev.CheckpointSaved)
        )  # fmt: skip


def _values(run: int, key: str) -> Select[Any]:
    """Select the steps and values of a metric."""
    key_id = select(METRIC_KEY.c.id).where(METRIC_KEY.c.name == key).scalar_subquery()
    return select(METRIC.c.step, METRIC.c.value).where(
        METRIC.c.run_id == run, METRIC.c.key_id == key_id
    )
