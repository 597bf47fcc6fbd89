"""`python -m benchmarks.device`: its verdicts, failing child processes, what the report reveals."""

import getpass
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from benchmarks import device
from benchmarks.device import Done, Part


def step(number: int, **metrics: float) -> dict[str, Any]:
    given = {"loss": 0.5, "step_time": 2.0, "tokens_per_second": 100.0, "memory/peak_gb": 0.1}
    return {"event": "StepFinished", "step": number, "metrics": {**given, **metrics}}


def lines(*events: dict[str, Any]) -> str:
    return "\n".join(map(json.dumps, events))


def test_a_report_passes_only_where_every_part_did() -> None:
    good = Part(name="doctor", passed=True, seen="fine", seconds=2.4)
    bad = Part(name="parity", passed=False, seen="a | b", rows={"parity": [("bfloat16", 1, 2, 3)]})
    whole = device.report([good, good], quick=True)
    assert whole.startswith("# Device report, quick\n\n**PASS** (2 of 2 parts, 5 s)")
    assert device.TITLES["parity"] not in whole
    broken = device.report([good, bad], quick=False)
    assert "**FAIL**: parity (1 of 2 parts, 2 s)" in broken
    assert "| doctor | pass | 2 | fine |" in broken
    assert r"| parity | FAIL | 0 | a \| b |" in broken
    assert f"{device.TITLES['parity']}\n|---|---|---|---|\n| bfloat16 | 1 | 2 | 3 |" in broken


def test_a_report_names_no_folder_user_or_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "home" / "ada"
    monkeypatch.setattr(Path, "home", lambda: home)
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    monkeypatch.setattr(socket, "gethostname", lambda: "Laptop.example.org")
    text = f"{home}/models of ada on laptop and laptop.EXAMPLE.org; adam in {device.ROOT}/x, ADA"
    expected = "~/models of <user> on <host> and <host>; adam in <repository>/x, <user>"
    assert device.scrub(text) == expected
    part = Part(name="doctor", passed=False, seen=text, rows={"machine": [("store", text)]})
    assert "ada " not in device.report([part], quick=False)


def test_steps_that_are_missing_or_not_finite_fail() -> None:
    two = lines(step(1, step_time=9.0), step(2))
    fine = device.judged("lora, float32", Done(0, two), 2)
    assert (fine.passed, fine.seen) == (True, "2 of 2 steps")
    assert fine.rows["steps"][0][:3] == ("lora, float32", "2.00", "100")  # the first is warm-up
    assert not device.judged("lora, float32", Done(0, two), 3).passed
    odd = device.judged("lora, float32", Done(0, lines(step(1), step(2, kl=1e999))), 2)
    assert (odd.passed, odd.seen) == (False, "2 of 2 steps; not finite: kl")
    late = device.judged("lora, float32", Done(-9, lines(step(1)), late=True), 2)
    assert (late.passed, late.seen) == (False, "1 of 2 steps; cut off at its time limit")


@pytest.mark.parametrize(
    ("where", "loss", "passed"),
    [("cpu", 0.5, True), ("cpu", 0.51, False), ("gpu", 0.51, True), ("gpu", 0.7, False)],
)
def test_a_processor_resumes_bit_for_bit_and_a_gpu_nearly(
    where: str, loss: float, passed: bool
) -> None:
    started = {"event": "RunStarted", "step": 0, "device": f"Device({where}, 0)"}
    whole = [started, step(1), step(2), step(3)]
    found = device.compared(whole, [started, step(1), step(2)], [started, step(3, loss=loss)])
    assert found.passed is passed, found.seen
