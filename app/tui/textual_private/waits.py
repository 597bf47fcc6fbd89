"""Shorter waits in Textual for local terminals."""

import os
import sys

from textual import constants, screen

from grpo_tui.app.tui.terminal import over_ssh

SWITCH_S, DRAW_S, ESCAPE_S = 0.0002, 0.001, 0.003


def shorten() -> None:
    """Shorten the waits between a key and its frame.

    The engine's thread would hold the interpreter lock for 5 ms each time the UI needs it. Textual
    waits 100 ms after an escape for the rest of a sequence, and up to a sixtieth of a second before
    it draws; the workbench limits its frame rate itself.
    """
    sys.setswitchinterval(SWITCH_S)
    if not over_ssh():
        vars(screen)["UPDATE_PERIOD"] = DRAW_S
        if "ESCDELAY" not in os.environ:
            vars(constants)["ESCAPE_DELAY"] = ESCAPE_S
