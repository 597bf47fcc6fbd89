"""RunState: folds a run's events into immutable snapshots; uses no Textual, threads or files.

Facts come through `apply`, other data of a feed through `update`, a person's requests through
`ask`. A group has scores once it is recorded. The state holds all values of the metrics, one entry
per alert rule, a log of fixed length, and the groups of the latest step.
"""

import dataclasses
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_engine import events as ev
from grpo_engine.run_health import HEALTH_METRICS, Evidence, Judge, health
from grpo_tui.app.charts.series import Series
from grpo_tui.app.feed.snapshot import ENDED, Head, LogLine, Request, Snapshot, Status, StepGroup
from grpo_tui.app.text.event_text import sentence, severity
from grpo_tui.experiments.db.configs import flat
from grpo_tui.experiments.values import AlertView, BoardView, trainer_of

LOG_LINES = 500
SIGNAL_STEPS = 64


class RunState:
    """Folds events into snapshots; returns the same object while nothing changed."""

    def __init__(self, head: Head | None = None) -> None:
        self._named = head or Head()
        self._started: dict[str, Any] = {}  # fields of the head from the run's first event
        self._series: dict[str, Series] = {}
        self._new: dict[str, tuple[list[int], list[float]]] = {}  # steps and values
        self._groups: dict[tuple[str, int], ev.Group] = {}
        self._group_step = 0
        self._trained: tuple[int, tuple[ev.Group, ...]] = (0, ())
        self._log: deque[LogLine] = deque(maxlen=LOG_LINES)
        self._alerts: dict[str, AlertView] = {}
        self._muted: frozenset[str] = frozenset()
        self._signal: deque[tuple[int, float]] = deque(maxlen=SIGNAL_STEPS)
        self._spans: list[tuple[float, float]] = []  # wall times: begin and end of each attempt
        self._board = BoardView()
        self._current = 0  # the step that is being worked on
        self._values: dict[str, Any] = {"status": "loading", "step": 0}
        self._dirty = True
        self._judged: Evidence | None = None  # by all events so far; progress changes nothing of it
        self._snapshot = Snapshot()

    # -- input ------------------------------------------------------------------------------

    def apply(self, event: ev.Event, at: float | None = None) -> None:
        """Apply one recorded event."""
        self._dirty, self._judged = True, None
        if text := sentence(event):
            self._log.append(LogLine(at=at, step=event.step, severity=severity(event), text=text))
        values = self._values
        if at is not None and isinstance(event, ev.RunStarted):
            self._spans.append((at, at))
        elif at is not None and self._spans and values["status"] not in ENDED:
            self._spans[-1] = self._spans[-1][0], max(at, self._spans[-1][1])
        match event:
            case ev.RunStarted():
                self._start(event)
            case ev.ModelLoaded():
                values["status"] = "running"
            case ev.GroupScored():
                self._add_group(event)
            case ev.StepFinished():
                self._finish_step(event)
            case ev.StepSkipped():
                values.update(step=event.step, metrics={}, updated=())
            case ev.AlertRaised():
                self._raise_alert(event, at)
            case ev.AlertEnded() if old := self._alerts.get(event.rule):
                last = max(old.step, event.step - 1)
                self._alerts[event.rule] = dataclasses.replace(old, step=last, ended=True)
            case ev.EvaluationFinished():
                # Without sampled completions the usual curve shows greedy ones.
                samples = self._head.config.get("evaluation", {}).get("samples")
                metrics = ev.evaluation_series(event) if samples else event.metrics
                for name, value in metrics.items():
                    self._push(name if "/" in name else f"eval/{name}", event.step, value)
            case ev.CheckpointSaved():
                self._acknowledge("checkpoint")
            case ev.RunPaused():
                self._acknowledge("pause")
                values.update(status="paused", paused_for=event.reason, paused_at=at)
            case ev.RunResumed():
                self._acknowledge("continue")
                values.update(status="running", paused_for="")
            case ev.RunFinished():
                values.update(status=event.reason, requested="", step=event.step)
            case ev.RunFailed():
                values.update(status="failed", requested="", failure=event)

    def update(
        self,
        board: BoardView | None,
        head: Head | None = None,
        muted: frozenset[str] = frozenset(),
        status: Status | None = None,
        checkpoint: int | None = None,
    ) -> None:
        """Take data that is not in events: progress, names, muted rules, a lost process."""
        if board is not None and board is not self._board:
            self._board, self._dirty = board, True
        if head is not None and head is not self._named:
            self._named, self._dirty, self._judged = head, True, None
        if muted != self._muted:
            self._muted, self._dirty, self._judged = muted, True, None
        if status not in (None, self._values["status"]):
            self._values.update(status=status, checkpoint=checkpoint)
            self._dirty, self._judged = True, None

    def ask(self, verb: Request) -> None:
        """Show a person's request at once; a pause that is withdrawn gets no reply."""
        withdrawn = verb == "continue" and self._values["status"] != "paused"
        self._values["requested"] = "" if withdrawn else verb
        self._dirty = True

    def _acknowledge(self, verb: Request) -> None:
        """Clear the request if it was this one; an event may be the reply to an earlier one."""
        if self._values.get("requested") == verb:
            self._values["requested"] = ""

    def note(self, text: str) -> None:
        """Add a line to the log."""
        step = self._values["step"]
        self._log.append(LogLine(at=None, step=step, severity="info", text=text))
        self._dirty = True

    # -- output -----------------------------------------------------------------------------

    @property
    def _head(self) -> Head:
        return dataclasses.replace(self._named, **self._started)

    def snapshot(self) -> Snapshot:
        """Return the current snapshot."""
        if self._dirty:
            self._dirty = False
            self._snapshot = self._make()
        return self._snapshot

    def _make(self) -> Snapshot:
        values = self._values
        board = self._board
        head, step = self._head, values["step"]
        # Never back: the board has forgotten a step before its events are here.
        self._current = max(self._current, step, board.step if board.phase else step)
        series = self._all_series()
        seconds = None
        if (times := series.get("step_time")) is not None:
            seconds = times.overall if values["status"] in ENDED else times.value
        left = max(0, head.total_steps - step)
        groups_step, groups = self._step_groups()
        trained_step, trained = self._trained
        live = board.tokens_per_second if board.phase in ("generate", "evaluate") else 0.0
        speed = series["tokens_per_second"].value if "tokens_per_second" in series else 0.0
        alerts = self._sorted_alerts()
        evidence = self._judged or self._evidence(head, series, alerts)
        healthy = self._snapshot.health if self._judged else health(evidence)
        self._judged = evidence
        return Snapshot(
            head=head,
            evidence=evidence,
            health=healthy,
            board=board,
            current_step=self._current if values["status"] not in ENDED else step,
            step_seconds=seconds,
            eta=self._time_left(seconds * left) if seconds is not None and left else None,
            tokens_per_second=live or speed,
            series=series,
            groups=groups,
            groups_step=groups_step,
            trained=trained,
            trained_step=trained_step,
            signal=tuple(self._signal),
            alerts=alerts,
            log=tuple(self._log),
            worked=sum(end - begin for begin, end in self._spans),
            **values,
        )

    def _time_left(self, estimate: float) -> float:
        """The seconds until the end: those of a recording are known."""
        head = self._head
        remaining = head.recorded - self._values.get("elapsed", 0.0)
        return (remaining if head.recorded else estimate) / head.speed

    def _evidence(
        self, head: Head, series: Mapping[str, Series], alerts: Sequence[AlertView]
    ) -> Evidence:
        """What the health of the run depends on, the same as of a stored one."""
        settings, status, step = flat(head.config), self._values["status"], self._values["step"]
        judge = Judge.of(settings, series)
        failure = self._values.get("failure")
        return Evidence.of(
            settings,
            {
                name: zip(series[name].steps, series[name].values, strict=True)
                for name in (*HEALTH_METRICS, judge.metric)
                if name in series
            },
            judge=judge,
            step=step,
            active=status not in ENDED,
            error=f"{failure.error}: {failure.message}" if failure else "",
            alerts={
                alert.rule: alert.explanation
                for alert in alerts
                if alert.is_recent(step) and not alert.muted
            },
        )

    def _sorted_alerts(self) -> tuple[AlertView, ...]:
        alerts = (
            dataclasses.replace(alert, muted=True) if rule in self._muted else alert
            for rule, alert in self._alerts.items()
        )
        return tuple(sorted(alerts, key=lambda alert: -alert.last_step))

    def _all_series(self) -> Mapping[str, Series]:
        """The series with the values that came since the last call."""
        for name, added in self._new.items():
            series = self._series.get(name) or Series.of(name)
            self._series[name] = series.extended(*added)
        self._new.clear()
        return self._series.copy()

    def _step_groups(self) -> tuple[int, tuple[StepGroup, ...]]:
        """Return the step on screen and its groups: in the board's order, with recorded scores.

        After the end they are the groups that were trained last.
        """
        board = self._board
        if self._values["status"] in ENDED and self._trained[1]:
            return self._trained
        if board.groups and board.step >= self._group_step:
            recorded = self._groups if board.step == self._group_step else {}
            return board.step, tuple(
                recorded.get((group.origin, group.index), group) for group in board.groups
            )
        groups = [*self._groups.values()]
        trained = [group for group in groups if group.origin == "train"]
        latest = next(reversed(trained or groups), None)
        return self._group_step, tuple(
            group  # greedy and sampled completions are not mixed
            for group in groups
            if latest and (group.origin, group.sampling) == (latest.origin, latest.sampling)
        )

    # -- events that change more than a value -----------------------------------------------

    def _start(self, event: ev.RunStarted) -> None:
        config = event.config
        self._current = event.step
        self._started = {
            "model": config.get("model", {}).get("path", ""),
            "recipe": event.recipe,
            "total_steps": event.total_steps or 0,
            "config": config,
        }
        if event.resumed:
            for name, series in self._all_series().items():
                self._series[name] = series.until(event.step)
            self._alerts = {
                rule: alert for rule, alert in self._alerts.items() if alert.step <= event.step
            }
            signal = (point for point in self._signal if point[0] <= event.step)
            self._signal = deque(signal, SIGNAL_STEPS)
            self._log = deque((line for line in self._log if line.step <= event.step), LOG_LINES)
            if self._group_step > event.step:
                self._groups.clear()  # the step is sampled again
                self._trained = (0, ())
                self._values.update(metrics={}, updated=())
        status: Status = "running" if trainer_of(config) else "loading"  # its model is loaded
        self._values.update(status=status, step=event.step, requested="", failure=None)

    def _add_group(self, event: ev.GroupScored) -> None:
        if event.step != self._group_step:
            self._group_step = event.step
            self._groups.clear()
        group = event.group
        if group.origin != "train":  # these advantages have no effect
            rollouts = (dataclasses.replace(item, advantage=None) for item in group.rollouts)
            group = dataclasses.replace(group, rollouts=tuple(rollouts))
        self._groups[(group.origin, group.index)] = group
        if group.origin == "train":
            groups = (group for group in self._groups.values() if group.origin == "train")
            self._trained = event.step, tuple(groups)

    def _finish_step(self, event: ev.StepFinished) -> None:
        for name, value in event.metrics.items():
            self._push(name, event.step, value)
        values, metrics = self._values, event.metrics
        values.update(
            status="paused" if values["status"] == "paused" else "running",
            step=event.step,
            metrics=metrics,
            updated=self._trained[1] if self._trained[0] == event.step else (),
            elapsed=event.elapsed,
        )
        if "frac_reward_zero_std" in metrics:
            self._signal.append((event.step, 1.0 - metrics["frac_reward_zero_std"]))

    def _raise_alert(self, event: ev.AlertRaised, at: float | None) -> None:
        old = self._alerts.get(event.rule)
        old = None if old and old.ended else old
        self._alerts[event.rule] = AlertView(
            **{field.name: getattr(event, field.name) for field in dataclasses.fields(event)},
            first_step=old.first_step if old else event.step,
            count=old.count + 1 if old else 1,
            at=at,
        )

    def _push(self, name: str, step: int, value: float) -> None:
        steps, values = self._new.setdefault(name, ([], []))
        steps.append(step)
        values.append(value)


def clock(at: float | None) -> str:
    """Format a log line's wall time as hours, minutes and seconds; blank if unknown."""
    if at is None or math.isnan(at):
        return " " * 8
    return time.strftime("%H:%M:%S", time.localtime(at))
