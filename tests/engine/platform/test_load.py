"""What other programs use is what the machine used less what this process and its children did."""

import os

import psutil
import pytest

from grpo_engine.platform import load
from grpo_engine.platform.load import ExternalLoad


class Machine:
    """Counters of a made-up machine with a process that has one child."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.busy = 0.0, 1000.0
        self.used = {1: 50.0, 2: 7.0}
        monkeypatch.setattr(load, "monotonic", lambda: self.now)
        monkeypatch.setattr(load, "busy", lambda: self.busy)
        monkeypatch.setattr(load, "used", lambda process: self.used.get(process, 0.0))
        monkeypatch.setattr(ExternalLoad, "_search", lambda _: (1, 2))


def test_processors_of_others_are_all_less_the_own_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    measured = ExternalLoad()
    measured.start()
    machine.now, machine.busy = 4.0, 1008.0  # 8 processor seconds in 4 s, of them 2 and 1 own
    machine.used = {1: 52.0, 2: 8.0}
    assert measured.processors() == (8 - 3) / 4
    measured.start()
    machine.now, machine.busy = 6.0, 1009.0
    machine.used = {1: 53.0}  # the child has ended; what it had used before is not counted
    assert measured.processors() == 0.0


def test_a_clock_that_stands_still_or_counters_that_lag_give_no_negative_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch)
    measured = ExternalLoad()
    measured.start()
    assert measured.processors() == 0.0
    machine.now, machine.used = 1.0, {1: 51.0, 2: 7.0}
    assert measured.processors() == 0.0


def test_this_process_and_this_machine_have_used_something() -> None:
    assert load.used(psutil.Process(os.getpid())) > 0
    assert load.busy() > 0
