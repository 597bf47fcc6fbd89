"""Questions about what waits: the board for viewers, requests, the queue."""

import json
import time
from typing import Any

from experiments.board import board_from_json
from experiments.db.texts import seconds
from experiments.errors import NothingStoredError
from experiments.read.connection import Reading, text
from experiments.read.post_mortem import last_sign
from experiments.values import BoardView, ControlView, QueueItemView, SweepView

NO_ANSWER_S = 5.0
_ITEM = (
    "SELECT q.id, sweep.name, q.name, q.state, q.settings, q.config, q.lease_owner, "
    "q.lease_until, run.short, q.note, q.created_at FROM queue_item q "
    "LEFT JOIN sweep ON sweep.id = q.sweep_id LEFT JOIN run ON run.id = q.run_id "
)


class WaitingQuestions(Reading):
    """What can be asked about requests, the queue and the board."""

    def board(self, run: int) -> BoardView | None:
        """The board as the run's process last wrote it for viewers."""
        row = self._one("SELECT board FROM run_live WHERE run_id = ? AND board != ''", (run,))
        return board_from_json(json.loads(row[0])) if row else None

    def control(self, request: int) -> ControlView:
        """What became of a request: asked, taken, done, expired, or no answer."""
        row = self._one(
            "SELECT c.id, c.run_id, c.verb, c.asked_at, c.taken_at, c.outcome, a.heartbeat "
            "FROM control c LEFT JOIN attempt a ON a.run_id = c.run_id AND a.n = c.attempt "
            "WHERE c.id = ?",
            (request,),
        )
        if row is None:
            raise NothingStoredError(f"there is no request {request}")
        return _control(row)

    def queue(self, *, all_states: bool = False) -> tuple[QueueItemView, ...]:
        """The runs that wait for their turn or have it, in order."""
        if self.schema < 3:
            return ()
        where = "" if all_states else "WHERE q.state IN ('queued', 'leased') "
        return tuple(_item(row) for row in self._all(_ITEM + where + "ORDER BY q.id"))

    def sweeps(self) -> tuple[SweepView, ...]:
        """The sweeps, the newest first."""
        if self.schema < 3:
            return ()
        keys = self._all("SELECT id FROM sweep ORDER BY id DESC")
        return tuple(self.sweep(key) for (key,) in keys)

    def sweep(self, key: int) -> SweepView:
        """One sweep with its items."""
        row = self._one("SELECT uid, name, created_at, axes FROM sweep WHERE id = ?", (key,))
        if row is None:
            raise NothingStoredError(f"there is no sweep {key}")
        items = self._all(_ITEM + "WHERE q.sweep_id = ? ORDER BY q.id", (key,))
        return SweepView(
            id=row[0], name=text(row[1]), created_at=row[2],
            axes={path: tuple(values) for path, values in json.loads(row[3]).items()},
            items=tuple(_item(item) for item in items),
        )  # fmt: skip


def _control(row: Any) -> ControlView:
    key, run, verb, asked, taken, outcome, heartbeat = row
    waited = time.time() - seconds(asked)
    sign = last_sign(heartbeat, time.time()) if heartbeat else "it never gave a sign of life"
    word = verb.replace("_", " ")
    if outcome == "done":
        state, message = "done", f"{word}: done"
    elif outcome:
        state, message = "expired", f"{word}: not taken up, the run had ended or moved on"
    elif taken:
        state, message = "taken", f"{word}: taken up, waiting for the next safe point"
    elif waited > NO_ANSWER_S:
        state, message = "no answer", f"{word}: no answer, {sign}"
    else:
        state, message = "asked", f"{word}: asked"
    return ControlView(
        key=key, run=run, verb=verb, asked_at=asked, taken_at=taken, outcome=outcome,
        state=state, message=message,  # type: ignore[arg-type]
    )  # fmt: skip


def _item(row: Any) -> QueueItemView:
    return QueueItemView(
        key=row[0], sweep=text(row[1]) or None, name=text(row[2]), state=row[3],
        settings=json.loads(row[4]), config=json.loads(row[5]), lease_owner=row[6],
        lease_until=row[7] or None, run=row[8], note=text(row[9]),
    )  # fmt: skip
