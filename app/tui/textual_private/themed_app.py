"""An app with our themes, which shows a mounted screen at once and says briefly why it failed."""

from traceback import format_exception

from rich.text import Text
from textual.app import App

from grpo_tui.app.text.safe_text import safe
from grpo_tui.app.tui.looks.harmless import Harmless
from grpo_tui.app.tui.looks.themes import THEMES

MOUNTED_HOLD_S = 0.004  # enough for a mounted screen, which only needs its first layout


class ThemedApp(App[int]):
    """An app with our themes; the chosen one is set before anything is drawn."""

    def __init__(self, theme: str) -> None:
        super().__init__()
        for known in THEMES:
            self.register_theme(known)
        self._hold = 0.0
        self.theme = theme
        self.stylesheet.set_variables(self.get_css_variables())
        self._filters.append(Harmless())

    def _fatal_error(self) -> None:
        """Leave with the error; Textual would draw all local values first, for half a minute."""
        assert self._exception is not None
        self.panic(Text(safe("".join(format_exception(self._exception)), "\n")))

    @property
    def is_exiting(self) -> bool:
        """Whether the app is shutting down."""
        return self._exit

    def write_to_terminal(self, text: str) -> None:
        """Write a control sequence directly to the terminal."""
        if self._driver is not None and not self.is_headless:
            self._driver.write(text)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Give our variables values before a theme is set; overrides Textual."""
        return THEMES[0].variables

    def delay_update(self, delay: float = 0.05) -> None:
        """Delay drawing, but only briefly if the next frame is complete; overrides Textual."""
        super().delay_update(self._hold or delay)

    async def show_mode(self, mode: str) -> None:
        """Switch to a mode; return once its screen is mounted."""
        stack = self._screen_stacks.get(mode)
        self._hold = MOUNTED_HOLD_S if stack and stack[-1].is_mounted else 0.0
        await self.switch_mode(mode)
        self._hold = 0.0
        await self.screen._mounted_event.wait()
