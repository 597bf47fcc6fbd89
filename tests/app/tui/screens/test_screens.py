"""Every screen, dialog and state at every size: complete, readable, in colours of any terminal.

One workbench on a real store visits all of them, and `frames.check` checks each.
"""

import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual.widgets import OptionList

from grpo_tui.app.tui.app import SCREENS, Workbench
from grpo_tui.app.tui.dialogs.choices import Choice
from grpo_tui.app.tui.dialogs.crash import crash_page
from grpo_tui.app.tui.dialogs.dialog import Dialog
from grpo_tui.app.tui.dialogs.help.screen import HelpScreen
from grpo_tui.app.tui.preferences import Preferences
from grpo_tui.app.tui.screens.rollouts.lab.screen import LabScreen
from grpo_tui.app.tui.widgets.field import Field
from grpo_tui.app.tui.widgets.key_bar import KeyBar
from grpo_tui.app.tui.widgets.panel import Panel
from grpo_tui.experiments.processes import environment
from tests.app import frames
from tests.app.frames import SIZES
from tests.app.rest import until
from tests.app.script import Script, algorithm
from tests.app.stored import record, run_events, workbench
from tests.app.tui.screens.test_watch import workbench as scripted
from tests.app.walk import Walk, walk

WALKS = [((80, 24), "dark"), ((200, 60), "light")]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("screens") / "runs.db"
    for seed in range(3):
        record(
            path,
            run_events(steps=6, seed=seed),
            name=f"otter-{seed}",
            seed=seed,
            algorithm=algorithm(beta=0.04 if seed else 0.1),
        )
    return path


async def zoom_all(walk: Walk) -> None:
    """Zoom and check every panel."""
    for panel in [p for p in walk.screen.query(Panel) if p.focusable and p.region]:
        panel.focus()
        await walk.press("z")
        assert walk.screen.maximized is panel
        assert panel.region.width == walk.app.size.width
        frames.check(walk.app)
        await walk.press("z")


async def on_runs(walk: Walk) -> None:
    await walk.press("1")
    await walk.see("otter-2")
    await zoom_all(walk)
    await walk.over("Q", words=("queue",))
    await walk.over("i", words=("tag",))
    await walk.press("g")
    await walk.see("recipe")
    await walk.press(*["g"] * 6)


async def on_new_run(walk: Walk) -> None:
    await walk.press("2")
    await walk.see("2 New")
    await zoom_all(walk)


async def on_watch(walk: Walk) -> None:
    await walk.press("3")
    await walk.see("reward", "completed after")
    await zoom_all(walk)
    await walk.over("ctrl+p", *"held", words=("Metric: held-out accuracy",))


async def on_rollouts(walk: Walk) -> None:
    await walk.press("4")
    await walk.see("token 1 of", "ratio")
    await zoom_all(walk)
    for _ in range(5):
        await walk.press("m")
        frames.check(walk.app)
    await walk.press("t")
    await walk.see("pinned", "by step")
    await walk.press("d")
    await walk.see("changes")
    await walk.press("d", "t")
    await walk.see("token 1 of", "share")
    await walk.press("v")
    await until(walk.app, lambda: isinstance(walk.app.screen, LabScreen))
    await walk.see("mean push" if walk.app.size.width > 80 else "KL penalty")
    await walk.press("right", "down", "right")
    await walk.see("was 0.2")
    await walk.press("escape")


async def on_compare(walk: Walk) -> None:
    await walk.press("1")
    await walk.see("otter-2")
    await walk.press("home", "space", "down", "space", "d")
    await until(walk.app, lambda: getattr(walk.app.screen, "mode", "") == "compare")
    await walk.see("5 Compare")
    await zoom_all(walk)


@pytest.mark.parametrize(("size", "theme"), WALKS)
@pytest.mark.parametrize("part", [on_runs, on_new_run, on_watch, on_rollouts, on_compare])
async def test_a_screen_is_whole_and_readable(
    part: Callable[[Walk], Awaitable[None]], size: tuple[int, int], theme: str, store: Path
) -> None:
    async with walk(workbench(store, theme), size) as on:
        await part(on)


