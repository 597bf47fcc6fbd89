"""The Rollouts screen."""

from textual.app import ComposeResult

from app.screens.base import WorkbenchScreen
from app.widgets.panel import Line, Panel


class Blank(Panel):
    """Says that nothing is shown here."""

    def paint(self, width: int, height: int) -> list[Line]:  # noqa: ARG002
        """One line."""
        return [[(" Nothing to show.", None)]]


class RolloutsScreen(WorkbenchScreen):
    """Rollouts."""

    mode = "rollouts"

    def body(self) -> ComposeResult:
        """One panel."""
        yield Blank("1", "Rollouts")
