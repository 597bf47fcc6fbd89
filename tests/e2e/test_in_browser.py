"""Watch through textual-serve, which starts the program with pipes and a driver of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.stored import record, run_events
from tests.patience import PATIENCE

pytestmark = pytest.mark.slow
QUIT = b'{"type": "quit"}'  # what textual-serve sends when a tab is closed


@pytest.mark.timeout(PATIENCE)
def test_watch_draws_for_a_browser_and_ends_with_its_tab(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    record(store, run_events(steps=2), name="calm-otter")
    env = {
        **os.environ,
        "GRPO_TUI_DB": str(store),
        "TEXTUAL_DRIVER": "textual.drivers.web_driver:WebDriver",
        "COLUMNS": "120",
        "ROWS": "40",
    }
    command = [sys.executable, "-m", "grpo_tui", "watch", "--read-only"]
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"__GANGLION__\n"
        drawn = b""
        while b"calm-otter" not in drawn:
            part = os.read(process.stdout.fileno(), 1 << 16)
            assert part, drawn[-500:]
            drawn += part
        process.stdin.write(b"M" + len(QUIT).to_bytes(4, "big") + QUIT)
        process.stdin.flush()
        while os.read(process.stdout.fileno(), 1 << 16):
            pass
    assert process.returncode == 0
