"""The recorded runs of the benchmark of alerts."""

import pytest

from benchmarks import alerts


@pytest.mark.slow
@pytest.mark.parametrize("between", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_recorded_starter_runs_raise_no_alert(between: bool) -> None:
    runs = list(alerts.recordings(between=between))
    assert len(runs) >= 5
    assert [run for run in runs if run.fired] == []
    assert all(run.accuracy[1] > 2 * run.accuracy[0] for run in runs)
