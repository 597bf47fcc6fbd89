"""Copying in a real terminal: OSC 52 arrives, by the key set in the user's own file."""

import base64
import json
import re
import sys
from pathlib import Path

import pytest

from tests.app.stored import record
from tests.e2e.terminal import Terminal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="macOS copies by pbcopy")


def test_a_key_of_the_users_file_sends_the_run_to_the_clipboard_of_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "grpo-tui").mkdir()
    (tmp_path / "grpo-tui" / "settings.json").write_text(
        json.dumps({"keymap": {"copy": "B", "runs.mark": "y"}})
    )
    store = tmp_path / "grpo.db"
    record(store, name="calm-otter")
    with Terminal(["-m", "grpo_tui", "--db", str(store)]) as terminal:
        terminal.until("calm-otter")
        terminal.press("y")  # on this screen it marks the run
        terminal.until("1 marked")
        assert b"\x1b]52;" not in terminal.raw
        terminal.press("B")
        terminal.until("Sent")
        found = re.search(rb"\x1b\]52;c;([A-Za-z0-9+/=]+)", terminal.raw)
        assert found is not None
        assert base64.b64decode(found[1]).decode().endswith(" calm-otter")
