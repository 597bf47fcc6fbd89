"""`grpo-tui doctor` in a terminal: queries it, reads its reply, and leaves it unchanged."""

import sys
import termios
from pathlib import Path

import pexpect
import pytest

from tests.patience import PATIENCE

# A terminal may be slow to reply.
DOCTOR = f"""
import sys
from grpo_tui.app.health import terminal
terminal.ANSWERS = {PATIENCE}
from grpo_tui.app.entry import main
sys.exit(main())
"""


@pytest.mark.slow
def test_the_clipboard_is_asked_for_and_the_terminal_left_as_it_was(tmp_path: Path) -> None:
    child = pexpect.spawn(
        sys.executable,
        ["-c", DOCTOR, "doctor", "--db", str(tmp_path / "runs.db")],
        encoding="utf-8",
        dimensions=(30, 100),
        timeout=PATIENCE,
    )
    before = termios.tcgetattr(child.child_fd)
    child.expect_exact("\x1b[c")
    child.send("\x1b[?65;1;52c")
    child.expect(r"OSC 52 [^\n]*\n")
    assert "yes, copying works" in str(child.after)
    child.expect(pexpect.EOF)
    assert "Ready to train" in str(child.before)
    assert termios.tcgetattr(child.child_fd) == before
    child.close()
    assert child.exitstatus == 0
