"""A run's name or id in a stranger's store is no option of the command that resumes it."""

from pathlib import Path

import pytest

from grpo_tui.app.jobs.detach import LaunchError
from grpo_tui.app.jobs.launch import resume_detached
from tests.experiments.made import record_run


@pytest.mark.slow
def test_a_planted_id_is_no_option_of_the_process_that_resumes_it(tmp_path: Path) -> None:
    store, mark = tmp_path / "s.db", tmp_path / "mark"
    record_run(store, name="theirs")
    planted = f"--db={mark}"

    with pytest.raises(LaunchError, match=r"no run .*--db"):
        resume_detached(planted, store)

    assert not mark.exists()
