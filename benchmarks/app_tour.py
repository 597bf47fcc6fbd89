"""A tour of every action of the workbench, for timing keys in a pty.

Each stop is a screen with its keys, in an order in which each key changes something. A screen that
shows an active run changes by itself; `still` is the part that does not, and a key counts as
answered when a cell of that part has changed.
"""

import re
from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import dataclass, replace

from grpo_tui.app.tui.key_actions import bindings_of_classes
from grpo_tui.app.tui.keys import is_bound

BYTES = {
    "enter": "\r", "escape": "\x1b", "tab": "\t", "shift+tab": "\x1b[Z", "space": " ",
    "backspace": "\x7f", "up": "\x1b[A", "down": "\x1b[B", "right": "\x1b[C", "left": "\x1b[D",
    "home": "\x1b[H", "end": "\x1b[F", "pageup": "\x1b[5~", "pagedown": "\x1b[6~",
    "shift+left": "\x1b[1;2D", "shift+right": "\x1b[1;2C", "f1": "\x1bOP", "f5": "\x1b[15~",
    "ctrl+a": "\x01", "ctrl+c": "\x03", "ctrl+p": "\x10", "ctrl+z": "\x1a",
    "slash": "/", "question_mark": "?", "full_stop": ".", "asterisk": "*", "minus": "-",
    "equals_sign": "=", "plus": "+", "at": "@", "right_square_bracket": "]",
    "left_square_bracket": "[", "left_curly_bracket": "{", "right_curly_bracket": "}",
    "less_than_sign": "<", "greater_than_sign": ">", "left_parenthesis": "(",
    "right_parenthesis": ")", "exclamation_mark": "!",
}  # fmt: skip

LIVE = "busy-bee"  # the name of the active run
MARKS = re.compile("[╭╮╰╯│▸]|(?<=│)▌")  # frames and cursor marks
TOAST = re.compile(r"▌ *(.*?)(?:  |$)")
SAID = re.compile(r"Saving a checkpoint|is frozen|paused|muted in this run|Step \d+, seen from")
NOT_PRESSED = frozenset(
    (
        "rollouts.pager",
        "runs.demo",  # open another program
        "watch.faster",
        "watch.slower",  # of a replay, which is another program
        "queue.work",  # a process whose start would be measured as well
        "chat.begin",
        "chat.next",
        "chat.before",  # load a model
        "move.left",
        "move.right",  # the uses of the columns of a file, which another process reads first
        "trust.up",
        "trust.down",  # scroll a question that is longer than the screen
    )
)


TITLES = 2  # the row of the titles of the table of runs, one of which has an arrow
AROUND = "..."  # after a key that sorts by the next of as many columns as fit


@dataclass(frozen=True, slots=True)
class Stop:
    """A screen with its panels, the unmeasured keys that lead there, and the measured keys.

    A key with `AROUND` is pressed until the titles of the table are what they were before.
    """

    screens: tuple[str, ...]
    way: str
    keys: str

    def to(self, way: str) -> "Stop":
        """Return the stop with another way to it."""
        return replace(self, way=way)

    def then(self, keys: str) -> "Stop":
        """Return the stop with further keys."""
        return replace(self, keys=f"{self.keys} {keys}")


