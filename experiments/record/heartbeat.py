"""The heartbeat of an attempt, on its own thread so that work cannot delay it."""

import contextlib
import sqlite3
import threading
import time
from contextlib import closing

from grpo_tui.experiments.db.connection import begin, open_writer
from grpo_tui.experiments.db.machine import memory_now
from grpo_tui.experiments.db.texts import iso
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.store import ExperimentStore

PERIOD_S = 2.0


class Heartbeat(threading.Thread):
    """Writes the time, the memory use and the seconds suspended to the attempt's row."""

    def __init__(self, store: ExperimentStore, run: int, attempt: int) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.store, self.run_key, self.attempt = store, run, attempt
        self._done = threading.Event()
        self._slept = 0.0

    def run(self) -> None:
        """Write a heartbeat every `PERIOD_S` seconds until `stop`."""
        drift = time.time() - time.monotonic()
        while not self._done.wait(PERIOD_S):
            # a suspended machine stops the monotonic clock, not the wall clock
            moved = time.time() - time.monotonic() - drift
            if moved > 5.0:
                self._slept += moved
            drift += moved
            with contextlib.suppress(sqlite3.Error, StoreError, OSError):
                self._beat()

    def _beat(self) -> None:
        held, left = memory_now()
        with closing(open_writer(self.store.path)) as conn:
            begin(conn, limit=1.0)
            conn.execute(
                "UPDATE attempt SET heartbeat = ?, rss_gb = ?, free_gb = ?, slept_s = ? "
                "WHERE run_id = ? AND n = ?",
                (iso(time.time()), held, left, self._slept, self.run_key, self.attempt),
            )
            conn.execute("COMMIT")

    def stop(self) -> None:
        self._done.set()
        self.join()
