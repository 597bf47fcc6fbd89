"""Keep the machine awake while a run trains, and notice sleep and a low battery."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Final

import psutil

from grpo_engine.events import AlertRaised, Event, warning
from grpo_engine.platform.spawn import NULL, start
from grpo_tui.app.text.numbers import seconds

ALLOW_SLEEP: Final = "GRPO_TUI_ALLOW_SLEEP"  # set by `--allow-sleep`, also for detached runs
LOGIND = Path("/run/systemd/seats")
SLEPT_S, BATTERY_S = 5.0, 60.0  # shortest sleep that is noted; time between checks of the battery
LOW = 20.0  # percent


@contextmanager
def awake() -> Iterator[None]:
    """Prevent idle sleep within the block; the display may sleep."""
    child = None
    if command := keeps_awake(os.getpid()):
        with suppress(OSError):
            # A group of its own: the machine stays awake while an interrupted run saves.
            child = start(command, os.environ, (NULL, NULL, NULL), scope="group")
    try:
        yield
    finally:
        if child is not None:
            child.terminate()
            child.wait()


def keeps_awake(pid: int) -> list[str]:
    """The command that prevents idle sleep while the process lives; empty if there is none."""
    if os.environ.get(ALLOW_SLEEP):
        return []
    if sys.platform == "darwin":
        return ["caffeinate", "-i", "-w", str(pid)]
    if not LOGIND.is_dir():
        return []
    inhibit = ["systemd-inhibit", "--what=idle", "--who=grpo-tui", "--why=a run trains"]
    return [*inhibit, "tail", f"--pid={pid}", "--follow", os.devnull]


def asleep() -> float:
    """Seconds that this machine has slept: a clock that counts sleep less one that does not.

    Unlike the time of day, neither is ever set.
    """
    if sys.platform == "darwin":
        clock, awake_clock = time.CLOCK_MONOTONIC_RAW, time.CLOCK_UPTIME_RAW
    else:
        clock, awake_clock = time.CLOCK_BOOTTIME, time.CLOCK_MONOTONIC
    return time.clock_gettime(clock) - time.clock_gettime(awake_clock)


class PowerWatch:
    """Reports at the end of a step that the machine slept or that its battery is low."""

    def __init__(self) -> None:
        self._asleep, self._checked = asleep(), -inf
        self._low = False

    def events(self, step: int) -> Iterator[Event]:
        before, self._asleep = self._asleep, asleep()
        if (slept := self._asleep - before) > SLEPT_S:
            text = f"the machine slept for {seconds(slept)}"
            yield warning(step, text)
        if time.monotonic() - self._checked < BATTERY_S:
            return
        self._checked, was_low = time.monotonic(), self._low
        percent = battery()
        self._low = percent < LOW
        if self._low and not was_low:
            yield AlertRaised(
                step=step,
                rule="battery_low",
                severity="warning",
                explanation=f"The battery is at {percent:.0f}% and not charging.",
                remedy="Plug the machine in, or stop the run, which saves a checkpoint.",
                value=percent,
                limit=LOW,
            )


def battery() -> float:
    """The charge in percent; 100 while it is charged, without one, and where it cannot be read."""
    with suppress(Exception):  # no content of the system's files may end the run
        state = psutil.sensors_battery()
        if state is not None and not state.power_plugged:
            return float(state.percent)
    return 100.0
