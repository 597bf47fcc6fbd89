"""An app with our themes, which parses a style sheet once and shows a mounted screen at once.

Textual parses every rule of every widget again when a screen is first shown, and, with more than 64
sources, when a widget of a new class is mounted: 40 to 140 ms at the first visit of a screen.
"""

import sys
from collections.abc import Mapping
from traceback import format_exception
from typing import Any

from rich.segment import Segment
from rich.text import Text
from textual.app import App
from textual.await_remove import AwaitRemove
from textual.cache import LRUCache
from textual.color import Color
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode
from textual.events import Key
from textual.filter import LineFilter
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget

from grpo_tui.app.text.safe_text import safe, without_acting
from grpo_tui.app.tui.looks.themes import THEMES

MOUNTED_HOLD_S = 0.004  # enough for a mounted screen, which only needs its first layout
SOURCES = 512  # more than the number of widget classes


class CachedStylesheet(Stylesheet):
    """Caches the parsed rules of each source until the colours change."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        super().__init__(variables=dict(variables))
        self._parse_cache = LRUCache(SOURCES)

    def set_variables(self, variables: dict[str, str]) -> None:
        """Use other colours; overrides Textual."""
        if variables != self._variables:
            super().set_variables(variables)

    def reparse(self) -> None:
        """Rebuild the rules from the cache; overrides Textual."""
        self.parse()


class SafeFilter(LineFilter):
    """Keeps what a terminal would obey from it, whatever a widget draws."""

    def apply(self, segments: list[Segment], _background: Color) -> list[Segment]:
        if all(text.isprintable() for text, _, _ in segments):
            return segments
        return [Segment(without_acting(text), style, control) for text, style, control in segments]


class ThemedApp(App[int]):
    """An app with our themes; the chosen one is set before anything is drawn."""

    is_acting = False  # whether an action or a request is carried out, which may wait for a screen

    def __init__(self, theme: str) -> None:
        super().__init__()
        for known in THEMES:
            self.register_theme(known)
        self._frame_delay = 0.0
        self.theme = theme
        self.stylesheet = CachedStylesheet(self.get_css_variables())
        self._filters.append(SafeFilter())

    def _fatal_error(self) -> None:
        """Leave with the error; Textual would draw all local values first, for half a minute."""
        assert self._exception is not None
        self.panic(Text(safe("".join(format_exception(self._exception)), "\n")))

    async def _dispatch_message(self, message: Message) -> None:
        """Note what is carried out; overrides Textual. A key of the terminal is only passed on."""
        self.is_acting = not isinstance(message, Key) or message.is_forwarded
        try:
            await super()._dispatch_message(message)
        finally:
            self.is_acting = False

    @property
    def is_exiting(self) -> bool:
        """Whether the app is shutting down."""
        return self._exit

    @property
    def has_crashed(self) -> bool:
        """Whether an unhandled error ends the app."""
        return bool(self._exception or sys.exception())

    def write_to_terminal(self, text: str) -> None:
        """Write a control sequence directly to the terminal."""
        if self._driver is not None and not self.is_headless:
            self._driver.write(text)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Give our variables values before a theme is set; overrides Textual."""
        return THEMES[0].variables

    def _load_screen_css(self, screen: Screen[Any]) -> None:
        """Parse only the rules of this screen; overrides Textual."""
        for path in screen.css_path:
            if not self.stylesheet.has_source(str(path)):
                self.stylesheet.read(path)
        self.stylesheet.apply(screen)
        screen._css_update_count = self._css_update_count

    def _prune(self, *nodes: Widget, parent: DOMNode | None = None) -> AwaitRemove:
        """Remove widgets; overrides Textual, which lays out the shown screen after any dialog."""
        return super()._prune(*nodes, parent=None if parent is self else parent)

    def delay_update(self, delay: float = 0.05) -> None:
        """Delay drawing, but only briefly if the next frame is complete; overrides Textual."""
        super().delay_update(self._frame_delay or delay)

    async def show_mode(self, mode: str) -> None:
        """Switch to a mode; return once its screen is mounted."""
        stack = self._screen_stacks.get(mode)
        self._frame_delay = MOUNTED_HOLD_S if stack and stack[-1].is_mounted else 0.0
        await self.switch_mode(mode)
        self._frame_delay = 0.0
        await self.screen._mounted_event.wait()
