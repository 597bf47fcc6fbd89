"""Front: a screen that is styled, laid out and drawn once when it comes to the front.

Textual does each of the three again for the message that a screen resumes, for its first size, and
for the end of its mounting; each is the work of a whole picture.
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


class Front(Beside):
    """Comes before `Screen` among the bases of a screen."""

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
        """Lay out for a size that is another one; Textual's hook."""
        if self._compositor.size != size:
            super()._screen_resized(size)

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        """A new layout draws what it has moved, and no more; Textual's hook."""
        drawn = self._compositor.size == self.app.size
        return super().refresh(
            *regions, repaint=repaint and not (layout and drawn), layout=layout, recompose=recompose
        )


class Dialog(Front, ModalScreen[T]):
    """A screen over the one that asked for it."""

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        """Leave with a result; a key that comes late takes no other dialog's place away.

        Textual takes away whatever is on top, and fails where there was a result before.
        """
        return super().dismiss(result) if self.is_active else AwaitComplete()
