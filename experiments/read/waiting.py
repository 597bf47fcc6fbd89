"""Queries on the board for viewers, requests and the queue."""

import json
import time
from typing import Any

from grpo_tui.experiments.board import board_from_json
from grpo_tui.experiments.db.texts import seconds
from grpo_tui.experiments.errors import NothingStoredError
from grpo_tui.experiments.read.connection import Reading, text
from grpo_tui.experiments.read.post_mortem import last_sign
from grpo_tui.experiments.read.shapes import Shape
from grpo_tui.experiments.values import (
    BoardView,
    ControlState,
    ControlView,
    QueueItemView,
    SweepView,
)

NO_ANSWER_S = 5.0
ITEM = Shape(QueueItemView, "queue_item", sweep="", run="")
SWEEP = Shape(SweepView, "sweep", id="uid")
_JOINED = (
    "LEFT JOIN sweep ON sweep.id = queue_item.sweep_id LEFT JOIN run ON run.id = queue_item.run_id "
)


class WaitingQuestions(Reading):
    def board(self, run: int) -> BoardView | None:
        """Return the board as the run's process last wrote it for viewers."""
        board = self._value("SELECT board FROM run_live WHERE run_id = ? AND board != ''", (run,))
        return board_from_json(json.loads(board)) if board else None

    def control(self, request: int) -> ControlView:
        """Return a request and its outcome: asked, taken, done, expired, or no answer."""
        row = self._one(
            "SELECT c.verb, c.asked_at, c.taken_at, c.outcome, a.heartbeat "
            "FROM control c LEFT JOIN attempt a ON a.run_id = c.run_id AND a.n = c.attempt "
            "WHERE c.id = ?",
            (request,),
        )
        if row is None:
            raise NothingStoredError(f"there is no request {request}")
        return _control(row)

    def queue(self, *, ended: int = 0) -> tuple[QueueItemView, ...]:
        """Return the waiting and active runs in order, then the last `ended` others."""
        if self.schema < 3:
            return ()
        open_ = "state IN ('queued', 'leased')"
        found = self._queued(f"WHERE {open_} ORDER BY queue_item.id")
        if ended:
            found += self._queued(f"WHERE NOT {open_} ORDER BY queue_item.id DESC LIMIT ?", ended)
        return found

    def _queued(self, rest: str, *values: int) -> tuple[QueueItemView, ...]:
        columns = self._columns(ITEM, _JOINED + rest, values, "sweep.name", "run.short")
        columns["sweep"] = [text(name) or None for name in columns["sweep.name"]]
        columns["run"] = columns["run.short"]
        columns["lease_until"] = [until or None for until in columns["lease_until"]]
        return tuple(ITEM.make(columns))

    def sweeps(self) -> tuple[SweepView, ...]:
        """Return the sweeps, newest first."""
        if self.schema < 3:
            return ()
        return tuple(map(self.sweep, self._column("SELECT id FROM sweep ORDER BY id DESC")))

    def sweep(self, key: int) -> SweepView:
        items = self._queued("WHERE queue_item.sweep_id = ? ORDER BY queue_item.id", key)
        columns = self._columns(SWEEP, "WHERE id = ?", (key,))
        columns["axes"] = [
            {path: tuple(values) for path, values in axes.items()} for axes in columns["axes"]
        ]
        for sweep in SWEEP.make(columns | {"items": [items]}):
            return sweep
        raise NothingStoredError(f"there is no sweep {key}")


def _control(row: Any) -> ControlView:
    verb, asked, taken, outcome, heartbeat = row
    waited = time.time() - seconds(asked)
    sign = last_sign(heartbeat, time.time()) if heartbeat else "it never gave a sign of life"
    word = verb.replace("_", " ")
    state: ControlState
    if outcome == "done":
        state, message = "done", f"{word}: done"
    elif outcome:
        state, message = "expired", f"{word}: not accepted, the run had ended or restarted"
    elif taken:
        state, message = "taken", f"{word}: accepted, waiting for the next safe point"
    elif waited > NO_ANSWER_S:
        state, message = "no answer", f"{word}: no answer, {sign}"
    else:
        state, message = "asked", f"{word}: asked"
    return ControlView(state=state, message=message)
