"""Detects products that stall because other programs use the same cores, and gives up a thread."""

from time import monotonic
from typing import Final

from grpo_engine.cpu import blas
from grpo_engine.frozen import frozen
from grpo_engine.platform import speed

COLLAPSE: Final = 5.0  # times the usual duration
STRIKES: Final = 3
EVERY: Final = 5.0  # seconds between checks, which take a few milliseconds each
MEASURE_S: Final = 0.003


@frozen
class CoreGivenUp:
    """Products stalled, so they use one thread fewer."""

    milliseconds: float
    usual: float
    before: int
    after: int

    @property
    def explanation(self) -> str:
        """What happened, for people."""
        return (
            f"Other programs use this machine's cores: a small matrix product took "
            f"{self.milliseconds:.1f} ms instead of {self.usual:.2f}. From here on matrix products "
            f"use {self.after} of {self.before} threads; numbers may differ in their last "
            "digits."
        )

    @property
    def remedy(self) -> str:
        """How to avoid it."""
        return f"Close other busy programs, or start with GRPO_TUI_THREADS={self.after}."


class ThreadGuard:
    """Times one engine's products; call `check` between steps on the engine's thread.

    With one thread per core, a small product takes 10 to 60 times as long as soon as another
    program takes one core. With one thread fewer, no thread waits for that core.
    """

    def __init__(self) -> None:
        self.strikes = 0
        self.checked = -EVERY
        self.usual_ms = 0.0

    def check(self) -> CoreGivenUp | None:
        """Use one thread fewer, and say so, if products stalled three times in a row."""
        state = blas.state()
        if state is None or state.threads < 2 or monotonic() - self.checked < EVERY:
            return None
        used = state.threads
        if not self.usual_ms:
            blas.set_threads(used - 1)
            self.usual_ms = speed.measure(speed.SKINNY, MEASURE_S).milliseconds
            blas.set_threads(used)
        now = speed.measure(speed.SKINNY, MEASURE_S).milliseconds
        self.strikes = self.strikes + 1 if now > COLLAPSE * self.usual_ms else 0
        self.checked = monotonic()
        if self.strikes < STRIKES:
            return None
        self.strikes = 0
        after = blas.set_threads(used - 1)
        return CoreGivenUp(milliseconds=now, usual=self.usual_ms, before=used, after=after)
