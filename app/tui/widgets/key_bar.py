"""The footer: the keys that are useful here, in one line; a hint that does not fit is left out."""

from collections.abc import Mapping
from itertools import accumulate

from textual import events
from textual.binding import ActiveBinding
from textual.keys import format_key
from textual.reactive import reactive
from textual.widgets import Input, TextArea

from grpo_tui.app.text.safe_text import cell_len
from grpo_tui.app.tui.widgets.panel import BarPanel, Line

COMMON = ("find", "zoom", "explain")
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
        """A hint for each description; those in `COMMON` come last.

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
        return sorted(
            hints.values(), key=lambda hint: COMMON.index(hint[1]) if hint[1] in COMMON else -1
        )

    @property
    def shown(self) -> list[Hint]:
        """The hints that fit; the last one is always there."""
        *first, last = self._hints() or [("", "", "")]
        ends = accumulate(_cells(hint) for hint in first)
        return [*first[: sum(end < self.size.width - _cells(last) for end in ends)], last]

    def paint(self, width: int, height: int) -> list[Line]:  # noqa: ARG002 - the base class has it
        """Bright keys with dim descriptions."""
        line = [(" ", "")]
        for key, description, _ in self.shown:
            line += [(key, "bold headline"), (f" {description}{' ' * GAP}", "label")]
        return [line]

    def on_click(self, event: events.Click) -> None:
        """Press the clicked key."""
        end = 1
        for hint in self.shown:
            end += _cells(hint)
            if event.x < end:
                self.app.simulate_key(hint[2])
                return
