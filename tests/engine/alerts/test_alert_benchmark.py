"""The benchmark of alerts: its runs can be started, and its page has every rule."""

import pytest

from benchmarks import alerts


@pytest.mark.parametrize("between", [True, False], ids=["evaluated between", "at the ends only"])
def test_recorded_starter_runs_raise_no_alert(between: bool) -> None:
    runs = list(alerts.recordings(between=between))
    assert len(runs) >= 5
    assert [run for run in runs if run.fired] == []
    assert all(run.accuracy[1] > 2 * run.accuracy[0] for run in runs)
