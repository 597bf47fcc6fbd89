"""How much of this machine's processors other programs use."""

from time import monotonic
from typing import Final

import psutil

BUSY: Final = ("user", "nice", "system", "irq", "softirq", "steal")
EVERY: Final = 10.0  # seconds between searches for child processes, some milliseconds each


class ExternalLoad:
    """Processor time of programs that are neither this process nor its children."""

    def __init__(self) -> None:
        self._processes: dict[psutil.Process, float] = {}
        self._searched = -EVERY
        self._started = self._busy = 0.0

    def start(self) -> None:
        if monotonic() - self._searched >= EVERY:
            self._searched = monotonic()
            self._processes = dict.fromkeys(self._search(), 0.0)
        self._processes = {process: used(process) for process in self._processes}
        self._started, self._busy = monotonic(), busy()

    def _search(self) -> tuple[psutil.Process, ...]:
        this = psutil.Process()
        return this, *this.children(recursive=True)

    def processors(self) -> float:
        """Processors that other programs kept busy since `start`."""
        # a process that ended has used what it had at the start
        internal = sum(
            max(0.0, used(process) - before) for process, before in self._processes.items()
        )
        passed = monotonic() - self._started
        return max(0.0, busy() - self._busy - internal) / passed if passed > 0 else 0.0


def busy() -> float:
    """Processor seconds that were not idle since the machine started."""
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in BUSY)


def used(process: psutil.Process) -> float:
    """Processor seconds of a process; 0 of one that has ended."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system
