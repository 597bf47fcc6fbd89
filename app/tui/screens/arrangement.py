"""Sizes and visibility of a screen's panels, chosen by keys and remembered in the preferences.

A panel grows at the expense of its neighbour. The sizes of a row are remembered in cells for each
class of terminal size and apply in proportion, so that they fit every terminal of the class.
"""

from collections.abc import Iterator
from typing import Any

from textual.containers import Container, Horizontal, Vertical
from textual.screen import Screen
from textual.widget import Widget

from grpo_tui.app.tui.preferences import Preferences
from grpo_tui.app.tui.widgets.key_bar import KeyBar
from grpo_tui.app.tui.widgets.panel import Panel

SIZE_CLASSES = ("narrow", "short", "wide")
STEP = {"width": 4, "height": 2}
LEAST = {"width": 24, "height": 3}


def panes(parent: Widget) -> list[Widget]:
    """The framed panels of a container, and the containers of such."""
    return [
        child for child in parent.children
        if (isinstance(child, Panel) and child.framed)
        or (isinstance(child, Container | Horizontal | Vertical) and panes(child))
    ]  # fmt: skip


def rows(parent: Widget) -> Iterator[tuple[Widget, list[Widget]]]:
    """Each container with its panes, the innermost first."""
    found = panes(parent)
    for pane in found:
        if not isinstance(pane, Panel):
            yield from rows(pane)
    yield parent, found


def axis_of(parent: Widget) -> str:
    """What the panes of a container share: its width or its height."""
    return "width" if parent.layout.name == "horizontal" else "height"


class Arrangement:
    """The panels of one screen as the user wants them."""

    def __init__(self, screen: Screen[Any], mode: str, preferences: Preferences) -> None:
        self._screen, self._mode, self._preferences = screen, mode, preferences

    @property
    def hidden(self) -> list[str]:
        """The ids of the hidden panels of this screen."""
        known = [pane.id for _, found in rows(self._screen) for pane in found]
        names = self._kept("hidden", []) if len(known) > 1 else []
        return [name for name in names if name in known] if isinstance(names, list) else []

    @property
    def sizes(self) -> dict[str, int]:
        """Cells by pane, for terminals of about this size."""
        sizes = self._kept(self._size_class, {})
        if not isinstance(sizes, dict):
            return {}
        return {
            name: cells for name, cells in sizes.items() if isinstance(cells, int) and cells > 0
        }

    @property
    def _size_class(self) -> str:
        found = [name for name in SIZE_CLASSES if self._screen.has_class(f"-{name}")]
        return "-".join(found) or "usual"

    def _all(self) -> dict[str, Any]:
        kept = self._preferences.get("panels", {})
        return kept if isinstance(kept, dict) else {}

    def _kept(self, name: str, default: Any) -> Any:
        kept = self._all().get(self._mode, {})
        return kept.get(name, default) if isinstance(kept, dict) else default

    def _keep(self, **values: Any) -> None:
        kept = self._all()
        own = kept.get(self._mode, {})
        own = {**own, **values} if isinstance(own, dict) and values else values
        self._preferences.remember(panels={**kept, self._mode: own})
        self.apply()

    def apply(self) -> None:
        """Give every panel the size and the visibility that were chosen."""
        hidden, sizes = self.hidden, self.sizes
        for parent, found in rows(self._screen):
            chosen = [sizes[pane.id] for pane in found if pane.id in sizes]
            usual = sum(chosen) // len(chosen) if chosen else 0
            for pane in found:
                _set_size(pane, axis_of(parent), sizes.get(pane.id or "", usual))
                if isinstance(pane, Panel):
                    pane.set_class(pane.id in hidden, "-hidden")
        self._screen.query_one(KeyBar).lacking = ", ".join(hidden)
        self._screen.call_after_refresh(self._collapse)

    def _collapse(self) -> None:
        """Give the room of what is hidden to its neighbours."""
        empty: set[Widget] = set()
        for parent, found in rows(self._screen):
            axis = axis_of(parent)
            seen = [one for one in found if one not in empty
                    and (one.display or not isinstance(one, Panel))]  # fmt: skip
            if not seen:
                empty.add(parent)
            if parent is not self._screen:
                parent.set_class(not seen and bool(self.hidden), "-hidden")
            gone = any(one in empty or one.has_class("-hidden") for one in found)
            if gone and seen and not any(_fills(one, axis) for one in seen):
                setattr(seen[0].styles, axis, "1fr")
                setattr(seen[0].styles, f"max_{axis}", "100%")

    def resize(self, panel: Panel, by: int) -> bool:
        """Make a panel larger or smaller; False if nothing shares the room with it."""
        pane: Widget = panel
        while isinstance(parent := pane.parent, Widget):
            row = [one for one in panes(parent) if one.region.area and one.display]
            axis = axis_of(parent)
            extent = getattr(parent.styles, axis)
            if pane in row and len(row) > 1 and not (extent and extent.is_auto):
                return self._move_border(row, pane, axis, by * STEP[axis])
            pane = parent
        return False

    def _move_border(self, row: list[Widget], pane: Widget, axis: str, by: int) -> bool:
        place = row.index(pane)
        other = row[place + 1 if place + 1 < len(row) else place - 1]
        cells = {one.id or "": getattr(one.region, axis) for one in row}
        shrinking = other if by > 0 else pane
        by = min(abs(by), max(0, cells[shrinking.id or ""] - LEAST[axis])) * (1 if by > 0 else -1)
        cells[pane.id or ""] += by
        cells[other.id or ""] -= by
        self._keep(**{self._size_class: {**self.sizes, **cells}})
        return True

    def hide(self, panel: Panel) -> bool:
        """Hide a panel; False if it is the only one."""
        others = [one for one in self._screen.query(Panel) if one.framed and one.region.area]
        if panel.id is None or not set(others) - {panel}:
            return False
        self._screen.focus_next(Panel)
        self._keep(hidden=[*self.hidden, panel.id])
        return True

    def show(self, name: str) -> None:
        """Show a panel if it is hidden."""
        if name in self.hidden:
            self._keep(hidden=[one for one in self.hidden if one != name])

    def restore(self) -> None:
        """Show all panels; if none is hidden, give them their usual sizes."""
        if self.hidden:
            self._keep(hidden=[])
        else:
            self._keep()


def _fills(pane: Widget, axis: str) -> bool:
    extent = getattr(pane.styles, axis)
    return bool(extent and extent.is_fraction)


def _set_size(pane: Widget, axis: str, cells: int) -> None:
    """Share the row in proportion to `cells`, or as the style sheet says if 0."""
    for name in ("width", "height"):
        chosen = bool(cells) and name == axis
        setattr(pane.styles, name, f"{cells}fr" if chosen else None)
        setattr(pane.styles, f"min_{name}", LEAST[axis] if chosen else None)
        setattr(pane.styles, f"max_{name}", "100%" if chosen else None)
