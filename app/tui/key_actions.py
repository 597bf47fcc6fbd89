"""The actions of a screen, with keys, name and explanation, read from its bindings."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from textual.binding import Binding
from textual.dom import DOMNode
from textual.screen import Screen

from grpo_tui.app.tui.keys import is_bound

NAMES = {
    "enter": "⏎", "full_stop": ".", "slash": "/", "question_mark": "?", "space": "space",
    "left": "←", "right": "→", "up": "↑", "down": "↓", "escape": "esc", "asterisk": "*",
    "left_square_bracket": "[", "right_square_bracket": "]", "minus": "-", "equals_sign": "=",
    "exclamation_mark": "!", "plus": "+", "at": "@", "less_than_sign": "<",
    "greater_than_sign": ">", "left_curly_bracket": "{", "right_curly_bracket": "}",
    "left_parenthesis": "(", "right_parenthesis": ")",
}  # fmt: skip
# Textual's own bindings that the help lists, described in our words.
OWN_WORDS = {
    "app.focus_next": ("next panel", "Go to the next panel or field"),
    "app.focus_previous": ("previous panel", "Go to the previous panel or field"),
    "command_palette": ("palette", "Find actions, metrics, settings, runs and help by name"),
}


@dataclass(frozen=True, slots=True)
class KeyAction:
    """One action, its keys, and the DOM node it belongs to."""

    keys: tuple[str, ...]
    name: str
    help: str
    action: str
    node: DOMNode
    everywhere: bool = False

    @property
    def written(self) -> str:
        """The keys as shown to people: `↑ k`."""
        return " ".join(self.keys)


def key_name(key: str, display: str | None = None) -> str:
    """Return a key as shown to people."""
    if display:
        return display
    return NAMES.get(key, key)


def words_of(binding: Binding) -> tuple[str, str] | None:
    """Return a binding's name and explanation, or None for Textual's that the help omits."""
    if binding.id:
        return binding.description, binding.tooltip or binding.description
    return OWN_WORDS.get(binding.action)


def key_actions(screen: Screen[Any]) -> Iterator[KeyAction]:
    """Yield the actions of the active keys, the focused widget's first."""
    found: dict[tuple[str, DOMNode], tuple[Binding, list[str]]] = {}
    for active in screen.active_bindings.values():
        if active.enabled and words_of(active.binding) is not None:
            _, keys = found.setdefault((active.binding.action, active.node), (active.binding, []))
            if is_bound(active.binding.key):
                keys.append(key_name(active.binding.key))
    for (action, node), (binding, keys) in found.items():
        words = words_of(binding)
        if words is not None:
            section = (binding.id or "").rpartition(".")[0]
            everywhere = section in ("", "mode", "move", "panel")
            yield KeyAction(tuple(dict.fromkeys(keys)), *words, action, node, everywhere)
