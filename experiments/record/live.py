"""Exchange between a run and viewers in other processes: signs of life out, requests in."""

import time

from sqlalchemy import select

from grpo_engine import events as ev
from grpo_engine.control import Control
from grpo_tui.experiments.board import Board
from grpo_tui.experiments.db.connection import begin
from grpo_tui.experiments.db.machine import memory_now
from grpo_tui.experiments.db.tables import ATTEMPT, CONTROL, RUN_LIVE
from grpo_tui.experiments.db.texts import iso, now_iso, seconds
from grpo_tui.experiments.record.writer import RunWriter

PERIOD_S = 2.0
BOARD_PERIOD_S = 0.25
EXPIRE_S = 60.0

_ANSWERS: dict[str, tuple[type, ...]] = {
    "pause": (ev.RunPaused,),
    "continue": (ev.RunResumed,),
    "checkpoint": (ev.CheckpointSaved,),
    "stop_after_step": (ev.RunFinished, ev.RunFailed),
    "stop_now": (ev.RunFinished, ev.RunFailed),
}


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
        begin(self.writer.file, limit=0.2)
        with self.writer.file:
            self.writer.conn.execute(
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
        begin(self.writer.file, limit=0.05)
        with self.writer.file:
            self.writer.conn.execute(
                live.values(version=view.version, updated_at=now, board=ev.encode(view))
            )
        self._written, self._at = view.version, now


class Requests:
    """Takes requests of other processes for one attempt and records their outcomes."""

    def __init__(self, writer: RunWriter, control: Control) -> None:
        self.writer, self.control = writer, control
        self._accepted: dict[int, str] = {}  # until an event answers them
        self._done: list[int] = []

    def poll(self) -> None:
        """Take new requests; those for other attempts or older than a minute expire."""
        if self._done:
            self._set(self._done, outcome="done")
            self._done = []
        query = select(CONTROL).filter_by(run_id=self.writer.run, outcome="", taken_at=None)
        for row in self.writer.conn.execute(query.order_by(CONTROL.c.id)).all():
            late = time.time() - seconds(row.asked_at) > EXPIRE_S
            if late or row.attempt != self.writer.attempt:
                self._set([row.id], outcome="expired")
            elif row.verb in ("pin", *_ANSWERS):
                self._take(row.id, row.verb, row.argument)
            else:
                self._set([row.id], taken_at=now_iso(), outcome="refused")

    def _take(self, key: int, verb: str, argument: str) -> None:
        """Pass a request on; what is so already is done."""
        self._set([key], taken_at=now_iso())
        is_so = {"pause": self.control.paused, "continue": not self.control.paused}
        if verb == "pin":
            self.control.pin(argument)
        else:
            self.control.ask(verb)  # type: ignore[arg-type]
        if verb == "pin" or is_so.get(verb):
            self._done.append(key)
        else:
            self._accepted[key] = verb

    def saw(self, event: ev.Event) -> None:
        """Mark the requests that an event answers."""
        for key, verb in [*self._accepted.items()]:
            if isinstance(event, _ANSWERS[verb]):
                self._done.append(key)
                del self._accepted[key]

    def finish(self) -> None:
        """Write the remaining outcomes at the end; a request that stopped the run is done."""
        done = [*self._done, *(key for key, verb in self._accepted.items() if "stop" in verb)]
        if done:
            self._set(done, outcome="done")

    def _set(self, keys: list[int], **values: str) -> None:
        begin(self.writer.file, limit=0.2)
        with self.writer.file:
            self.writer.conn.execute(CONTROL.update().where(CONTROL.c.id.in_(keys)).values(values))
