"""A run goes through every change of state while the workbench is open on each of its screens.

After each change all screens are compared with those of a workbench that is opened then and knows
the store alone, and the main numbers with the store itself.
"""

import asyncio
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from grpo_engine.config.parse import build, merge
from grpo_engine.config.settings import RunConfig
from grpo_engine.presets import preset
from grpo_tui.app.feed.stored import StoreFeed
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.messages import LaunchRequested, RunOpened
from tests import patience
from tests.app import frames
from tests.app.rest import until
from tests.e2e.training import environment, grpo_tui

SIZE = (120, 40)
SCREENS = {"1": "runs", "3": "watch", "4": "rollouts", "5": "compare", "2": "new_run"}
CLOCK = re.compile(r"\d\d:\d\d:\d\d")
FROM_PYTHON = """
import sys
import grpo_engine
grpo_engine.train(steps=3, name="python-otter", model="starter", task="arithmetic",
                  rollout={"prompts": 2, "group_size": 4, "max_new_tokens": 12},
                  evaluation={"problems": 4, "pinned": 1})
"""


def settings(name: str, steps: int) -> RunConfig:
    """A small run of the starter with evaluations, pinned prompts and a checkpoint a step."""
    return build(
        merge(
            preset("starter").config.model_dump(mode="json"),
            {
                "name": name,
                "steps": steps,
                "rollout": {"prompts": 2, "group_size": 4},
                "evaluation": {"problems": 4, "pinned": 1, "pinned_every": 2, "every": 2},
                "checkpoint": {"every": 1},
                "alerts": {"no_signal": 0.01},
            },
        )
    )


def stored(store: Path, name: str) -> dict[str, Any]:
    """A run's row, read without the program."""
    with closing(sqlite3.connect(store)) as connection:
        connection.row_factory = sqlite3.Row
        row = connection.execute("SELECT * FROM run WHERE name = ?", [name]).fetchone()
        return dict(row or {})


class Scene:
    """The workbench that stays open, and what is expected of it."""

    def __init__(self, app: Workbench, pilot: Pilot[int], store: Path) -> None:
        self.app, self.pilot, self.store = app, pilot, store

    async def see(self, holds: Callable[[], object]) -> None:
        await until(self.app, holds, self.app.frame_now)

    async def state(self, name: str, status: str, step: int | None = None) -> None:
        """Wait until the shown run is in this state."""

        def holds() -> bool:
            assert self.app.session is not None
            shown = self.app.session.state.snapshot()
            return (shown.head.name, shown.status) == (name, status) and step in (None, shown.step)

        await self.see(holds)

    async def command(self, *words: str) -> None:
        """Let another process do something to the store."""
        done = await asyncio.to_thread(grpo_tui, self.store.parent, *words)
        assert done.returncode == 0, done.stdout + done.stderr

    async def agrees(self, change: str, name: str) -> None:
        """Compare all screens with those of a workbench that is opened now, and the store."""
        await self.pilot.press("3")
        row = stored(self.store, name)
        assert self.app.session is not None
        shown = self.app.session.state.snapshot()
        assert (shown.head.name, shown.status, shown.step, shown.head.total_steps) == (
            row["name"],
            row["status"],
            row["step"],
            row["total_steps"],
        ), change
        sentences = (f"step {row['step']}/{row['total_steps']}", f"after {row['step']} step")

        def are_shown() -> bool:
            joined = " ".join(frames.text(self.app).split())  # a sentence may be wrapped
            return all(text in joined for text in sentences)

        await self.see(are_shown)
        now = self.app.clock()
        expected = await asyncio.create_task(screens_of(self.store, name, now))
        clock, self.app.clock = self.app.clock, lambda: now
        for key, mode in SCREENS.items():
            await self.pilot.press(key)
            lines: list[str] = []

            def alike(mode: str = mode, lines: list[str] = lines) -> bool:
                lines[:] = masked(self.app)
                return lines == expected[mode]

            try:
                await self.see(alike)
            except AssertionError:
                pairs = [
                    pair for pair in zip(expected[mode], lines, strict=True) if pair[0] != pair[1]
                ]
                told = "\n".join(f"store  {a}\nscreen {b}" for a, b in pairs)
                raise AssertionError(f"{change}, on {mode}:\n{told}") from None
        self.app.clock = clock
        await self.pilot.press("3")


def masked(app: Workbench) -> list[str]:
    """The lines of the screen without times and the cursor of the curves."""
    return [CLOCK.sub("--:--:--", line).replace("│▸", "│ ") for line in frames.frame(app)]


