"""Held-out accuracy that was not measured is told apart from an accuracy of 0, in old files too."""

from dataclasses import replace
from pathlib import Path

import pytest

from grpo_engine import events as ev
from grpo_tui.app.text.comparison import run_verdict
from grpo_tui.experiments.compare.runs import compare, progress
from grpo_tui.experiments.export.rows import evaluation_rows
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.store import ExperimentStore
from tests.experiments.made import config, ended, evaluated, finished, recorded, sql, started

REWARDS = {"eval/reward": 0.5, "eval/rewards/format_parts": 0.5}


def unmeasured(step: int) -> ev.EvaluationFinished:
    event = evaluated(step, (0, 0, 0))
    rows = tuple(replace(row, correct=None) for row in event.rows)
    return replace(event, rows=rows, metrics=REWARDS)


def record(path: Path, name: str, *events: ev.Event) -> None:
    """A run of its own setting."""
    beta = len(name) / 100
    tree = config(algorithm={"recipe": "grpo", "beta": beta})
    recorded(path, started(), *events, ended(1), tree=tree, name=name)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "s.db"
    record(path, "measured", evaluated(0, (0, 0, 1)), finished(1), evaluated(1, (1, 1, 1)))
    record(path, "own", unmeasured(0), finished(1), unmeasured(1))
    return path


def correct(path: Path, name: str) -> list[int | None]:
    with StoreReader(path) as reader:
        return [row["correct"] for row in evaluation_rows(reader, reader.resolve(name))]


def test_zeros_of_older_files_become_not_measured(store: Path) -> None:
    assert sql(store, "SELECT correct FROM evaluation_sample").count((None,)) == 6
    sql(
        store,
        "UPDATE evaluation_sample SET correct = coalesce(correct, 0)",
        "DELETE FROM migration WHERE n >= 9",
        "ALTER TABLE run DROP COLUMN origin",
        "ALTER TABLE rollout_reward DROP COLUMN failed",
        "ALTER TABLE evaluation_sample DROP COLUMN scored",
        "ALTER TABLE run_param ADD COLUMN number REAL",
        "PRAGMA user_version = 8",
    )
    ExperimentStore(store).close()
    assert correct(store, "own") == [None] * 6
    assert correct(store, "measured") == [0, 0, 1, 1, 1, 1]


def test_a_report_does_not_test_what_was_not_measured(store: Path) -> None:
    with StoreReader(store) as reader:
        run = reader.resolve("own")
        assert progress(reader, run) == []
        said = run_verdict(reader.run(run.key).summary, [])
    assert "held-out accuracy was not measured" in said


def test_runs_are_not_compared_by_what_was_not_measured(store: Path) -> None:
    with StoreReader(store) as reader:
        runs = [reader.resolve(name) for name in ("measured", "own")]
        found = compare(reader, runs)
    assert found.rankings == ()
    assert found.notes == (
        "no paired test of own and measured: the held-out accuracy of own was not measured",
    )
