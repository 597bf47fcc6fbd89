"""The benchmark of alerts: its runs can be started, and its page has every rule."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import alerts
from grpo_tui.app.tui.dialogs.help.topics import ALERTS


@pytest.mark.parametrize("case", alerts.CASES, ids=lambda case: case.name)
def test_the_settings_of_a_run_are_legal_and_its_rules_are_explained(case: alerts.Case) -> None:
    config = alerts.config_of(case, 3)
    assert config.seed == 3
    assert set(case.rules) <= set(ALERTS)
    if "recipe" in case.changes.get("algorithm", {}):  # a recipe brings its own passes
        assert config.algorithm.passes is None


def test_a_broken_run_has_a_reason_and_a_healthy_one_none() -> None:
    assert all(case.wrong for case in alerts.BROKEN)
    assert not any(case.wrong or case.rules for case in alerts.HEALTHY)


def recorded(folder: Path, case: alerts.Case, seed: int, cut: float) -> None:
    """Write a recorded run of which this share of answers is cut."""
    head = {
        "revision": "1234567",
        "versions": {"mlx": "0.1"},
        "config": alerts.config_of(case, seed).model_dump(mode="json"),
    }
    lines: list[dict[str, Any]] = [
        {"event": "StepFinished", "step": step, "tokens": 1, "elapsed": 1.0,
         "metrics": {"reward": 1.0, "completions/clipped_ratio": cut, "step_time": 1.0,
                     "time/score": 0.1}}
        for step in range(1, 31)
    ]  # fmt: skip
    lines.append({
        "event": "AlertRaised", "step": 4, "rule": "reward_exception", "severity": "error",
        "explanation": "e", "remedy": "r",
    })  # fmt: skip
    with gzip.open(alerts.path_of(folder, case, seed), "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in (head, *lines))


def test_hits_and_false_alarms_are_counted_by_seed(tmp_path: Path) -> None:
    (broken,) = (case for case in alerts.BROKEN if case.name == "cut short")
    for case, seed, cut in (
        (broken, 0, 0.9), (broken, 1, 0.1), (alerts.HEALTHY[0], 2, 0.9), (alerts.HEALTHY[0], 3, 0.1)
    ):  # fmt: skip
        recorded(tmp_path, case, seed, cut)
    found = alerts.judge_all(tmp_path, between=True)
    text = alerts.tables(found, found)
    row = next(line for line in text.splitlines() if line.startswith("| `most_truncated`"))
    assert row == "| `most_truncated` | 1 of 1 | 0 of 1 |  |  | 1 of 2 | 1 of 2 |"
    assert text.startswith("Recorded at revision 1234567 with mlx 0.1.\n")
    # what the engine raised itself is counted as it was recorded
    assert "| cut short | 0 |" in text
    assert "`most_truncated` (3) | `reward_exception` (4) |" in text
    assert "| cut short | 1 |" in text
    assert "**missed**" in text


@pytest.mark.parametrize("between", [True, False], ids=["evaluated between", "at the ends only"])
def test_recorded_starter_runs_raise_no_alert(between: bool) -> None:
    runs = list(alerts.recordings(between=between))
    assert len(runs) >= 5
    assert [run for run in runs if run.fired] == []
    assert all(run.accuracy[1] > 2 * run.accuracy[0] for run in runs)
