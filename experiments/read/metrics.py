"""Queries on steps: metrics, passes, alerts, evaluations, checkpoints."""

import json
from array import array
from operator import itemgetter
from pathlib import Path

from grpo_engine import events as ev
from grpo_tui.experiments import values as v
from grpo_tui.experiments.db.numbers import number
from grpo_tui.experiments.db.texts import escape
from grpo_tui.experiments.errors import NothingStoredError
from grpo_tui.experiments.read.connection import Reading, no_collection, text
from grpo_tui.experiments.read.shapes import Shape

STEP = Shape(v.StepView, "step")
PASS = Shape(ev.PassFinished, "update_pass", index="pass")
ALERT = Shape(v.AlertView, "alert", group="group_index", step="last_step")
EVALUATION = Shape(v.EvaluationView, "evaluation")
SAMPLE = Shape(ev.EvaluationSample, "evaluation_sample")


class MetricQuestions(Reading):
    def metric_keys(self, run: int) -> tuple[str, ...]:
        """Return a run's metrics in order of first appearance."""
        names = self._column(
            "SELECT name FROM metric_summary JOIN metric_key ON metric_key.id = key_id "
            "WHERE run_id = ? ORDER BY key_id",
            (run,),
        )
        return tuple(map(text, names))

    def metric_series(
        self, run: int, key: str, *, after: int = -1, upto: int | None = None
    ) -> v.MetricSeries:
        with no_collection():
            rows = self._all(
                "SELECT step, value FROM metric WHERE run_id = ? AND step > ? AND step <= ? "
                "AND key_id = (SELECT id FROM metric_key WHERE name = ?) ORDER BY step",
                (run, after, upto if upto is not None else 2**62, escape(key)),
            )
            steps, values = zip(*rows, strict=True) if rows else ((), ())
        if None in values:
            values = tuple(number(value) for value in values)
        return v.MetricSeries(run=run, key=key, steps=steps, values=values)

    def metric_arrays(
        self, run: int, key: str, *, after: int = -1
    ) -> "tuple[array[int], array[float]]":
        """Return the series as packed arrays, in half the time and a tenth of the memory."""
        where = (
            "FROM metric WHERE run_id = ? AND step > ? "
            "AND key_id = (SELECT id FROM metric_key WHERE name = ?)"
        )
        asked = (run, after, escape(key))
        rows = self._all(f"SELECT value {where} ORDER BY step", asked)
        if not rows:
            return array("q"), array("d")
        try:
            values = array("d", map(itemgetter(0), rows))
        except TypeError:  # NULL is NaN
            values = array("d", (number(value) for (value,) in rows))
        first = self._value(f"SELECT step {where} ORDER BY step LIMIT 1", asked)
        last = self._value(f"SELECT step {where} ORDER BY step DESC LIMIT 1", asked)
        if last - first + 1 == len(values):
            return array("q", range(first, last + 1)), values
        found = self._all(f"SELECT step, value {where} ORDER BY step", asked)
        steps = array("q", (step for step, _ in found))
        return steps, array("d", (number(value) for _, value in found))

    def value_at(self, run: int, key: str, step: int) -> tuple[float | None, int | None]:
        """Return a metric's last finite value up to a step, and its step."""
        row = self._one(
            "SELECT value, step FROM metric WHERE run_id = ? AND step <= ? AND value IS NOT NULL "
            "AND key_id = (SELECT id FROM metric_key WHERE name = ?) ORDER BY step DESC LIMIT 1",
            (run, step, escape(key)),
        )
        return row or (None, None)

    def step_within(self, run: int, axis: str, limit: float) -> int | None:
        """Return the last step within a number of tokens, or of seconds excluding pauses."""
        column = {"tokens": "tokens", "wall": "elapsed"}[axis]
        last: int | None = self._value(
            f"SELECT max(step) FROM step WHERE run_id = ? AND hidden = 0 AND {column} <= ?",
            (run, limit),
        )
        return last

    def metrics_at(self, run: int, step: int) -> dict[str, float]:
        rows = self._all(
            "SELECT metric_key.name, value FROM metric_summary s "
            "JOIN metric_key ON metric_key.id = s.key_id "
            "JOIN metric m ON m.run_id = s.run_id AND m.key_id = s.key_id AND m.step = ? "
            "WHERE s.run_id = ? ORDER BY s.key_id",
            (step, run),
        )
        return {text(name): number(value) for name, value in rows}

    def last_metric_step(self, run: int) -> int:
        """Return the last step of any metric; evaluations may follow the last finished step."""
        last = self._value("SELECT max(last_step) FROM metric_summary WHERE run_id = ?", (run,))
        return int(last or 0)

    def most_passes(self, run: int) -> int:
        """Return the largest number of passes over a step's rollouts."""
        most = self._value("SELECT max(pass) FROM update_pass WHERE run_id = ?", (run,))
        return int(most or 0)

    def steps(
        self, run: int, *, after: int = -1, upto: int | None = None
    ) -> tuple[v.StepView, ...]:
        """Return the finished steps beyond `after`."""
        return self._views(
            STEP,
            "WHERE run_id = ? AND step > ? AND step <= ? AND hidden = 0 ORDER BY step",
            (run, after, upto if upto is not None else 2**62),
        )

    def work(
        self, run: int, *, after: int = -1
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]:
        """Return the steps beyond `after` with cumulative tokens and seconds excluding pauses."""
        rows = self._all(
            "SELECT step, tokens, coalesce(elapsed, 0.0) FROM step "
            "WHERE run_id = ? AND step > ? AND hidden = 0 ORDER BY step",
            (run, after),
        )
        steps, tokens, elapsed = zip(*rows, strict=True) if rows else ((), (), ())
        return steps, tokens, elapsed

    def passes(self, run: int, step: int) -> tuple[ev.PassFinished, ...]:
        return self._views(
            PASS, "WHERE run_id = ? AND step = ? AND hidden = 0 ORDER BY seq", (run, step)
        )

    def alerts(self, run: int) -> tuple[v.AlertView, ...]:
        """Return the alerts of a run, latest first."""
        return self._views(ALERT, "WHERE run_id = ? ORDER BY last_step DESC, id DESC", (run,))

    def muted_alerts(self, run: int) -> frozenset[str]:
        rules = self._column("SELECT rule FROM alert WHERE run_id = ? AND muted", (run,))
        return frozenset(map(text, rules))

    def evaluations(self, run: int, *, rows: bool = False) -> tuple[v.EvaluationView, ...]:
        """Return the held-out evaluations of a run, oldest first."""
        return self._evaluations("WHERE run_id = ? AND hidden = 0 ORDER BY seq", run, rows)

    def evaluation(self, evaluation: int) -> v.EvaluationView:
        found = self._evaluations("WHERE id = ?", evaluation, True)
        if not found:
            raise NothingStoredError(f"evaluation {evaluation} is not in the store")
        return found[0]

    def _evaluations(self, rest: str, key: int, with_rows: bool) -> tuple[v.EvaluationView, ...]:
        columns = self._columns(EVALUATION, rest, (key,))
        if with_rows:
            columns["rows"] = [self._evaluation_rows(key) for key in columns["key"]]
        return tuple(EVALUATION.make(columns))

    def _evaluation_rows(self, evaluation: int) -> tuple[ev.EvaluationSample, ...]:
        return self._views(SAMPLE, "WHERE evaluation_id = ? ORDER BY position", (evaluation,))

    def checkpoints(self, run: int) -> tuple[v.CheckpointView, ...]:
        """Return a run's saved checkpoints, oldest first, including those of hidden attempts."""
        rows = self._all(
            "SELECT at, payload FROM event WHERE run_id = ? AND kind = 'CheckpointSaved' "
            "ORDER BY seq",
            (run,),
        )
        found = []
        for at, payload in rows:
            data = json.loads(payload)
            found.append(
                v.CheckpointView(
                    step=data["step"],
                    path=data["path"],
                    best=data["best"],
                    at=at,
                    exists=Path(data["path"]).exists(),
                )
            )
        return tuple(found)
