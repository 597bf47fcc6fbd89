"""What macOS says of memory, through fakes of its two calls."""

import ctypes
import sys
from typing import Any

import psutil
import pytest

from grpo_engine.platform import footprint, memory

HELD = 3_400_000_000


class System:
    """The two calls of macOS; `status` is what they return."""

    def __init__(self, level: int = 1, status: int = 0) -> None:
        self.level, self.status = level, status

    def proc_pid_rusage(self, _pid: int, flavor: int, usage: Any) -> int:
        assert flavor == 0
        # a UUID of 16 bytes, seven numbers, then ri_phys_footprint: 16 + 7 * 8 = 72
        ctypes.memmove(ctypes.addressof(usage) + 72, HELD.to_bytes(8, sys.byteorder), 8)
        return self.status

    def sysctlbyname(self, name: bytes, level: Any, size: Any, new: None, _length: Any) -> int:
        assert (name, size._obj.value, new) == (b"kern.memorystatus_vm_pressure_level", 4, None)
        level._obj.value = self.level
        return self.status


@pytest.fixture(name="mac")
def fixture_mac(monkeypatch: pytest.MonkeyPatch) -> System:
    system = System()
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: system)
    return system


def test_the_footprint_takes_the_place_of_the_resident_size(mac: System) -> None:
    assert footprint.footprint() == HELD
    assert memory.memory().process == HELD
    mac.status = -1
    assert footprint.footprint() is None
    assert memory.memory().process != HELD


@pytest.mark.parametrize(("level", "share"), [(1, 1.0), (2, 0.5), (4, 0.0), (3, 0.0)])
def test_memory_that_is_short_is_not_available(
    level: int, share: float, mac: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = psutil.virtual_memory()._replace(available=8 << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    monkeypatch.setattr(memory, "cgroup_memory", lambda _: (None, 0))
    mac.level = level
    assert memory.memory().available == share * (8 << 30)


def test_a_system_that_does_not_say_how_short_memory_is_has_enough(mac: System) -> None:
    mac.level, mac.status = 4, -1
    assert footprint.pressure() == footprint.NORMAL


def test_a_step_on_macos_has_metrics_of_footprint_and_swap(
    mac: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap = psutil.swap_memory()._replace(used=1_500_000_000)
    monkeypatch.setattr(psutil, "swap_memory", lambda: swap)
    mac.level = 2
    assert footprint.memory_metrics() == {
        "memory/footprint_gb": 3.4,
        "memory/swap_gb": 1.5,
        "memory/pressure": 2.0,
    }


@pytest.mark.skipif(sys.platform == "darwin", reason="is about other systems")
def test_elsewhere_there_are_none() -> None:
    assert footprint.memory_metrics() == {}
    assert footprint.footprint() is None
