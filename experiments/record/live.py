"""Exchange between a run and viewers in other processes: signs of life out, requests in."""

import time

from sqlalchemy import select

from grpo_engine import events as ev
from grpo_engine.control import Control
from grpo_engine.platform.memory import memory
from grpo_tui.experiments.board import Board
from grpo_tui.experiments.db.tables import ATTEMPT, CONTROL, RUN_LIVE
from grpo_tui.experiments.db.texts import iso, now_iso, seconds
from grpo_tui.experiments.record.writer import RunWriter
from grpo_tui.experiments.values import BoardView

PERIOD_S = 2.0
EXPIRE_S = 60.0


class Exchange:
    """Writes signs of life and the board of an attempt, and takes requests for it."""

    def __init__(self, writer: RunWriter, board: Board, control: Control) -> None:
        self.writer, self.board, self.control = writer, board, control
        self.progress_at = time.time()
        self._beat_at = 0.0
        self._written: BoardView | None = None
        self._read: tuple[object, int] | None = None  # the connection, and the version it read
        self._lease_until = 0.0

    def poll(self) -> None:
        """Exchange with viewers; five times a second, so next to nothing while none is there."""
        now = time.time()
        connection = self.writer.connection
        # Changes whenever another connection commits, as viewers do.
        [version] = connection.execute("PRAGMA data_version").fetchone()
        if self._read != (connection, version):
            self._take_requests(now)
            lease = select(RUN_LIVE.c.lease_until).filter_by(run_id=self.writer.run)
            self._lease_until = self.writer.sql.scalar(lease) or 0.0
            self._read = connection, version
        if self._lease_until >= now and self.board.view is not self._written:
            self._write_board()
        if not 0 <= now - self._beat_at < PERIOD_S:
            self._beat(now)

    def _take_requests(self, now: float) -> None:
        """Take new requests; those older than a minute expire."""
        query = select(CONTROL).filter_by(
            run_id=self.writer.run, attempt=self.writer.attempt, outcome=""
        )
        for row in self.writer.sql.execute(query.order_by(CONTROL.c.id)).all():
            outcome = "expired" if now - seconds(row.asked_at) > EXPIRE_S else "done"
            request = CONTROL.update().filter_by(id=row.id)
            self.writer.execute(request.values(taken_at=now_iso(), outcome=outcome))
            if outcome == "done" and row.verb == "pin":
                self.control.pin(row.argument)
            elif outcome == "done":
                self.control.ask(row.verb)

    def _write_board(self) -> None:
        view = self.board.view
        live = RUN_LIVE.update().filter_by(run_id=self.writer.run)
        self.writer.execute(live.values(board=ev.encode(view)))
        self._written = view

    def _beat(self, now: float) -> None:
        """Write signs of life: the times of this beat and of the last progress, and memory."""
        used = memory()
        attempt = ATTEMPT.update().filter_by(run_id=self.writer.run, n=self.writer.attempt)
        self.writer.execute(
            attempt.values(
                heartbeat=iso(now),
                progress_at=iso(self.progress_at),
                rss_gb=used.process / 1e9,
                free_gb=used.available / 1e9,
            )
        )
        self._beat_at = now
