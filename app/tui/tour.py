"""The tour: nine sentences on a recorded run, each of which asks for one key."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from textual.keys import format_key
from textual.reactive import reactive
from textual.screen import Screen

from grpo_tui.app.text.safe_text import wrap
from grpo_tui.app.tui.widgets.panel import BarPanel, Line
from grpo_tui.app.tui.widgets.top_bar import TABS


@dataclass(frozen=True, slots=True)
class Stop:
    """What is to be seen on a screen, and the binding whose key leads on."""

    mode: str
    binding: str
    sentence: str


@cache
def stops() -> tuple[Stop, ...]:
    """Read all stops, in order."""
    text = files(__package__).joinpath("tour.toml").read_text("utf-8")
    return tuple(Stop(**stop) for stop in tomllib.loads(text)["stops"])


END = "That was the tour. q goes back and, on Runs, leaves."


class Tour:
    """How far the tour has come."""

    def __init__(self) -> None:
        self.index = 0

    @property
    def stop(self) -> Stop | None:
        """The current stop; None once the tour is over."""
        return stops()[self.index] if self.index < len(stops()) else None

    def pressed(self, key: str, screen: Screen[Any]) -> None:
        """Show the next sentence if this is the key asked for."""
        stop, active = self.stop, screen.active_bindings.get(key)
        if stop is None or active is None or getattr(screen, "mode", "") != stop.mode:
            return
        if active.binding.id == stop.binding:
            self.index += 1

    def sentence(self, screen: Screen[Any]) -> str:
        """What to say on a screen; on another one than the tour's, how to get back."""
        stop = self.stop
        if stop is None:
            return END
        count = f"{self.index + 1}/{len(stops())}"
        if getattr(screen, "mode", "") != stop.mode:
            key, name = key_of(screen, f"mode.{stop.mode}"), TABS[stop.mode][2:]
            return f"{count} The tour continues on {name}: press {key}."
        return f"{count} {stop.sentence.format(key=key_of(screen, stop.binding))}"


def key_of(screen: Screen[Any], binding: str) -> str:
    """The key of a binding on this screen, as shown to people."""
    keys = (
        active.binding.key
        for active in screen.active_bindings.values()
        if active.binding.id == binding
    )
    return next(map(format_key, keys), "?")


class TourLine(BarPanel):
    """The tour's sentence, below the tabs."""

    DEFAULT_CSS = "TourLine { height: 2; }"
    sentence: reactive[str] = reactive("")

    def paint(self, width: int, height: int) -> list[Line]:
        """The sentence, on two lines at most."""
        lines = [*wrap(self.sentence, max(8, width - 2), height), ""]
        return [[(f" {text}".ljust(width), "bold headline on cursor")] for text in lines[:height]]
