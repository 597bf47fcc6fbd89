"""Screens that are styled, laid out and drawn once when they come to the front.

Textual does all three again when a screen resumes, when it gets its first size, and when it has
been mounted; each time costs a whole frame.
"""

from typing import TYPE_CHECKING, Any, Self, TypeVar

from textual import events
from textual.await_complete import AwaitComplete
from textual.geometry import Region, Size
from textual.screen import ModalScreen, Screen

T = TypeVar("T")

if TYPE_CHECKING:
    Beside = Screen[Any]
else:
    Beside = object


class DrawnOnce(Beside):
    """A base of screens, named before `Screen`."""

    def _on_screen_resume(self, event: events.ScreenResume) -> None:
        """Lay out and draw a screen that is new; Textual's hook."""
        if self._size == self.app.size or not self.is_attached:
            return
        event.prevent_default()
        self.stack_updates += 1
        self.app._refresh_notifications()
        self._update_auto_focus()
        self._refresh_layout(self.app.size)

    def _screen_resized(self, size: Size) -> None:
        """Lay out if the size has changed; Textual's hook."""
        if self._compositor.size != size:
            super()._screen_resized(size)

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        """Draw only what a new layout has moved; Textual's hook."""
        drawn = self._compositor.size == self.app.size
        return super().refresh(
            *regions, repaint=repaint and not (layout and drawn), layout=layout, recompose=recompose
        )


class Dialog(DrawnOnce, ModalScreen[T]):
    """A screen over the one that asked for it."""

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        """Close with a result, unless another screen is on top already.

        Textual closes whatever is on top, and fails where a result was given before.
        """
        return super().dismiss(result) if self.is_active else AwaitComplete()
