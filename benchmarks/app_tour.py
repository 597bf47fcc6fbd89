"""A tour of every action of the workbench, for timing keys in a pty.

Each stop is a screen with its keys, in an order in which each key changes something. A screen that
shows an active run changes by itself; `still` is the part that does not, and a key counts as
answered when a cell of that part has changed.
"""

import importlib
import inspect
import pkgutil
import re
from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import dataclass, replace

from textual.binding import Binding

import app

BYTES = {
    "enter": "\r", "escape": "\x1b", "tab": "\t", "shift+tab": "\x1b[Z", "space": " ",
    "backspace": "\x7f", "up": "\x1b[A", "down": "\x1b[B", "right": "\x1b[C", "left": "\x1b[D",
    "home": "\x1b[H", "end": "\x1b[F", "pageup": "\x1b[5~", "pagedown": "\x1b[6~",
    "shift+left": "\x1b[1;2D", "shift+right": "\x1b[1;2C", "f1": "\x1bOP", "f5": "\x1b[15~",
    "ctrl+c": "\x03", "ctrl+o": "\x0f", "ctrl+p": "\x10", "ctrl+z": "\x1a",
    "slash": "/", "question_mark": "?", "full_stop": ".", "asterisk": "*", "minus": "-",
    "equals_sign": "=", "plus": "+", "at": "@", "right_square_bracket": "]",
    "left_square_bracket": "[",
}  # fmt: skip

LIVE = "busy-bee"  # the name of the active run
MARKS = re.compile("[╭╮╰╯│▸]|(?<=│)▌")  # frames and cursor marks
LEAVES_THE_SCREEN = frozenset({"rollouts.pager", "runs.demo"})  # opens another program


@dataclass(frozen=True, slots=True)
class Stop:
    """A screen, the unmeasured keys that lead there, and the measured keys."""

    screens: tuple[str, ...]
    way: str
    keys: str

    def to(self, way: str) -> "Stop":
        """Return the stop with another way to it."""
        return replace(self, way=way)

    def then(self, keys: str) -> "Stop":
        """Return the stop with further keys."""
        return replace(self, keys=f"{self.keys} {keys}")


COMMON = "slash escape y e escape question_mark escape f1 escape ctrl+o escape ctrl+p escape"
STEER = "full_stop full_stop w s escape"  # while a run is active
RUNS = Stop(
    ("RunsScreen", "QueueScreen", "WorkbenchScreen", "Workbench", "Ask", "Choice"),
    "1 home down",
    f"down up j k pagedown pageup end home down z z {COMMON} ctrl+c escape "
    "space down space b b t escape N escape i escape g g g g g g g G escape C escape "
    "o O O o o o o o o A A Q enter escape n q c q r x u 2 1 3 1 4 1 5 1 "
    "home down space down space d 1 home down space down space enter 1",
)
WATCH = Stop(
    ("WatchScreen", "Curves", "Lanes", "Groups", "AlertsLog"),
    "3",
    "ctrl+o a down j up k enter escape tab down j up k enter 3 "
    "tab down j up k right l left h enter 3 tab down j k up enter escape shift+tab tab "
    f"n p f f z z {COMMON} ctrl+c escape",
)
ROLLOUTS = Stop(
    ("RolloutsScreen", "LabScreen", "HelpScreen"),
    "1 home down enter 4",
    f"right l left h end home down j up k J J K K m m m m m D D s s s s s H L t "
    f"left_square_bracket right_square_bracket p n t z z {COMMON} asterisk "
    "v down j up k right left l h J K right backspace escape tab tab "
    "question_mark slash escape escape escape",
)
COMPARE = Stop(
    ("CompareScreen", "Picker"),
    "1 home down space down space d",
    f"left h right l shift+left shift+right home end home c at escape down j up k a a a m "
    f"down up j k space space pagedown pageup slash escape escape m enter {COMMON} z z "
    "o o L L minus equals_sign J space space b K b t t t S S plus escape "
    "v s s v v g G v n p v V v tab tab tab x q home down space down space",
)
NEW_RUN = Stop(
    ("NewRunScreen", "Pick"),
    "2",
    f"down j up k pagedown pageup end home J K down down down right u right left enter escape "
    f"{COMMON} "
    "L escape p j k escape x right_square_bracket left_square_bracket x r r o o C C "
    "home down down down right ctrl+z right U J space space t escape escape v escape "
    "w escape z z f q",
)
STOPS = (
    RUNS.then("R R"), WATCH.to("1 home down enter 3").then("ctrl+o f m m"), ROLLOUTS, COMPARE,
    NEW_RUN,
)  # fmt: skip
LIVE_STOPS = (
    RUNS.then(f"R {STEER} R"),
    WATCH.to("1 R home enter 1 R 3").then(f"{STEER} q 3"),
    ROLLOUTS, COMPARE, NEW_RUN,
)  # fmt: skip


