"""The recorded runs of the benchmark of alerts."""

import pytest

from benchmarks import alerts
from grpo_engine.alerts.rules import RULES


@pytest.mark.slow
@pytest.mark.parametrize("between", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_recorded_starter_runs_raise_no_alert(between: bool) -> None:
    runs = list(alerts.recordings(between=between))
    assert len(runs) >= 5
    assert [run for run in runs if run.fired] == []
    assert {run.health for run in runs} <= {"learning", "learned"}
    assert all(run.accuracy[1] > 2 * run.accuracy[0] for run in runs)


@pytest.mark.slow
def test_published_runs_that_fail_are_noticed_and_most_others_raise_nothing() -> None:
    runs = list(alerts.published(between=True))
    broken = [run for run in runs if run.wrong]
    assert {run.case.partition(" ")[2] for run in broken} == {
        f"fails {name}" for name in alerts.FAILS
    }
    assert [run for run in broken if not set(run.rules) & set(run.fired)] == []
    assert {run.health for run in broken} <= {"flat", "hacked?", "broken"}
    learned = [run for run in runs if run.gained and not run.wrong]
    assert sum(bool(run.fired) for run in learned) < len(learned) / 4
    assert alerts.counts(runs).startswith(f"A rule for their fault noticed {len(broken)} of ")


def test_every_case_can_be_trained_and_names_rules_that_exist() -> None:
    for case in alerts.CASES:
        assert set(case.rules) <= {*RULES, "reward_exception"}, case.name
        for trained in filter(None, (case, case.teacher, case.start)):
            config = alerts.config_of(trained, 0)
            # a teacher is named when the case is recorded
            assert bool(config.algorithm.resolved().teacher_weight) == bool(trained.teacher)
    assert len({case.name for case in alerts.CASES}) == len(alerts.CASES)
