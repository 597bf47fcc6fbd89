"""Exchange between a run and viewers in other processes: signs of life out, requests in."""

import time

from sqlalchemy import select

from grpo_engine import events as ev
from grpo_engine.control import Control
from grpo_tui.experiments.board import Board
from grpo_tui.experiments.db.machine import memory_now
from grpo_tui.experiments.db.tables import ATTEMPT, CONTROL, RUN_LIVE
from grpo_tui.experiments.db.texts import iso, now_iso, seconds
from grpo_tui.experiments.record.writer import RunWriter
from grpo_tui.experiments.store import VERBS

PERIOD_S = 2.0
BOARD_PERIOD_S = 0.25
EXPIRE_S = 60.0


class Heartbeat:
    """Writes when the process was alive, when the run progressed, and what memory is used."""

    def __init__(self, writer: RunWriter) -> None:
        self.writer = writer
        self.progress_at = time.time()
        self._at = self._slept = 0.0
        self._drift = time.time() - time.monotonic()

    def poll(self) -> None:
        """Write at most once every `PERIOD_S` seconds."""
        now = time.time()
        if 0 <= now - self._at < PERIOD_S:
            return
        # a suspended machine stops the monotonic clock, not the wall clock
        moved = now - time.monotonic() - self._drift
        if moved > 5.0:
            self._slept += moved
        self._drift += moved
        rss, free = memory_now()
        attempt = ATTEMPT.update().filter_by(run_id=self.writer.run, n=self.writer.attempt)
        self.writer.execute(
            attempt.values(
                heartbeat=iso(now), progress_at=iso(self.progress_at), rss_gb=rss, free_gb=free,
                slept_s=self._slept,
            )
        )  # fmt: skip
        self._at = now


class LiveBoard:
    def __init__(self, writer: RunWriter, board: Board) -> None:
        self.writer, self.board = writer, board
        self._written = -1
        self._at = 0.0

    def poll(self) -> None:
        """Write a changed board while a viewer's lease is fresh, at most once a period."""
        now = time.time()
        if self.board.version == self._written or now - self._at < BOARD_PERIOD_S:
            return
        run = self.writer.run
        lease = self.writer.conn.scalar(select(RUN_LIVE.c.lease_until).filter_by(run_id=run))
        if lease is None or lease < now:
            return
        view = self.board.snapshot()
        live = RUN_LIVE.update().filter_by(run_id=run)
        self.writer.execute(
            live.values(version=view.version, updated_at=now, board=ev.encode(view))
        )
        self._written, self._at = view.version, now


class Requests:
    """Takes requests of other processes for one attempt."""

    def __init__(self, writer: RunWriter, control: Control) -> None:
        self.writer, self.control = writer, control

    def poll(self) -> None:
        """Take new requests; those for other attempts or older than a minute expire."""
        query = select(CONTROL).filter_by(run_id=self.writer.run, outcome="", taken_at=None)
        for row in self.writer.conn.execute(query.order_by(CONTROL.c.id)).all():
            late = time.time() - seconds(row.asked_at) > EXPIRE_S
            if late or row.attempt != self.writer.attempt:
                outcome = "expired"
            else:
                outcome = "done" if row.verb in VERBS else "refused"
            request = CONTROL.update().filter_by(id=row.id)
            self.writer.execute(request.values(taken_at=now_iso(), outcome=outcome))
            if outcome == "done" and row.verb == "pin":
                self.control.pin(row.argument)
            elif outcome == "done":
                self.control.ask(row.verb)
