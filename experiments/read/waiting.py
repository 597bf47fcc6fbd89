"""Queries on the board for viewers, requests and the queue."""

import time
from typing import Any

from sqlalchemy import Select, not_, select

from grpo_tui.experiments.board import board_from_json
from grpo_tui.experiments.db.tables import ATTEMPT, CONTROL, QUEUE_ITEM, RUN, RUN_LIVE, SWEEP
from grpo_tui.experiments.db.texts import seconds
from grpo_tui.experiments.errors import NothingStoredError
from grpo_tui.experiments.read.connection import Reading, as_view
from grpo_tui.experiments.read.post_mortem import last_sign
from grpo_tui.experiments.values import (
    BoardView,
    ControlState,
    ControlView,
    QueueItemView,
    SweepView,
)

NO_ANSWER_S = 5.0
OPEN = QUEUE_ITEM.c.state.in_(("queued", "leased"))


class WaitingQuestions(Reading):
    def board(self, run: int) -> BoardView | None:
        """Return the board as the run's process last wrote it for viewers."""
        board = self._value(select(RUN_LIVE.c.board).where(RUN_LIVE.c.run_id == run))
        return board_from_json(board) if board else None

    def control(self, request: int) -> ControlView:
        """Return a request and its outcome: asked, taken, done, expired, or no answer."""
        columns = CONTROL.c
        attempt = (ATTEMPT.c.run_id == columns.run_id) & (ATTEMPT.c.n == columns.attempt)
        row = self._first(
            select(CONTROL, ATTEMPT.c.heartbeat)
            .outerjoin_from(CONTROL, ATTEMPT, attempt)
            .where(columns.id == request)
        )
        if row is None:
            raise NothingStoredError(f"there is no request {request}")
        return _control(row)

    def queue(self, *, ended: int = 0) -> tuple[QueueItemView, ...]:
        """Return the waiting and active runs in order, then the last `ended` others."""
        if self.schema < 3:
            return ()
        found = self._items(self._queued().where(OPEN))
        if ended:
            query = self._queued().where(not_(OPEN)).order_by(None)
            found += self._items(query.order_by(QUEUE_ITEM.c.id.desc()).limit(ended))
        return found

    def _queued(self) -> Select[Any]:
        query = self._select(
            QueueItemView,
            QUEUE_ITEM,
            SWEEP.c.name.label("sweep"),
            RUN.c.short.label("run"),
            run=None,
        )
        is_run = (RUN.c.id == QUEUE_ITEM.c.run_id) & self._not_deleted()
        query = query.outerjoin_from(QUEUE_ITEM, SWEEP).outerjoin(RUN, is_run)
        return query.order_by(QUEUE_ITEM.c.id)

    def _items(self, query: Select[Any]) -> tuple[QueueItemView, ...]:
        return tuple(
            as_view(QueueItemView, row, lease_until=row.lease_until or None)
            for row in self._all(query)
        )

    def sweeps(self) -> tuple[SweepView, ...]:
        """Return the sweeps, newest first."""
        if self.schema < 3:
            return ()
        return tuple(map(self.sweep, self._column(select(SWEEP.c.id).order_by(SWEEP.c.id.desc()))))

    def sweep(self, key: int) -> SweepView:
        items = self._items(self._queued().where(QUEUE_ITEM.c.sweep_id == key))
        for row in self._all(self._select(SweepView, SWEEP, id="uid").where(SWEEP.c.id == key)):
            axes = {path: tuple(values) for path, values in row.axes.items()}
            return as_view(SweepView, row, axes=axes, items=items)
        raise NothingStoredError(f"there is no sweep {key}")


def _control(row: Any) -> ControlView:
    verb, now = row.verb.replace("_", " "), time.time()
    sign = last_sign(row.heartbeat, now) if row.heartbeat else "it never gave a sign of life"
    state: ControlState
    if row.outcome == "done":
        state, message = "done", f"{verb}: done"
    elif row.outcome:
        state, message = "expired", f"{verb}: not accepted, the run had ended or restarted"
    elif row.taken_at:
        state, message = "taken", f"{verb}: accepted, waiting for the next safe point"
    elif now - seconds(row.asked_at) > NO_ANSWER_S:
        state, message = "no answer", f"{verb}: no answer, {sign}"
    else:
        state, message = "asked", f"{verb}: asked"
    return ControlView(state=state, message=message)
