"""Exchange between a run and viewers in other processes: the board out, requests in."""

import json
import sqlite3
import time

from grpo_engine import events as ev
from grpo_engine.control import Control
from grpo_tui.experiments.board import Board, board_json
from grpo_tui.experiments.db.connection import begin
from grpo_tui.experiments.db.texts import now_iso, seconds, unescape

BOARD_PERIOD_S = 0.25
EXPIRE_S = 60.0

_ANSWERS: dict[str, tuple[type, ...]] = {
    "pause": (ev.RunPaused,),
    "continue": (ev.RunResumed,),
    "checkpoint": (ev.CheckpointSaved,),
    "stop_after_step": (ev.RunFinished, ev.RunFailed),
    "stop_now": (ev.RunFinished, ev.RunFailed),
}


class LiveBoard:
    def __init__(self, run: int, board: Board) -> None:
        self.run, self.board = run, board
        self._written = -1
        self._at = 0.0

    def poll(self, conn: sqlite3.Connection) -> None:
        """Write a changed board while a viewer's lease is fresh, at most once a period."""
        now = time.time()
        if self.board.version == self._written or now - self._at < BOARD_PERIOD_S:
            return
        row = conn.execute(
            "SELECT lease_until FROM run_live WHERE run_id = ?", (self.run,)
        ).fetchone()
        (lease_until,) = row or (0.0,)
        if lease_until < now:
            return
        view = self.board.snapshot()
        begin(conn, limit=0.05)
        conn.execute(
            "UPDATE run_live SET version = ?, updated_at = ?, board = ? WHERE run_id = ?",
            (view.version, now, json.dumps(board_json(view), separators=(",", ":")), self.run),
        )
        conn.execute("COMMIT")
        self._written, self._at = view.version, now


class Requests:
    """Takes requests of other processes for one attempt and records their outcomes."""

    def __init__(self, run: int, attempt: int, control: Control) -> None:
        self.run, self.attempt, self.control = run, attempt, control
        self._taken: list[tuple[int, str]] = []
        self._done: list[int] = []

    def poll(self, conn: sqlite3.Connection) -> None:
        """Take new requests; those for other attempts or older than a minute expire."""
        if self._done:
            self._outcome(conn, self._done, "done")
            self._done = []
        rows = conn.execute(
            "SELECT id, attempt, verb, argument, asked_at FROM control "
            "WHERE run_id = ? AND outcome = '' AND taken_at IS NULL ORDER BY id",
            (self.run,),
        ).fetchall()
        old = [
            key
            for key, attempt, _, _, asked in rows
            if attempt != self.attempt or time.time() - seconds(asked) > EXPIRE_S
        ]
        if old:
            self._outcome(conn, old, "expired")
        for key, _, verb, argument, _ in rows:
            if key not in old:
                self._take(conn, key, verb, unescape(argument))

    def _take(self, conn: sqlite3.Connection, key: int, verb: str, argument: str) -> None:
        holds = self.control.paused
        begin(conn, limit=0.2)
        conn.execute("UPDATE control SET taken_at = ? WHERE id = ?", (now_iso(), key))
        conn.execute("COMMIT")
        if verb == "pin":
            self.control.pin(argument)
            self._done.append(key)
        elif verb in _ANSWERS:
            self.control.ask(verb)  # type: ignore[arg-type]
            if (verb == "pause" and holds) or (verb == "continue" and not holds):
                self._done.append(key)
            else:
                self._taken.append((key, verb))
        else:
            self._outcome(conn, [key], "refused")

    def saw(self, event: ev.Event) -> None:
        """Mark the requests that an event answers."""
        answered = [key for key, verb in self._taken if isinstance(event, _ANSWERS[verb])]
        self._done += answered
        self._taken = [pair for pair in self._taken if pair[0] not in answered]

    def finish(self, conn: sqlite3.Connection) -> None:
        """Write the remaining outcomes at the end; a request that stopped the run is done."""
        stops = [key for key, verb in self._taken if verb.startswith("stop")]
        if self._done or stops:
            self._outcome(conn, self._done + stops, "done")

    def _outcome(self, conn: sqlite3.Connection, keys: list[int], outcome: str) -> None:
        begin(conn, limit=0.2)
        conn.executemany(
            "UPDATE control SET outcome = ? WHERE id = ?", [(outcome, key) for key in keys]
        )
        conn.execute("COMMIT")
