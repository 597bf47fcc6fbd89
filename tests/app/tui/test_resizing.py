"""A terminal that changes its size while a screen is out of sight, and panels of any size."""

from functools import partial
from pathlib import Path

import pytest
from textual.pilot import Pilot

from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.messages import CompareRequested
from grpo_tui.app.tui.widgets.panel import Panel
from tests.app import frames
from tests.app.rest import until
from tests.app.script import FIRST_WALL_TIME
from tests.app.stored import record
from tests.app.tui.screens.test_watch import SHORT, workbench
from tests.app.walk import walk

MODES = {"1": "runs", "2": "new_run", "3": "watch", "4": "rollouts", "5": "compare"}
RUNS = ("one", "two")
SIZES = [(200, 60), (120, 40), (80, 24), (160, 48)]


def is_shown(app: Workbench, mode: str) -> bool:
    return getattr(app.screen, "mode", "") == mode


async def visit(pilot: Pilot[int], app: Workbench, keys: str = "".join(MODES)) -> None:
    """Show screens one after the other, and check what each draws."""
    for key in keys:
        await pilot.press(key)
        await until(app, partial(is_shown, app, MODES[key]))
        app.frame_now()
        await pilot.pause()
        frames.check(app)


@pytest.fixture
def app(tmp_path: Path) -> Workbench:
    for seed, name in enumerate(RUNS):
        record(tmp_path / "s.db", name=name, seed=seed)
    return Workbench(tmp_path / "s.db", clock=lambda: FIRST_WALL_TIME)


async def opened(pilot: Pilot[int], app: Workbench) -> None:
    """Open a run on all screens."""
    app._open(RUNS[0])
    await app.forward(CompareRequested(RUNS))
    await visit(pilot, app)


@pytest.mark.slow
async def test_a_screen_is_shown_after_the_terminal_has_changed_its_size(app: Workbench) -> None:
    async with app.run_test(size=(200, 60)) as pilot:
        await opened(pilot, app)
        for size in SIZES[1:]:
            await visit(pilot, app, "1")
            await pilot.resize_terminal(*size)
            await visit(pilot, app)


@pytest.mark.parametrize("size", [(59, 24), (80, 15), (20, 5)])
async def test_on_a_terminal_that_is_too_small_the_keys_that_matter_work(
    size: tuple[int, int], tmp_path: Path
) -> None:
    sent: list[str] = []
    app = workbench(SHORT.sampling(), tmp_path)
    app.control = sent.append  # type: ignore[method-assign, assignment]
    async with walk(app, size) as on:
        await on.see("Too small")
        await on.until(lambda: ". pause run, S stop…, q back" in " ".join(on.text.split()))
        await on.press("full_stop", "S", "s")
        assert sent == ["pause", "stop_after_step"]
        await on.press("2")
        assert "3 Watch" in " ".join(on.text.split())
        await on.press("1", "q")
        assert "y  leave" in on.text
        await on.press("n", "3")
        await on.pilot.resize_terminal(80, 24)
        await on.see("curves")
        assert "Too small" not in on.text


@pytest.mark.slow
async def test_every_panel_can_have_any_size(app: Workbench) -> None:
    async with app.run_test(size=(200, 60)) as pilot:
        await opened(pilot, app)
        for key in MODES:
            await visit(pilot, app, key)
            panels = app.screen.query(Panel)
            assert len(panels) > 2
            for panel in panels:
                for width in (*range(1, 46, 2), 80):
                    for height in (1, 2, 3, 5, 9, 16, 24, 45):
                        panel.paint(width, height)
