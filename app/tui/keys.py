"""Keys: the bindings that all panels share, actions without a key, and ids of earlier keymaps.

A key means the same on every screen: `tests/app/tui/test_key_grammar.py` has the meaning of each.
"""

from types import MappingProxyType
from typing import Final

from textual.binding import Binding

LAST: Final = 1_000_000  # lines that home and end move by: further than any panel is long
PAGE: Final = 10  # lines that page up and page down move by

# Ids of bindings in keymaps of earlier versions, and the ids that have their actions now.
EARLIER_IDS: Final = MappingProxyType({
    "compare.home": "move.first", "compare.end": "move.last",
    "compare.grid_down": "compare.page", "compare.grid_across": "compare.page",
    "pick.sweep": "compare.sweep", "new.pick_cancel": "pick.leave",
    "new.pick_down": "move.down", "new.pick_up": "move.up",
    "rollouts.token": "move.right", "rollouts.token_before": "move.left",
    "rollouts.first": "move.first", "rollouts.last": "move.last",
    "rollouts.answer": "move.down", "rollouts.answer_before": "move.up",
    "rollouts.turn": "move.page_down", "rollouts.turn_before": "move.page_up",
    "rollouts.measure": "rollouts.find_kl",
    "lab.knob": "move.down", "lab.knob_before": "move.up",
    "lab.turn": "move.right", "lab.turn_back": "move.left",
    "lab.answer": "move.down", "lab.answer_before": "move.up",
    "new.changed": "new.diff",
    "chat.next": "move.right", "chat.before": "move.left",
} | {
    f"{screen}.{earlier}": f"move.{action}"
    for screen in ("compare", "explore", "new", "runs", "queue", "pick", "messages", "log",
                   "curves", "groups", "lanes")
    for earlier, action in (("down", "down"), ("up", "up"), ("left", "left"), ("right", "right"),
                            ("page_down", "page_down"), ("page_up", "page_up"),
                            ("first", "first"), ("last", "last"))
} | {"new.next": "move.right", "new.more": "move.right", "new.before": "move.left",
     "new.less": "move.left"}
  | dict.fromkeys(("runs.tags", "runs.rename", "runs.note"), "runs.describe"))  # fmt: skip

NAVIGATION: Final = (
    Binding("up,k", "move(-1, 0)", "up", id="move.up", show=False, tooltip="One line up"),
    Binding("down,j", "move(1, 0)", "down", id="move.down", show=False, tooltip="One line down"),
    Binding("left,h", "move(0, -1)", "left", id="move.left", show=False, tooltip="To the left"),
    Binding("right,l", "move(0, 1)", "right", id="move.right", show=False, tooltip="To the right"),
    Binding("pageup", f"move(-{PAGE}, 0)", "page up", id="move.page_up", show=False,
            tooltip="Ten lines up"),
    Binding("pagedown", f"move({PAGE}, 0)", "page down", id="move.page_down", show=False,
            tooltip="Ten lines down"),
    Binding("home", f"move(-{LAST}, 0)", "first", id="move.first", show=False,
            tooltip="To the first line"),
    Binding("end", f"move({LAST}, 0)", "last", id="move.last", show=False,
            tooltip="To the last line"),
)  # fmt: skip


def unbound(action: str, name: str, id: str, tooltip: str) -> Binding:
    """An action that is in the palette and has no key until a keymap gives it one by its id."""
    return Binding(f"unbound+{id}", action, name, id=id, show=False, tooltip=tooltip)


def is_bound(key: str) -> bool:
    """Whether a key can be pressed."""
    return not key.startswith("unbound+")
