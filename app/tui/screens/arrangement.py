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
MINIMUM = {"width": 24, "height": 3}


def panels_in(parent: Widget) -> list[Widget]:
    """The framed panels of a container, and the containers of such."""
    return [
        child for child in parent.children
        if (isinstance(child, Panel) and child.framed)
        or (isinstance(child, Container | Horizontal | Vertical) and panels_in(child))
    ]  # fmt: skip


def rows(parent: Widget) -> Iterator[tuple[Widget, list[Widget]]]:
    """Each container with its panels, the innermost first."""
    panels = panels_in(parent)
    for panel in panels:
        if not isinstance(panel, Panel):
            yield from rows(panel)
    yield parent, panels


def axis_of(parent: Widget) -> str:
    """What the panels of a container share: its width or its height."""
    return "width" if parent.layout.name == "horizontal" else "height"


class Arrangement:
    """The panels of one screen as the user has arranged them."""

    def __init__(self, screen: Screen[Any], mode: str, preferences: Preferences) -> None:
        self._screen, self._mode, self._preferences = screen, mode, preferences

    @property
    def hidden(self) -> list[str]:
        """The ids of the hidden panels of this screen."""
        ids = [panel.id for _, panels in rows(self._screen) for panel in panels]
        names = self._stored.get("hidden")
        if len(ids) < 2 or not isinstance(names, list):
            return []
        return [name for name in names if name in ids]

    @property
    def sizes(self) -> dict[str, int]:
        """Cells by panel, for terminals of about this size."""
        sizes = self._stored.get(self._size_class)
        if not isinstance(sizes, dict):
            return {}
        return {
            name: cells for name, cells in sizes.items() if isinstance(cells, int) and cells > 0
        }

    @property
    def _size_class(self) -> str:
        classes = [name for name in SIZE_CLASSES if self._screen.has_class(f"-{name}")]
        return "-".join(classes) or "usual"

    @property
    def _stored(self) -> dict[str, Any]:
        """What is stored for this screen."""
        screens = self._preferences.get("panels", {})
        stored = screens.get(self._mode) if isinstance(screens, dict) else None
        return stored if isinstance(stored, dict) else {}

    def _store(self, values: dict[str, Any]) -> None:
        screens = self._preferences.get("panels", {})
        screens = screens if isinstance(screens, dict) else {}
        self._preferences.remember(panels={**screens, self._mode: values})
        self.apply()

    def apply(self) -> None:
        """Give every panel its size and visibility."""
        hidden, sizes = self.hidden, self.sizes
        for parent, panels in rows(self._screen):
            stored = [sizes[panel.id] for panel in panels if panel.id in sizes]
            usual = sum(stored) // len(stored) if stored else 0
            for panel in panels:
                _set_size(panel, axis_of(parent), sizes.get(panel.id or "", usual))
                if isinstance(panel, Panel):
                    panel.set_class(panel.id in hidden, "-hidden")
        self._screen.query_one(KeyBar).lacking = ", ".join(hidden)
        self._screen.call_after_refresh(self._collapse)

    def _collapse(self) -> None:
        """Give the space of what is hidden to its neighbours."""
        empty: set[Widget] = set()
        for parent, panels in rows(self._screen):
            axis = axis_of(parent)
            visible = [panel for panel in panels if panel not in empty
                       and (panel.display or not isinstance(panel, Panel))]  # fmt: skip
            if not visible:
                empty.add(parent)
            if parent is not self._screen:
                parent.set_class(not visible and bool(self.hidden), "-hidden")
            lacking = any(panel in empty or panel.has_class("-hidden") for panel in panels)
            if lacking and visible and not any(_fills(panel, axis) for panel in visible):
                setattr(visible[0].styles, axis, "1fr")
                setattr(visible[0].styles, f"max_{axis}", "100%")

    def resize(self, panel: Panel, by: int) -> bool:
        """Make a panel larger or smaller; False if nothing shares the space with it."""
        widget: Widget = panel
        while isinstance(parent := widget.parent, Widget):
            row = [
                sibling for sibling in panels_in(parent) if sibling.region.area and sibling.display
            ]
            axis = axis_of(parent)
            extent = getattr(parent.styles, axis)
            if widget in row and len(row) > 1 and not (extent and extent.is_auto):
                return self._move_border(row, widget, axis, by * STEP[axis])
            widget = parent
        return False

    def _move_border(self, row: list[Widget], panel: Widget, axis: str, by: int) -> bool:
        index = row.index(panel)
        neighbour = row[index + 1 if index + 1 < len(row) else index - 1]
        cells = {widget.id or "": getattr(widget.region, axis) for widget in row}
        smaller = neighbour if by > 0 else panel
        by = min(abs(by), max(0, cells[smaller.id or ""] - MINIMUM[axis])) * (1 if by > 0 else -1)
        cells[panel.id or ""] += by
        cells[neighbour.id or ""] -= by
        self._store({**self._stored, self._size_class: {**self.sizes, **cells}})
        return True

    def hide(self, panel: Panel) -> bool:
        """Hide a panel; False if it is the only one."""
        framed = [sibling for sibling in self._screen.query(Panel) if sibling.framed]
        visible = {sibling for sibling in framed if sibling.region.area}
        if panel.id is None or not visible - {panel}:
            return False
        self._screen.focus_next(Panel)
        self._store({**self._stored, "hidden": [*dict.fromkeys((*self.hidden, panel.id))]})
        return True

    def show(self, name: str) -> None:
        """Show a panel if it is hidden."""
        if name in self.hidden:
            hidden = [sibling for sibling in self.hidden if sibling != name]
            self._store({**self._stored, "hidden": hidden})

    def restore(self) -> None:
        """Show all panels; if none is hidden, give them their usual sizes."""
        self._store({**self._stored, "hidden": []} if self.hidden else {})


def _fills(panel: Widget, axis: str) -> bool:
    extent = getattr(panel.styles, axis)
    return bool(extent and extent.is_fraction)


def _set_size(panel: Widget, axis: str, cells: int) -> None:
    """Share the row in proportion to `cells`, or as the style sheet says if 0."""
    for name in ("width", "height"):
        is_set = bool(cells) and name == axis
        setattr(panel.styles, name, f"{cells}fr" if is_set else None)
        setattr(panel.styles, f"min_{name}", MINIMUM[axis] if is_set else None)
        setattr(panel.styles, f"max_{name}", "100%" if is_set else None)