def bindings() -> dict[str, tuple[str, frozenset[str]]]:
    """Return every named binding of the app: its name, its class and its keys."""
    found = {}
    for info in pkgutil.walk_packages(app.__path__, "app."):
        if info.name.startswith("app.cli.verbs") or info.name == "app.__main__":
            continue
        module = importlib.import_module(info.name)
        for name, cls in inspect.getmembers(module, inspect.isclass):
            for binding in vars(cls).get("BINDINGS", []):
                if isinstance(binding, Binding) and binding.id and cls.__module__ == info.name:
                    found[f"{name}:{binding.id}"] = (name, frozenset(binding.key.split(",")))
    return found


def unfired() -> list[str]:
    """Return the actions that no stop of the tour triggers."""
    fired = {
        (name, key)
        for stop in (*STOPS, *LIVE_STOPS) for name in stop.screens for key in stop.keys.split()
    }  # fmt: skip
    return sorted(
        binding for binding, (name, keys) in bindings().items()
        if not any((name, key) in fired for key in keys)
        and binding.partition(":")[2] not in LEAVES_THE_SCREEN and name != "CrashScreen"
    )  # fmt: skip


OUTPUT = re.compile(
    r"([^\x1b\r\n]+)"  # text
    r"|\x1b\[([^@-~]*)([@-~])"  # a control sequence: its parameters, its kind
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[^][]"  # a title, a copy, a mode
    r"|(\x1b.*)",  # a sequence whose end has not come
    re.DOTALL,
)


class Screen:
    """The text and colours of each row, drawn from what Textual writes: few kinds of output.

    A terminal emulator in Python takes milliseconds for what takes the workbench as many to draw.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.display = [" " * columns] * rows
        self.colours = ["0" * columns] * rows  # one character per cell
        self.codes = {"0": "0"}  # the character of each SGR sequence
        self._row = self._column = 0
        self._colour, self._rest = "0", ""
        self._decode = getincrementaldecoder("utf-8")().decode

    def draw(self, data: bytes) -> None:
        """Draw output, which may end within a character or a sequence."""
        output, self._rest = self._rest + self._decode(data), ""
        for found in OUTPUT.finditer(output):
            text, parameters, kind, cut = found.groups()
            if text:
                self._write(text)
            elif kind == "m":
                self._colour = self.codes.setdefault(parameters, chr(256 + len(self.codes)))
            elif kind == "H":
                row, column = parameters.split(";")
                self._row, self._column = int(row) - 1, int(column) - 1
            elif cut:
                self._rest = cut

    def _write(self, text: str) -> None:
        start, end = self._column, self._column + len(text)
        for rows, new in (self.display, text), (self.colours, self._colour * len(text)):
            rows[self._row] = rows[self._row][:start] + new + rows[self._row][end:]
        self._column = end


def still(screen: Screen) -> tuple[object, ...]:
    """Return the part of the screen that an active run does not change by itself."""
    display, bottom = screen.display, len(screen.display) - 1
    if "▌1 Runs▐" in display[0]:
        right = display[1].find("╮") + 1 or None  # the preview may be of an active run
        return (_toasts(display), *(_cells(screen, row, right) for row in range(1, bottom + 1)
                                    if LIVE not in display[row]))  # fmt: skip
    if "▌3 Watch▐" in display[0]:
        drawn = tuple(
            (row, found.start(), found.group(), screen.colours[row][found.start()])
            for row in range(3, bottom)
            for found in MARKS.finditer(display[row])
        )
        grounds = {character for code, character in screen.codes.items()
                   if "48;5;" in code and not code.endswith(PAPER)}  # fmt: skip
        marked = tuple(
            (row, column)
            for row in range(3, bottom)
            for column, colour in enumerate(screen.colours[row])
            if colour in grounds
        )
        said = re.search("asked for|is frozen|paused", "".join(display[1:3]))
        titles = tuple(re.findall(r"answers to prompt \d+", "\n".join(display)))
        return (drawn, marked, said and said.group(), titles, _toasts(display),
                _cells(screen, bottom))  # fmt: skip
    return tuple(_cells(screen, row) for row in range(1, bottom + 1))


def _toasts(display: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Return the first row of the toasts at the lower right."""
    return tuple((row, line.find("▌", len(line) // 2))
                 for row, line in enumerate(display) if row > len(display) - 10)  # fmt: skip


PAPER = "48;5;233"


def _cells(screen: Screen, row: int, right: int | None = None) -> tuple[str, str]:
    return screen.display[row][:right], screen.colours[row][:right]