@pytest.mark.parametrize(("size", "theme"), WALKS)
async def test_what_opens_over_a_screen_is_whole_and_readable(
    size: tuple[int, int], theme: str, store: Path
) -> None:
    async with walk(workbench(store, theme), size) as on:
        await on.see("reward")
        await on.over("question_mark", words=("reward",))
        await on.over("ctrl+p", words=("Find an action",))
        await on.over("ctrl+c", words=("─ quit ─", "Leave the workbench?"))
        on.app.push_screen(crash_page(on.screen.snapshot, "The model is gone.", "Traceback\n x"))
        await on.see("The model is gone", "last lines of the log")
        lines = [line for line in on.lines if re.search(r":\d\d  step +\d+  ", line)]
        ends = {re.search(r"step +\d+", line).end() for line in lines}  # type: ignore[union-attr]  # each line matched
        assert len(lines) > 1
        assert len(ends) == 1  # the texts begin below each other


@pytest.mark.parametrize("size", SIZES)
async def test_an_engine_at_work_can_be_steered_from_a_whole_screen(
    size: tuple[int, int], tmp_path: Path
) -> None:
    async with walk(scripted(Script(steps=24, total_steps=60).sampling(), tmp_path), size) as on:
        await on.see("generate", "pause run")
        await on.over("S", words=("after this step",))


@pytest.mark.parametrize("size", [size for size, _ in WALKS])
@pytest.mark.parametrize("mode", list(SCREENS))
async def test_an_empty_store_says_what_would_fill_the_screen(
    mode: str, size: tuple[int, int], tmp_path: Path
) -> None:
    app = Workbench(tmp_path / "none.db", mode=mode, preferences=Preferences())
    words = {
        "runs": ("two-minute starter run", "recorded run"),
        "new_run": ("2 New",),
        "watch": ("No run is open", "Press 1", "Curves appear here after step 1"),
        "rollouts": ("No run is open",),
        "compare": ("5 Compare",),
    }
    async with app.run_test(size=size) as pilot:
        await Walk(app, pilot).see(*words[mode])
        keys = app.screen.query_one(KeyBar).fitting
        assert mode != "rollouts" or [name for _, name, _ in keys] == [
            "find",
            "zoom",
            "explain",
            "palette",
        ]


def test_the_first_screen_is_there_before_pydantic_the_database_and_mlx() -> None:
    code = (
        "import sys, grpo_tui.app.tui.app, grpo_tui.app.tui.screens.runs.screen\n"
        "slow = {'pydantic', 'sqlmodel', 'sqlalchemy', 'mlx', 'numpy', 'yaml'}\n"
        "slow |= {'grpo_tui.app.text.comparison', 'grpo_tui.experiments.compare.values'}\n"
        "slow |= {'grpo_tui.app.tui.dialogs.picker', 'grpo_tui.app.tui.screens.runs.dialogs'}\n"
        "sys.exit(repr(slow & set(sys.modules)) if slow & set(sys.modules) else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "keys"),
    [
        ("runs", "i m x q exclamation_mark question_mark Q"),
        ("new_run", "enter w L question_mark"),
        ("watch", "exclamation_mark question_mark"),
        ("compare", "plus m"),
    ],
)
async def test_esc_leaves_every_dialog_and_enter_takes_the_first_answer(
    mode: str, keys: str, store: Path
) -> None:
    async with walk(workbench(store, "dark", mode)) as on:
        await on.pilot.pause()
        base = on.screen
        for key in keys.split():
            await on.press(key)
            await on.until(lambda: isinstance(on.screen, Dialog))
            dialog = on.screen
            if isinstance(dialog, Choice):
                assert dialog.query_one(OptionList).highlighted == 0, key
            typed_in = bool(dialog.query(Field))
            await on.press("escape")
            assert on.screen is base, key
            if not typed_in or isinstance(dialog, HelpScreen):
                await on.press(key)
                await on.until(lambda: isinstance(on.screen, Dialog))
                await on.press("q")
                await on.until(lambda: on.screen is base)
