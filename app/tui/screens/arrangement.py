"""Which panels of a screen the user has hidden, remembered in the preferences."""

from collections.abc import Iterator
from typing import Any

from textual.containers import Container, Horizontal, Vertical
from textual.screen import Screen
from textual.widget import Widget

from grpo_tui.app.tui.preferences import Preferences
from grpo_tui.app.tui.widgets.key_bar import KeyBar
from grpo_tui.app.tui.widgets.panel import Panel


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


class Arrangement:
    """The panels of one screen, some of which the user has hidden."""

    def __init__(self, screen: Screen[Any], mode: str, preferences: Preferences) -> None:
        self._screen, self._mode, self._preferences = screen, mode, preferences

    @property
    def hidden(self) -> list[str]:
        """The ids of the hidden panels of this screen."""
        screens = self._preferences.get("panels", {})
        stored = screens.get(self._mode) if isinstance(screens, dict) else None
        names = stored.get("hidden") if isinstance(stored, dict) else None
        ids = [panel.id for _, panels in rows(self._screen) for panel in panels]
        return [name for name in names if name in ids] if isinstance(names, list) else []

    def _hide(self, names: list[str]) -> None:
        screens = self._preferences.get("panels", {})
        screens = screens if isinstance(screens, dict) else {}
        self._preferences.remember(panels={**screens, self._mode: {"hidden": names}})
        self.apply()

    def apply(self) -> None:
        """Hide what the user has hidden, and give its space to its neighbours."""
        hidden = self.hidden
        for _, panels in rows(self._screen):
            for panel in panels:
                for name in ("width", "height", "max_width", "max_height"):
                    setattr(panel.styles, name, None)
                if isinstance(panel, Panel):
                    panel.set_class(panel.id in hidden, "-hidden")
        self._screen.query_one(KeyBar).lacking = ", ".join(hidden)
        self._screen.call_after_refresh(self._collapse)

    def _collapse(self) -> None:
        empty: set[Widget] = set()
        for parent, panels in rows(self._screen):
            axis = "width" if parent.layout.name == "horizontal" else "height"
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

    def hide(self, panel: Panel) -> bool:
        """Hide a panel; False if it is the only one."""
        framed = [sibling for sibling in self._screen.query(Panel) if sibling.framed]
        visible = {sibling for sibling in framed if sibling.region.area}
        if panel.id is None or not visible - {panel}:
            return False
        self._screen.focus_next(Panel)
        self._hide([*dict.fromkeys((*self.hidden, panel.id))])
        return True

    def show(self, name: str) -> None:
        """Show a panel if it is hidden."""
        if name in self.hidden:
            self._hide([sibling for sibling in self.hidden if sibling != name])

    def restore(self) -> None:
        """Show all panels."""
        self._hide([])


def _fills(panel: Widget, axis: str) -> bool:
    extent = getattr(panel.styles, axis)
    return bool(extent and extent.is_fraction)
