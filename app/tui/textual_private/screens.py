"""Screens that are styled, laid out and drawn only once when they are shown.

Textual does all three again on resume, on the first resize and after mounting; each time takes a
whole frame.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from textual import events
from textual.await_complete import AwaitComplete
from textual.geometry import Region, Size
from textual.screen import ModalScreen, Screen

T = TypeVar("T")

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

    Beside = Screen[Any]
else:
    Beside = object


class DrawnOnce(Beside):
    """A base class for screens; list it before `Screen`."""

    view: Any  # the state of a screen that has one, as a frozen value

    async def ask(self, call: "Callable[[StoreReader], T]", key: str = "") -> T:
        """Read from the store; a later read with the same key cancels this one."""
        app: Any = self.app
        result: T = await app.reader.ask(call, key)
        return result

    async def answer(self, dialog: Screen[T]) -> T | None:
        """Show a dialog and wait for its result; called in a worker."""
        return await self.app.push_screen_wait(dialog)

    def update(self, **changes: Any) -> None:
        """Change the state."""
        self.view = replace(self.view, **changes)

    def warn(self, text: object, title: str = "") -> None:
        self.notify(str(text), title=title, severity="warning", markup=False)

    def report(self, error: object, title: str = "") -> None:
        self.notify(str(error), title=title, severity="error", markup=False)

    def refused(self) -> bool:
        """Whether this view is read-only, which is reported."""
        app: Any = self.app
        return bool(app.refused())

    def action_switch(self, name: str) -> None:
        """Turn a part of the state on or off, and show that."""
        self.update(**{name: not getattr(self.view, name)})
        self.switched()

    def switched(self) -> None:
        """Show what was turned on or off, beyond passing it to the panels."""

    def _on_screen_resume(self, event: events.ScreenResume) -> None:
        """Lay out and draw a new screen; overrides Textual."""
        if self._size == self.app.size or not self.is_attached:
            return
        event.prevent_default()
        self.stack_updates += 1
        self.app._refresh_notifications()
        self._update_auto_focus()
        self._refresh_layout(self.app.size)

    def _screen_resized(self, size: Size) -> None:
        """Lay out if the size has changed; overrides Textual."""
        if self._compositor.size != size:
            super()._screen_resized(size)

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        """Draw only what a new layout has moved; overrides Textual."""
        drawn = self._compositor.size == self.app.size
        return super().refresh(
            *regions, repaint=repaint and not (layout and drawn), layout=layout, recompose=recompose
        )


class DismissedOnce(Beside):
    """A base class for screens over others; list it before `Screen`."""

    def dismiss(self, result: Any = None) -> AwaitComplete:
        """Close with a result, unless another screen is already on top.

        Textual would close whichever screen is on top, and fails if a result was already returned.
        """
        return super().dismiss(result) if self.is_active else AwaitComplete()


class Dialog(DismissedOnce, DrawnOnce, ModalScreen[T]):
    """A screen shown over the one that opened it."""
