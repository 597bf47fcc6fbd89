"""Keys: the bindings that all panels share, and actions without a key.

A key means the same on every screen: `tests/app/tui/test_key_grammar.py` has the meaning of each.
"""

from dataclasses import replace
from functools import partial
from typing import Final

from textual.binding import Binding

LAST: Final = 1_000_000  # lines that home and end move by: further than any panel is long


def bind(
    keys: str,
    action: str,
    name: str,
    id: str,
    tooltip: str,
    written: str | None = None,
    *,
    show: bool = True,
) -> Binding:
    """A key, with a hint in the key bar if it is to `show` there."""
    return Binding(keys, action, name, show, written, id=id, tooltip=tooltip)


hidden: Final = partial(bind, show=False)


def unbound(action: str, name: str, id: str, tooltip: str) -> Binding:
    """An action that is in the palette and has no key until a keymap gives it one by its id."""
    return hidden(f"unbound+{id}", action, name, id, tooltip)


STEPS: Final = (
    ("less_than_sign", "step(-1)", "previous step", "one step back"),
    ("greater_than_sign", "step(1)", "next step", "one step on"),
    ("left_curly_bracket", "step(-10)", "ten steps back", "ten steps back"),
    ("right_curly_bracket", "step(10)", "ten steps on", "ten steps on"),
)


def step_keys(goes: str, *ids: str, shown: bool = False) -> list[Binding]:
    """The keys `<` `>` `{` `}`, whose action `step` is called with a number of steps."""
    first, *others = (
        hidden(key, action, name, id, f"{goes} {way}")
        for (key, action, name, way), id in zip(STEPS, ids, strict=True)
    )
    return [replace(first, show=shown, key_display="< >" if shown else None), *others]


NAVIGATION: Final = (
    hidden("up,k", "move(-1, 0)", "up", "move.up", "One line up"),
    hidden("down,j", "move(1, 0)", "down", "move.down", "One line down"),
    hidden("left,h", "move(0, -1)", "left", "move.left", "To the left"),
    hidden("right,l", "move(0, 1)", "right", "move.right", "To the right"),
    hidden("pageup", "move_page(-1)", "page up", "move.page_up", "One page up"),
    hidden("pagedown", "move_page(1)", "page down", "move.page_down", "One page down"),
    hidden("home", "move_to_end(-1)", "first", "move.first", "To the first line"),
    hidden("end", "move_to_end(1)", "last", "move.last", "To the last line"),
)


def is_bound(key: str) -> bool:
    """Whether a key can be pressed."""
    return not key.startswith("unbound+")
