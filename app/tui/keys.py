"""Keys: one meaning for each on every screen, and the bindings that all panels and lists share."""

from types import MappingProxyType
from typing import Final

from textual.binding import Binding

LAST: Final = 1_000_000  # lines that home and end move by: further than any panel is long
PAGE: Final = 10  # lines that page up and page down move by

# What a key does on every screen that has it: the words its descriptions may begin with.
MEANINGS: Final = MappingProxyType({
    "up,k": ("up",), "down,j": ("down",), "left,h": ("left",), "right,l": ("right",),
    "pageup": ("page",), "pagedown": ("page",), "home": ("first",), "end": ("last",),
    "tab": ("next",), "shift+tab": ("previous",),
    "enter": ("open", "edit", "explain", "choose", "start", "close"),
    "escape": ("back", "cancel", "close", "stop", "leave"), "q": ("back", "cancel", "close"),
    "space": ("mark", "switch", "hide", "unfold"),
    "1": ("Runs",), "2": ("New",), "3": ("Watch",), "4": ("Rollouts",), "5": ("Compare",),
    "ctrl+o": ("jump",), "ctrl+p": ("palette",), "ctrl+c": ("copy",),
    "exclamation_mark": ("messages", "close"),
    "slash": ("find", "filter"), "z": ("zoom",), "Z": ("all",), "X": ("hide",),
    "left_parenthesis": ("smaller",), "right_parenthesis": ("larger",),
    "y": ("copy",), "e": ("export",), "question_mark,f1": ("explain", "close"),
    "n": ("next prompt",), "p": ("previous prompt",),
    "less_than_sign": ("previous step",), "greater_than_sign": ("next step",),
    "left_curly_bracket": ("ten",), "right_curly_bracket": ("ten",), "at": ("step",),
    "left_square_bracket": ("previous page", "previous variant", "same prompt"),
    "right_square_bracket": ("page", "variant", "same prompt"),
    "m": ("metrics", "columns", "heat"), "s": ("sort",), "t": ("kind", "values", "scope"),
    "f": ("next clipped",), "F": ("previous clipped",), "d": ("compare", "diff"),
    "g": ("group",), "G": ("sweep",), "asterisk": ("pin",), "plus": ("add",),
    "minus": ("less", "slower"), "equals_sign": ("more", "faster"),
    "a": ("axis",), "b": ("baseline",), "x": ("remove", "mute"), "u,ctrl+z": ("undo",),
    "backspace": ("reset",), "c": ("clone",), "r": ("resume", "run"), "full_stop": ("pause",),
    "w": ("checkpoint", "save"), "S": ("stop",), "L,f5": ("launch",), "v": ("what if",),
    "A": ("ask",), "i": ("name",), "Q": ("queue", "close"), "P": ("play",), "T": ("threshold",),
    "o": ("pager",), "D": ("download",), "ctrl+n": ("new dialogue",),
    "ctrl+a": ("mark",),
})  # fmt: skip

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