COMMON = "slash escape y question_mark escape f1 escape ctrl+p escape"
PANELS = "z z"
STEER = "full_stop full_stop w S escape"  # while a run is active
SECOND = "1 home down"  # the second run of the table
TWO = f"{SECOND} space down space d"  # compares the second run and the third
RUNS = Stop(
    (
        "RunsScreen",
        "WorkbenchScreen",
        "Workbench",
        "InputDialog",
        "Choice",
        "ControlScreen",
    ),
    SECOND,
    f"down up j k pagedown pageup end home down {PANELS} {COMMON} ctrl+c escape "
    "space down space i escape g escape m escape "
    f"z s{AROUND} z G G c q r x enter u 2 1 3 1 4 1 5 1 "
    "home down space down space d 1 home down space down space enter 1",
)
CHAT = Stop(("RunsScreen", "ChatScreen"), f"{SECOND} down down down", "A escape")
QUEUE = Stop(
    ("RunsScreen", "QueueScreen"), "1", "Q down j up k r x r x question_mark escape escape"
)
MESSAGES = Stop(("Workbench", "PageDialog"), f"1 {'y ' * 40}", "exclamation_mark j k y enter")
WATCH = Stop(
    (
        "WatchScreen",
        "WorkbenchScreen",
        "Curves",
        "CompletionsPanel",
        "Groups",
        "AlertsLog",
        "ControlScreen",
    ),
    f"{SECOND} enter 3",
    "down j up k right l left h enter escape m escape "
    "tab down j up k enter 3 "
    "tab down j up k right l left h enter 3 tab down k j up enter escape shift+tab tab "
    "less_than_sign less_than_sign greater_than_sign left_curly_bracket right_curly_bracket "
    f"less_than_sign at escape escape n p {PANELS} {COMMON} ctrl+c escape",
)
CHARTS = (
    "left h right l less_than_sign greater_than_sign left_curly_bracket right_curly_bracket "
    "home right end home at escape down j up k Y Y a a a minus equals_sign m escape"
)
ROLLOUTS = Stop(
    ("RolloutsScreen",),
    f"1 home enter 4 {SECOND} enter 4",  # another run first: one that stays open keeps its prompt
    "v escape right l left h end home down j up k n n p p m m m m m s s s p "
    "less_than_sign less_than_sign greater_than_sign left_curly_bracket right_curly_bracket t "
    "left_square_bracket left_square_bracket right_square_bracket d d d at escape t t "
    f"f f F {PANELS} {COMMON} tab asterisk shift+tab",
)
DIALOGUES = Stop(("RolloutsScreen",), f"{SECOND} down down enter 4", "pagedown pageup pagedown")
SEARCH = Stop(("RolloutsScreen",), f"{SECOND} enter 4 slash a n s enter", "x x escape")
LAB = Stop(
    ("LabScreen",),
    f"{SECOND} enter 4 v",
    "down j up k right l left h right backspace right t t enter escape question_mark escape "
    "f1 escape e escape c q",
)
HELP = Stop(("HelpScreen",), "1 question_mark", "j k y escape question_mark slash escape")
COMPARE = Stop(
    ("CompareScreen", "ChartStack", "WorkbenchScreen"),
    TWO,
    f"{CHARTS} e escape home enter escape {COMMON} {PANELS} plus escape "
    "right_square_bracket right_square_bracket n p left_square_bracket "
    "tab tab tab down b up b x G q",
)
PICKER = Stop(
    ("Picker",),
    f"{TWO} plus",
    "down up pagedown pageup end home space space ctrl+a ctrl+a slash escape enter",
)
NEW_RUN = Stop(
    ("NewRunScreen",),
    "2",
    f"down j up k pagedown pageup end home {COMMON} escape {PANELS} L escape enter escape "
    "right_square_bracket right_square_bracket n p right_square_bracket enter escape "
    "right_square_bracket right_square_bracket enter escape right_square_bracket "
    "left_square_bracket escape down down down down right u right left enter escape "
    "right ctrl+z right backspace down w escape D q",
)
BEGIN = Stop(
    ("NewRunScreen", "Picker"),
    f"{SECOND} down down down c y home",  # yes to a run that did not begin with these preferences
    "enter down up slash s down slash up escape escape enter home enter q",
)
STOPS = (
    RUNS,
    CHAT,
    QUEUE,
    MESSAGES,
    WATCH.then("shift+tab x x tab"),
    ROLLOUTS,
    DIALOGUES,
    SEARCH,
    LAB,
    HELP,
    COMPARE,
    PICKER,
    NEW_RUN,
    BEGIN,
)
LIVE_STOPS = (
    RUNS.then(f"home {STEER}"),
    CHAT.to(f"{CHAT.way} down"),
    QUEUE,
    MESSAGES,
    WATCH.to("1 home enter 1 3").then(f"{STEER} q 3"),
    ROLLOUTS.to(f"1 home enter 4 {SECOND} down enter 4"),  # the run that `ROLLOUTS` opens
    DIALOGUES.to(f"{SECOND} down down down enter 4"),
    SEARCH,
    LAB,
    HELP,
    COMPARE,
    PICKER,
    NEW_RUN,
    BEGIN.to(f"{SECOND} down down down down c y home"),
)


def bindings() -> dict[str, tuple[str, frozenset[str]]]:
    """Return every named binding of the app that has keys: its name, its class and its keys."""
    return {
        f"{name}:{binding.id}": (name, frozenset(binding.key.split(",")))
        for name, bindings in bindings_of_classes().items()
        for binding in bindings
        if is_bound(binding.key)
    }


def unfired() -> list[str]:
    """Return the actions that no stop of the tour triggers."""
    fired = {
        (name, key)
        for stop in (*STOPS, *LIVE_STOPS)
        for name in stop.screens
        for key in stop.keys.replace(AROUND, "").split()
    }
    return sorted(
        binding
        for binding, (name, keys) in bindings().items()
        if not any((name, key) in fired for key in keys)
        and name != "Panel"  # of all screens
        and binding.partition(":")[2] not in NOT_PRESSED
    )


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
        self._colour, self._unread = "0", ""
        self._decode = getincrementaldecoder("utf-8")().decode

    def draw(self, data: bytes) -> None:
        """Draw output, which may end within a character or a sequence."""
        output, self._unread = self._unread + self._decode(data), ""
        for match in OUTPUT.finditer(output):
            text, parameters, final, cut = match.groups()
            if text:
                self._write(text)
            elif final == "m":
                self._colour = self.codes.setdefault(parameters, chr(256 + len(self.codes)))
            elif final == "H":
                row, column = parameters.split(";")
                self._row, self._column = int(row) - 1, int(column) - 1
            elif cut:
                self._unread = cut

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
        return (
            _toasts(display),
            *(
                _cells(screen, row, right)
                for row in range(1, bottom + 1)
                if LIVE not in display[row]
            ),
        )
    if "▌3 Watch▐" in display[0] and LIVE in display[0]:
        texts = tuple(
            (row, match.start(), match.group(), screen.colours[row][match.start()])
            for row in range(3, bottom)
            for match in MARKS.finditer(display[row])
        )
        grounds = {
            character
            for code, character in screen.codes.items()
            if "48;5;" in code and not code.endswith(PAPER)
        }
        marked = tuple(
            (row, column)
            for row in range(3, bottom)
            for column, colour in enumerate(screen.colours[row])
            if colour in grounds
        )
        sentences = tuple(SAID.findall("\n".join(display)))
        titles = tuple(re.findall(r"answers to prompt \d+", "\n".join(display)))
        return (texts, marked, sentences, titles, _toasts(display), _cells(screen, bottom))
    return tuple(_cells(screen, row) for row in range(1, bottom + 1))


def _toasts(display: Sequence[str]) -> tuple[tuple[int, str], ...]:
    """Return the rows of the toast at the lower right, and its words."""
    return tuple(
        (row, phrase)
        for row, line in enumerate(display)
        if row > len(display) - 10
        for phrase in TOAST.findall(line[len(line) // 2 :])
    )


PAPER = "48;5;233"


def _cells(screen: Screen, row: int, right: int | None = None) -> tuple[str, str]:
    return screen.display[row][:right], screen.colours[row][:right]