async def screens_of(store: Path, name: str, now: float) -> dict[str, list[str]]:
    """All screens of a workbench that is opened on a run of the store."""
    feed = StoreFeed(store, name)
    await asyncio.to_thread(feed.caught_up.wait, patience.PATIENCE)
    lines = {}
    app = Workbench(store, feed=feed, clock=lambda: now)
    async with app.run_test(size=SIZE) as pilot:
        await until(app, lambda: app.session and app.session.opened, app.frame_now)
        for key, mode in SCREENS.items():
            await pilot.press(key)
            before: list[str] = []
            for _ in range(200):  # until nothing changes any more
                await asyncio.sleep(0.3)
                app.frame_now()
                await pilot.pause()
                if before == (before := masked(app)) and "reading" not in "".join(before):
                    break
            lines[mode] = before
    return lines


@pytest.mark.slow
@pytest.mark.timeout(3600)  # a few minutes on an idle machine
# a detached run goes on without its starter, which Python takes for a mistake
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
async def test_after_every_change_of_a_run_each_screen_says_what_the_store_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in environment(tmp_path).items():
        monkeypatch.setenv(key, value)
    store = tmp_path / "store.db"
    app = Workbench(store)
    async with app.run_test(size=SIZE) as pilot:
        scene = Scene(app, pilot, store)
        # started here, paused, continued and stopped
        app.post_message(LaunchRequested(settings("otter", 12)))
        await scene.see(lambda: app.live is not None)
        await scene.state("otter", "running")
        await scene.see(lambda: stored(store, "otter")["step"] >= 1)
        await pilot.press("full_stop")
        await scene.state("otter", "paused")
        assert stored(store, "otter")["status"] == "paused"
        await pilot.press("full_stop")
        await scene.state("otter", "running")
        await pilot.press("S", "s")
        await scene.state("otter", "stopped")
        await scene.see(lambda: app.live is None)
        await scene.agrees("stopped", "otter")
        # resumed by its key on Runs
        await pilot.press("1")
        await scene.see(lambda: app.selected)
        await pilot.press("r")
        await scene.see(lambda: app.live is not None)
        await scene.state("otter", "completed", 12)
        await scene.see(lambda: app.live is None)
        await scene.agrees("resumed with r", "otter")
        # extended by another process while it is on Watch, and renamed there
        await scene.command("resume", "otter", "--steps", "15")
        await scene.state("otter", "completed", 15)
        await scene.agrees("extended", "otter")
        await scene.command("runs", "rename", "otter", "badger")
        await scene.see(lambda: "badger" in frames.frame(app)[0])
        await scene.agrees("renamed", "badger")
        # detached, and paused, continued and stopped by another process
        app.post_message(LaunchRequested(settings("detached-otter", 400), "detached"))
        await scene.state("detached-otter", "running")
        await scene.see(lambda: stored(store, "detached-otter")["step"] >= 1)
        await scene.command("pause", "detached-otter")
        await scene.state("detached-otter", "paused")
        await scene.command("continue", "detached-otter")
        await scene.state("detached-otter", "running")
        await scene.command("stop", "detached-otter")
        await scene.state("detached-otter", "stopped")
        await scene.agrees("stopped by another process", "detached-otter")
        # started from Python
        code = [sys.executable, "-P", "-c", FROM_PYTHON]
        done = await asyncio.to_thread(
            subprocess.run, code, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        app.post_message(RunOpened("python-otter"))
        await scene.state("python-otter", "completed", 3)
        await scene.agrees("from Python", "python-otter")
        # imported, and deleted
        other = tmp_path / "other"
        other.mkdir()
        sets = ["--set", "steps=2", "--set", "evaluation.problems=4", "--set", "rollout.prompts=2"]
        made = await asyncio.to_thread(
            grpo_tui, other, "train", "--preset", "starter", *sets, "--set", "name=guest"
        )
        assert made.returncode == 0, made.stderr
        await scene.command("runs", "import", str(other / "store.db"))
        app.post_message(RunOpened("guest"))
        await scene.state("guest", "completed", 2)
        await scene.agrees("imported", "guest")
        await scene.command("runs", "archive", "guest")
        await scene.command("runs", "delete", "guest", "--yes")
        await scene.see(lambda: app.session is None)
        assert stored(store, "guest") == {}
        for key in ("3", "1", "4", "5", "2"):  # 3 opens the run under the cursor of Runs
            await pilot.press(key)
            await scene.see(lambda: "guest" not in frames.text(app))
        assert app.session is not None
        await scene.agrees("deleted", app.session.feed.head.name)
    assert app.bridge.wait(patience.PATIENCE)
