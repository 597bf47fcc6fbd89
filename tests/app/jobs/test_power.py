"""What keeps the machine awake while a run trains, and what is said of sleep and battery."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from grpo_engine import events as ev
from grpo_engine.config.settings import RunConfig
from grpo_engine.platform import spawn
from grpo_tui.app.cli.main import main
from grpo_tui.app.jobs import power
from grpo_tui.app.jobs.start import Job
from tests.patience import until

Battery = Callable[[float, bool | None], None]


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Pretend to be on a system, with a program that notes its arguments and waits."""

    def pretend(name: str) -> Path:
        for module in (power, spawn):
            monkeypatch.setattr(module, "sys", SimpleNamespace(platform=name))
        program = tmp_path / {"darwin": "caffeinate", "linux": "systemd-inhibit"}[name]
        program.write_text('#!/bin/sh\necho $$ "$@" > "$0.log"\nexec sleep 600\n')
        program.chmod(0o755)
        return program.with_name(f"{program.name}.log")

    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(power, "LOGIND", tmp_path)
    monkeypatch.delenv(power.ALLOW_SLEEP, raising=False)
    return pretend


@pytest.fixture
def battery(monkeypatch: pytest.MonkeyPatch) -> Battery:
    """Pretend that the machine has such a battery."""

    def pretend(percent: float, plugged: bool | None) -> None:
        state = SimpleNamespace(percent=percent, power_plugged=plugged)
        monkeypatch.setattr(psutil, "sensors_battery", lambda: state)

    monkeypatch.setattr(power, "BATTERY_S", 0.0)
    pretend(100, True)
    return pretend


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("darwin", "-i -w {pid}"),
        (
            "linux",
            "--what=idle --who=grpo-tui --why=a run trains tail --pid={pid} --follow /dev/null",
        ),
    ],
)
def test_idle_sleep_is_prevented_until_the_run_ends(
    name: str, words: str, system: Callable[[str], Path]
) -> None:
    log = system(name)
    with power.awake():
        until(lambda: log.exists() and log.read_text().endswith("\n"))
        pid, _, arguments = log.read_text().strip().partition(" ")
        assert arguments == words.format(pid=os.getpid())
        assert psutil.pid_exists(int(pid))
        assert os.getpgid(int(pid)) != os.getpgid(0)  # an interrupt is not for it
    assert not psutil.pid_exists(int(pid))


def test_sleep_may_be_allowed(
    system: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = system("darwin")
    monkeypatch.setenv(power.ALLOW_SLEEP, "")
    monkeypatch.delenv(power.ALLOW_SLEEP)  # restored at the end
    assert main(["--allow-sleep", "presets"]) == 0
    assert os.environ.pop(power.ALLOW_SLEEP) == "1"
    main(["train", "no-such-file.yaml", "--allow-sleep"])
    assert os.environ[power.ALLOW_SLEEP] == "1"
    with power.awake():
        time.sleep(0.1)
    assert not log.exists()


def test_a_system_that_cannot_stay_awake_trains_all_the_same(
    system: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    system("darwin")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with power.awake():
        pass
    system("linux")
    monkeypatch.setattr(power, "LOGIND", tmp_path / "none")
    assert power.keeps_awake(1) == []


def test_what_a_run_slept_and_a_low_battery_are_said_once_and_recorded_before_the_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, battery: Battery
) -> None:
    slept = iter([10.0, 10.0, 730.0, 731.0, 731.0])
    monkeypatch.setattr(power, "asleep", lambda: next(slept))
    monkeypatch.setattr(power, "keeps_awake", lambda _: [])
    charge = {1: (50.0, False), 2: (19.0, False), 3: (18.0, None), 4: (18.0, True)}

    def run(*_: object, **__: object) -> object:
        for step, (percent, plugged) in charge.items():
            battery(percent, plugged)
            yield ev.StepFinished(step=step, metrics={}, tokens=0, elapsed=0.0)

    monkeypatch.setattr("grpo_engine.trainer.run", run)
    shown: list[ev.Event] = []
    Job(config=RunConfig(), folder=tmp_path, resume=False).train(shown.append)
    note, alert = shown[1:3]
    assert isinstance(note, ev.NoteWritten)
    assert (note.step, note.text) == (2, "the machine slept for 12 min")
    assert isinstance(alert, ev.AlertRaised)
    assert (alert.step, alert.rule, alert.value, alert.limit) == (2, "battery_low", 19.0, 20.0)
    assert "19%" in alert.explanation
    assert [event.step for event in shown if isinstance(event, ev.StepFinished)] == [1, 2, 3, 4]
    assert len(shown) == 6


def test_a_battery_that_was_charged_is_low_again(
    monkeypatch: pytest.MonkeyPatch, battery: Battery
) -> None:
    monkeypatch.setattr(power, "asleep", lambda: 0.0)
    watch, alerts = power.PowerWatch(), list[int]()
    for percent in (19, 19, 30, 19):
        battery(percent, False)
        alerts.append(len(list(watch.events(1))))
    assert alerts == [1, 0, 0, 1]


def test_a_battery_that_cannot_be_read_is_no_alert(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable() -> None:
        raise FileNotFoundError

    monkeypatch.setattr(psutil, "sensors_battery", unreadable)
    assert power.battery() == 100.0
    monkeypatch.setattr(psutil, "sensors_battery", lambda: None)
    assert power.battery() == 100.0


def test_sleep_is_what_only_one_clock_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {"with": 500.0, "without": 380.0}
    fake = SimpleNamespace(
        CLOCK_MONOTONIC_RAW="with", CLOCK_UPTIME_RAW="without", clock_gettime=clocks.__getitem__
    )
    if sys.platform == "linux":
        assert power.asleep() > -0.1
    monkeypatch.setattr(power, "time", fake)
    monkeypatch.setattr(power, "sys", SimpleNamespace(platform="darwin"))
    assert power.asleep() == 120.0
