"""The footer: the keys that matter here, and at its right end those that every screen has."""

from collections.abc import Mapping

from textual import events
from textual.binding import ActiveBinding
from textual.keys import format_key
from textual.reactive import reactive
from textual.widgets import Input, TextArea

from grpo_tui.app.text.safe_text import cell_len
from grpo_tui.app.tui.widgets.panel import BarPanel, Line

COMMON = ("find", "zoom", "explain", "palette")
MOST = 6  # other hints
GAP = 2

Hint = tuple[str, str, str]  # the key as shown, its description, and the key


def _is_typed(key: str) -> bool:
    name = format_key(key)
    return (len(name) == 1 and name.isascii()) or key == "space"


def _cells(hint: Hint) -> int:
    """The cells of a hint with the gap after it."""
    return cell_len(hint[0]) + 1 + cell_len(hint[1]) + GAP


class KeyBar(BarPanel):
    """One line at the bottom of every screen; hints can be clicked."""

    DEFAULT_CSS = "KeyBar { height: 1; dock: bottom; }"

    bindings: reactive[list[ActiveBinding]] = reactive(list)
    hidden: reactive[frozenset[str]] = reactive(frozenset)
    renamed: reactive[Mapping[str, str]] = reactive(dict)  # descriptions by action

    leads: reactive[str] = reactive("")  # the hint of esc, if it has one

    def on_mount(self) -> None:
        """Update with the focus."""
        self.screen.bindings_updated_signal.subscribe(self, self._update)

    def _update(self, *_: object) -> None:
        if self.screen.is_attached:
            self.bindings = list(self.screen.active_bindings.values())

    def _hints(self) -> list[Hint]:
        """A hint for each description, without those in `COMMON` at most `MOST`.

        While the user types into a field, printable keys are left out.
        """
        typing = isinstance(self.screen.focused, Input | TextArea)
        leads = "leave field" if typing else self.leads
        hints: dict[str, Hint] = {"": ("esc", leads, "escape")} if leads else {}
        for active in self.bindings:
            binding = active.binding
            typed = typing and _is_typed(binding.key)
            if binding.show and active.enabled and binding.action not in self.hidden and not typed:
                name = self.renamed.get(binding.action, binding.description)
                key = binding.key_display or format_key(binding.key)
                hints.setdefault(binding.description, (key, name, binding.key))
        common = [hints.pop(name) for name in COMMON if name in hints]
        return [*hints.values()][:MOST] + common

    @property
    def fitting(self) -> list[Hint]:
        """The hints that fit: first those of the screen are left out, from the last one on."""
        hints = self._hints()
        while len(hints) > 1 and sum(map(_cells, hints)) > self.size.width - 1:
            specific = sum(hint[1] not in COMMON for hint in hints)
            del hints[max(0, specific - 1)]
        return hints

    def paint(self, width: int, _height: int) -> list[Line]:
        """Bright keys with dim descriptions; what is common is at the right end."""
        line, end = [(" ", "")], 1
        free = width - 1 - sum(map(_cells, self.fitting))
        self._ends: list[tuple[int, str]] = []
        for key, description, pressed in self.fitting:
            if description in COMMON and free:
                line, end, free = [*line, (" " * free, "")], end + free, 0
            line += [(key, "bold headline"), (f" {description}{' ' * GAP}", "label")]
            end += _cells((key, description, pressed))
            self._ends.append((end, pressed))
        return [line]

    def on_click(self, event: events.Click) -> None:
        """Press the clicked key."""
        if key := next((key for end, key in self._ends if event.x < end), ""):
            self.app.simulate_key(key)
