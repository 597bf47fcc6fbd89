"""The heartbeat of an attempt, on its own thread so that work cannot delay it."""

import threading
import time
from contextlib import suppress

from grpo_tui.experiments.db.machine import memory_now
from grpo_tui.experiments.db.tables import ATTEMPT
from grpo_tui.experiments.db.texts import now_iso
from grpo_tui.experiments.record.spill import STORE_ERRORS
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
            with suppress(*STORE_ERRORS):
                self._beat()

    def _beat(self) -> None:
        rss, free = memory_now()
        of_attempt = (ATTEMPT.c.run_id == self.run_key, ATTEMPT.c.n == self.attempt)
        self.store.execute(
            ATTEMPT.update()
            .where(*of_attempt)
            .values(heartbeat=now_iso(), rss_gb=rss, free_gb=free, slept_s=self._slept)
        )

    def stop(self) -> None:
        self._done.set()
        self.join()
