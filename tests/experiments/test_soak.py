"""Two recorders, a lister and an exporter on one file."""

import pytest

from benchmarks import soak


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_four_processes_share_a_file_without_a_lock_error_or_a_long_wait(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = soak.main(["--minutes", "1"])
    assert status == 0, capsys.readouterr().out
