"""Random input to the workbench: every bound key, any other key, clicks, sizes and themes.

It prefers actions that it has rarely done on the current screen, and actions that led to screens
with such actions, so that each action is tried often wherever it is bound. After it quits the
workbench, it gets a new one on the same store. If no run is active, one is started.
"""

import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from textual.pilot import Pilot

from grpo_engine.config.settings import RunConfig
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.looks.colours import PALETTES
from grpo_tui.app.tui.messages import LaunchRequested
from grpo_tui.app.tui.preferences import Preferences
from grpo_tui.app.tui.screens.base import WorkbenchScreen
from grpo_tui.app.tui.widgets.too_small import is_too_small
from tests.app import frames
from tests.patience import PATIENCE

SIZES = ((80, 24), (120, 40), (200, 60), (100, 30), (40, 12), (81, 25), (60, 16), (20, 5))
LOOSE = (
    "enter", "escape", "tab", "shift+tab", "space", "backspace", "delete", "home", "end",
    "pageup", "pagedown", "ctrl+u", "f1", "f5", "ctrl+home", "ctrl+end",
)  # fmt: skip
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,/?*[]-=<>@#%"
OFTEN = 20
RESIZING = 0.05  # the share of inputs that change the size
IN_BETWEEN = 0.01  # how often to launch a second run while one is active, as screens do in a race
Name = tuple[str, str]
Done = Counter[Name]


@dataclass
class Monkey:
    """What it has done so far; `seed` repeats the same inputs, apart from timing.

    `bound` are the program's own actions it has found. It also tries the many that Textual binds
    for moving in a field or scrolling, but these need not be done often.
    """

    seed: int
    done: Done = field(default_factory=Counter)
    bound: set[Name] = field(default_factory=set)
    ways: dict[str, set[Name]] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    @property
    def seldom(self) -> Done:
        """Actions that have not been done often yet."""
        found = {name: self.done[name] for name in self.bound if self.done[name] < OFTEN}
        return Counter(found)

    def choices(self, app: Workbench) -> list[tuple[str, Name]]:
        """Keys with an effect at this moment, each with the screen and the action."""
        screen = app.screen
        found = []
        for key, active in screen.active_bindings.items():
            if not active.enabled or not active.binding.id or active.node is screen.focused:
                continue
            name = (type(screen).__name__, active.binding.action)
            found.append((key, name))
            self.bound.add(name)
        if screen.focused is not None:
            for key, active in screen.active_bindings.items():
                if active.node is screen.focused and active.enabled:
                    name = (type(screen.focused).__name__, active.binding.action)
                    found.append((key, name))
                    if active.binding.id:
                        self.bound.add(name)
        return found

    async def act(self, app: Workbench, pilot: Pilot[int]) -> None:
        """Send one input."""
        if self.rng.random() < RESIZING:
            any_size = (self.rng.randrange(1, 220), self.rng.randrange(1, 70))
            size_ = self.rng.choice((self.rng.choice(SIZES), any_size))
            self.inputs.append(f"size {size_}")
            await pilot.resize_terminal(*size_)
            return
        draw = self.rng.random()
        if draw < 0.76:
            await self._fire(app, pilot)
        elif draw < 0.93:
            await self._press(pilot, self.rng.choice([*LOOSE, *LETTERS]))
        elif draw < 0.99:
            size = app.size
            place = (self.rng.randrange(size.width), self.rng.randrange(size.height))
            self.inputs.append(f"click {place}")
            await pilot.click(offset=place, times=self.rng.choice((1, 1, 2)))
        else:
            name = self.rng.choice(list(PALETTES))
            self.inputs.append(f"theme {name}")
            app.change_theme(name)

    async def _fire(self, app: Workbench, pilot: Pilot[int]) -> None:
        choices = self.choices(app)
        if not choices:
            await self._press(pilot, self.rng.choice(LOOSE))
            return
        seldom = self.seldom
        leading = set().union(*(self.ways.get(place, ()) for place, _ in seldom))
        weights = [
            (1.0 if name in seldom else 0.05 if name in self.bound else 0.02)
            / (1 + self.done[name] / OFTEN) ** 1.5
            + (0.3 if name in leading else 0.0)
            for _, name in choices
        ]
        ((key, name),) = self.rng.choices(choices, weights)
        self.done[name] += 1
        before = places(app)
        await self._press(pilot, key)
        for place in places(app) - before:
            self.ways.setdefault(place, set()).add(name)

    async def _press(self, pilot: Pilot[int], key: str) -> None:
        self.inputs.append(key)
        await pilot.press(key)


def check(app: Workbench) -> None:
    """Check the frame; on a terminal that is too small, that it says so."""
    if app.size.width >= 80 and app.size.height >= 24:
        frames.check(app)
    elif is_too_small(*app.size) and isinstance(app.screen, WorkbenchScreen):
        lines = frames.frame(app)
        assert min(app.size) < 5 or "Toosmall" in "".join(lines).replace(" ", ""), "\n".join(lines)


def places(app: Workbench) -> set[str]:
    """The owners of the active keys: the current screen and the focused widget."""
    focused = app.screen.focused
    return {type(app.screen).__name__} | ({type(focused).__name__} if focused else set())


async def play(
    monkey: Monkey,
    store: Path,
    config: Callable[[int], RunConfig],
    inputs: int,
    check_every: int,
    most: int = 0,
) -> None:
    """Send `inputs` inputs, up to `most` until each action was done often, and check frames."""
    runs = 0

    def goes_on() -> bool:
        done = len(monkey.inputs)
        return done < inputs or (done < most and bool(monkey.seldom))

    while goes_on():
        app = Workbench(store, preferences=Preferences())
        async with app.run_test(size=monkey.rng.choice(SIZES)) as pilot:
            while goes_on() and app.is_running and app._exit is False:
                if not app.bridge.running:
                    app.post_message(LaunchRequested(config(runs)))
                    runs += 1
                elif monkey.rng.random() < IN_BETWEEN:
                    app.post_message(LaunchRequested(config(runs)))
                await monkey.act(app, pilot)
                if len(monkey.inputs) % 500 == 0:
                    print(
                        f"{time.strftime('%H:%M:%S')} {len(monkey.inputs)} inputs, {runs} runs, "
                        f"{len(monkey.seldom)} of {len(monkey.bound)} actions seldom done"
                    )
                if len(monkey.inputs) % check_every == 0:
                    await pilot.pause()
                    check(app)
            app.request_of_engine("stop_now")
        assert app.bridge.wait(PATIENCE)


@contextmanager
def kept_at_home(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start no process, write no file outside the folder, and check that no thread is left."""
    patch.chdir(folder)
    patch.setattr("grpo_tui.app.jobs.launch._start", lambda *_: "calm-otter")
    stub = SimpleNamespace(
        Popen=_no_process,
        run=_no_process,
        DEVNULL=subprocess.DEVNULL,
        SubprocessError=subprocess.SubprocessError,
    )
    patch.setattr("grpo_tui.app.tui.terminal.subprocess", stub)
    for module in ("detach", "launch"):
        patch.setattr(f"grpo_tui.app.jobs.{module}.spawn", _no_process)
    before = set(threading.enumerate())
    yield
    left = [
        thread
        for thread in threading.enumerate()
        if thread not in before and not thread.name.startswith("asyncio_")
    ]
    for thread in left:
        thread.join(PATIENCE)
    kept = [thread.name for thread in left if thread.is_alive()]
    assert kept == [], kept


def _no_process(*_: object, **__: object) -> None:
    """Start nothing; the caller ignores the result."""
