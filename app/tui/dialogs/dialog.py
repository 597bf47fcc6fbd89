"""What all screens and dialogs of the workbench can do."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual.await_complete import AwaitComplete
from textual.color import Color
from textual.css.styles import RulesMap
from textual.geometry import Size
from textual.reactive import Reactive
from textual.renderables.background_screen import BackgroundScreen
from textual.screen import ModalScreen, Screen
from textual.strip import Strip
from textual.visual import Visual
from textual.widget import Widget

P = ParamSpec("P")
T = TypeVar("T")

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

    AnyScreen = Screen[Any]
else:
    AnyScreen = object


class AppScreen(AnyScreen):
    """A base class for screens; list it before `Screen`."""

    view: Any  # the state of a screen that has one, as a frozen value
    # What loses or gets the focus draws itself; Textual would draw the whole screen as well.
    focused: Reactive[Widget | None] = Reactive(None, repaint=False)

    @property
    def workbench(self) -> Any:
        """The app; a screen that can import it has its type."""
        return self.app

    def _screen_resized(self, size: Size) -> None:
        """Lay out for another size only: a new screen is told the size that it is laid out for."""
        if size != self._size:  # `size` is the terminal's
            super()._screen_resized(size)

    def _compositor_refresh(self) -> None:
        """Draw what changed below a dialog once; Textual would draw all of it with each event."""
        before = self._repaint_required
        super()._compositor_refresh()
        self._repaint_required = before

    async def read(
        self,
        key: str,
        call: "Callable[Concatenate[StoreReader, P], T]",
        *args: P.args,
        **options: P.kwargs,
    ) -> T:
        """Read from the store; a later read with the same key cancels this one."""
        reader = self.workbench.reader
        result: T = await reader.read(lambda store: call(store, *args, **options), key)
        return result

    def update(self, **changes: Any) -> None:
        """Change the state."""
        self.view = replace(self.view, **changes)

    def warn(self, text: object, title: str = "") -> None:
        self.notify(str(text), title=title, severity="warning")

    def refused(self) -> bool:
        """Whether this view is read-only, which is reported."""
        return bool(self.workbench.refused())

    def action_switch(self, name: str) -> None:
        """Turn a part of the state on or off, and show that."""
        self.update(**{name: not getattr(self.view, name)})
        self.switched()

    def switched(self) -> None:
        """Show what was turned on or off, beyond passing it to the panels."""


@lru_cache(maxsize=4096)
def tinted(style: Style | None, colour: Color) -> Style | None:
    """A style as Textual tints it in what is below a dialog."""
    ((_, result, _),) = BackgroundScreen.process_segments((Segment(" ", style),), colour)
    return result


class Below(Visual):
    """The lines of the screen below a dialog, tinted.

    Textual would mix the colours of each piece of text anew, and cut the pieces into lines again.
    """

    def __init__(self, screen: "AnyScreen", colour: Color) -> None:
        self._screen, self._colour = screen, colour

    def get_optimal_width(self, _rules: RulesMap, container_width: int) -> int:
        return container_width

    def get_height(self, _rules: RulesMap, _width: int) -> int:
        return self._screen.size.height

    def render_strips(self, *_: object) -> list[Strip]:
        """The tinted lines."""
        colour = self._colour
        return [
            Strip([Segment(text, tinted(style, colour)) for text, style, _ in strip])
            for strip in self._screen._compositor.render_strips()
        ]


class DismissedOnce(AnyScreen):
    """A base class for screens over others; list it before `Screen`."""

    def render(self) -> Any:
        """What is below the dialog, tinted; overrides Textual."""
        drawn = super().render()
        return Below(drawn.screen, drawn.color) if isinstance(drawn, BackgroundScreen) else drawn

    def dismiss(self, result: Any = None) -> AwaitComplete:
        """Close with a result, unless another screen is already on top.

        Textual would close whichever screen is on top, and fails if a result was already returned.
        """
        return super().dismiss(result) if self.is_active else AwaitComplete()

    def action_copy_text(self) -> None:
        """Copy the selection; without one say what ctrl+c does. Overrides Textual."""
        if self.get_selected_text() is None:
            self.notify("Nothing is selected to copy. esc closes this; then ctrl+c asks to quit.")
        else:
            super().action_copy_text()


class Dialog(DismissedOnce, AppScreen, ModalScreen[T]):
    """A screen shown over the one that opened it."""
