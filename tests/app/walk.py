"""Walks through the workbench by keys, and panels that are painted without one."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from textual.geometry import Size
from textual.message import Message
from textual.pilot import Pilot

from grpo_engine import events as ev
from grpo_tui.app.inspector.stored import load_group, load_step
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.messages import RolloutOpened
from grpo_tui.app.tui.screens.base import WorkbenchScreen
from grpo_tui.app.tui.screens.rollouts.state import RolloutsView
from grpo_tui.app.tui.widgets.panel import Panel, plain_text
from grpo_tui.experiments.reader import StoreReader
from tests.app import frames
from tests.app.compared import workbench
from tests.app.rest import until


class Walk:
    """A workbench in a terminal of some size."""

    def __init__(self, app: Workbench, pilot: Pilot[int]) -> None:
        self.app, self.pilot = app, pilot

    @property
    def screen(self) -> Any:
        return self.app.screen

    @property
    def view(self) -> Any:
        """The state of the screen."""
        return self.screen.view

    @property
    def text(self) -> str:
        return frames.text(self.app)

    @property
    def lines(self) -> list[str]:
        return frames.frame(self.app)

    @property
    def told(self) -> str:
        """The last message."""
        return self.app.notices[-1].text if self.app.notices else ""

    async def press(self, *keys: str) -> None:
        """Press keys, and wait until nothing is read or drawn any more."""
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def go(self, request: Message) -> None:
        """Have the app do what a screen asks for."""
        await self.app.forward(request)  # type: ignore[arg-type]  # some have a handler of their own
        await self.pilot.pause()

    async def until(self, condition: Callable[[], object]) -> None:
        await until(self.app, condition, self.app.frame_now)

    async def see(self, *words: str) -> None:
        """Wait for the words and check the frame."""
        self.app.frame_now()
        await until(self.app, lambda: all(word in self.text for word in words))
        await self.pilot.pause()
        frames.check(self.app)

    async def over(self, *keys: str, words: tuple[str, ...] = ()) -> None:
        """Open something over the screen, check it, and close it with esc."""
        await self.press(*keys)
        await until(self.app, lambda: not isinstance(self.screen, WorkbenchScreen))
        await self.see(*words)
        await self.press("escape")
        await until(self.app, lambda: isinstance(self.screen, WorkbenchScreen))


@asynccontextmanager
async def walk(
    app: Workbench, size: tuple[int, int] = (120, 40), **options: Any
) -> AsyncIterator[Walk]:
    """A walk through an app, once its first screen has been read."""
    async with app.run_test(size=size, **options) as pilot:
        await pilot.pause()
        yield Walk(app, pilot)


@asynccontextmanager
async def on_rollouts(
    store: Path,
    step: int = 4,
    group: int = 1,
    rollout: int = 1,
    origin: ev.Origin = "train",
    size: tuple[int, int] = (120, 40),
) -> AsyncIterator[Walk]:
    """A walk that begins on a rollout of a store's first run."""
    async with walk(workbench(store), size) as on:
        await on.go(RolloutOpened(1, step, origin, group, rollout))
        yield on


def rollouts_view(
    store: Path, step: int = 4, group: int = 1, rollout: int = 1, origin: ev.Origin = "train"
) -> RolloutsView:
    """What Rollouts shows on a rollout of a store's first run."""
    with StoreReader(store) as reader:
        groups = load_step(reader, 1, step, origin)
        view = RolloutsView().with_step(groups).at_rollout(group, rollout)
        return view.with_detail(load_group(reader, groups, groups.groups[group]))


def painted(
    panel: type[Panel], width: int = 76, height: int = 30, title: str = "", **values: Any
) -> str:
    """The text of a panel with these reactive values: its title, its note, and its lines."""
    sized = type(panel.__name__, (panel,), {"size": Size(width + 2, height + 2)})
    instance = sized(title)
    for name, value in values.items():
        instance.set_reactive(getattr(panel, name), value)
    lines = instance.paint(width, height)
    return "\n".join((instance.title, instance.note, plain_text(lines)))
