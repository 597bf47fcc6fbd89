"""The footer: the keys that are useful here, in one line; a hint that does not fit is left out."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Final

from textual import events
from textual.binding import ActiveBinding
from textual.reactive import reactive
from textual.widgets import Input, TextArea

from grpo_tui.app.text.safe_text import cell_len
from grpo_tui.app.tui.key_actions import key_name
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.widgets.field import Field
from grpo_tui.app.tui.widgets.panel import Line, Panel

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
RESTORE = "restore_panels"
COMMON = ("find", "zoom", "explain")


def hints(
    bindings: list[ActiveBinding],
    hidden: frozenset[str] = frozenset(),
    *,
    typing: bool = False,
    renamed: Mapping[str, str] = NOTHING,
    lacking: str = "",
    leads: str = "",
) -> list[tuple[str, str, str]]:
    """Key, description and action of each shown binding; those in `COMMON` come last.

    While the user types into a field, printable keys are omitted. `renamed` has descriptions of
    actions that do something else than usual. What shows the panels that are `lacking` comes first.
    `leads` says where esc leads.
    """
    leads = "leave field" if typing else leads
    found: list[tuple[str, str, str]] = [("esc", leads, "escape")] if leads else []
    seen: set[str] = set()
    for active in bindings:
        binding = active.binding
        if not binding.show or not active.enabled or binding.description in seen:
            continue
        if binding.action == RESTORE and not lacking:
            continue
        if binding.action in hidden or (typing and _is_typed(binding.key)):
            continue
        seen.add(binding.description)
        found.append((key_name(binding.key, binding.key_display),
                      f"show {lacking}" if binding.action == RESTORE
                      else renamed.get(binding.action, binding.description),
                      binding.action))  # fmt: skip
    return sorted(found, key=lambda hint: COMMON.index(hint[1]) if hint[1] in COMMON
                  else -1 - (hint[2] == RESTORE))  # fmt: skip


def _is_typed(key: str) -> bool:
    name = key_name(key)
    return (len(name) == 1 and name.isascii()) or key == "space"


def fitting(found: list[tuple[str, str, str]], width: int, gap: int) -> list[tuple[str, str, str]]:
    """The hints that fit into the width; the last one is always kept."""
    if not found:
        return []
    *rest, last = found
    room = width - 1 - _cells(last)
    kept = []
    for hint in rest:
        if _cells(hint) + gap > room:
            break
        room -= _cells(hint) + gap
        kept.append(hint)
    return [*kept, last]


def _cells(hint: tuple[str, str, str]) -> int:
    return cell_len(hint[0]) + 1 + cell_len(hint[1])


def key_line(shown: list[tuple[str, str, str]], gap: int, palette: Palette) -> Line:
    """Bright keys with dim descriptions."""
    spans: Line = [(" ", None)]
    for i, (key, description, _) in enumerate(shown):
        if i:
            spans.append((" " * gap, None))
        spans += [(key, style(palette.headline, bold=True)),
                  (f" {description}", style(palette.label))]  # fmt: skip
    return spans


class KeyBar(Panel, can_focus=False):
    """One line at the bottom of every screen; hints can be clicked."""

    DEFAULT_CSS = "KeyBar { height: 1; dock: bottom; }"
    framed: ClassVar[bool] = False
    ALLOW_MAXIMIZE = False

    bindings: reactive[list[ActiveBinding]] = reactive(list)
    hidden: reactive[frozenset[str]] = reactive(frozenset)
    renamed: reactive[Mapping[str, str]] = reactive(dict)
    lacking: reactive[str] = reactive("")  # the panels that the user has hidden
    leads: reactive[str] = reactive("")  # where esc leads, if that is worth a hint
    zoomed: reactive[bool] = reactive(False)

    def on_mount(self) -> None:
        """Update with the focus."""
        self.screen.bindings_updated_signal.subscribe(self, self._update)
        self.watch(self.screen, "maximized", self._update)

    def _update(self, *_: object) -> None:
        if self.screen.is_attached:
            self.bindings = list(self.screen.active_bindings.values())
            self.zoomed = self.screen.maximized is not None

    @property
    def shown(self) -> tuple[list[tuple[str, str, str]], int]:
        """The hints that fit, and the gap between them: a narrower one where that shows more."""
        field = self.screen.focused
        typing = isinstance(field, Input | TextArea)
        renamed = {**self.renamed, "zoom": "all panels"} if self.zoomed else self.renamed
        found = hints(self.bindings, self.hidden, typing=typing, renamed=renamed,
                      lacking=self.lacking, leads=self.leads)  # fmt: skip
        if isinstance(field, Field) and field.submits:
            found.insert(0, ("⏎", field.submits, "submit"))
        gap = 3 if len(fitting(found, self.size.width, 3)) == len(found) else 2
        return fitting(found, self.size.width, gap), gap

    def paint(self, width: int, height: int) -> list[Line]:  # noqa: ARG002 - the base class has it
        return [key_line(*self.shown, self.palette)]

    async def on_click(self, event: events.Click) -> None:
        """Run the clicked key's action."""
        place, (shown, gap) = 1, self.shown
        for hint in shown:
            if place <= event.x < place + _cells(hint):
                for active in self.bindings:
                    if active.binding.action == hint[2]:
                        await self.app.run_action(active.binding.action, active.node)
                        return
            place += _cells(hint) + gap
