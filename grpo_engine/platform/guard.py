"""Notices when products stall because other programs want the same cores, and gives a core up."""

from time import monotonic
from typing import Final

from grpo_engine.platform import blas, speed

COLLAPSE: Final = 5.0
STRIKES: Final = 3
EVERY: Final = 5.0  # seconds between looks, each a few milliseconds long
GLANCE: Final = 0.003


class ThreadGuard:
    """Watches one engine's products; call `check` between steps on the engine's thread.

    One thread less never waits for a core that another program has; with all of them a small
    product takes 10 to 60 times as long as soon as one core is taken.
    """

    def __init__(self) -> None:
        self.strikes = 0
        self.looked = -EVERY
        self.fewer = 0.0

    def check(self) -> str:
        """What was changed and why, for an alert; empty where nothing had to be."""
        state = blas.state()
        if state is None or state.threads < 2 or monotonic() - self.looked < EVERY:
            return ""
        used = state.threads
        now = speed.measure(speed.SKINNY, GLANCE).milliseconds
        if now > COLLAPSE * (self.fewer or now):
            self.strikes += 1
        elif not self.fewer:
            blas.set_threads(used - 1)
            self.fewer = speed.measure(speed.SKINNY, GLANCE).milliseconds
            blas.set_threads(used)
        else:
            self.strikes = 0
        self.looked = monotonic()
        if self.strikes < STRIKES:
            return ""
        blas.set_threads(used - 1)
        self.strikes = 0
        return (
            f"Other programs use this machine's cores: a small product took {now:.1f} ms instead "
            f"of {self.fewer:.2f}. Going on with {used - 1} of {used} threads for matrix products; "
            f"set GRPO_TUI_THREADS={used - 1} to start so."
        )
