"""Rollouts shows what Watch shows: the key that leads there takes its step and prompt along."""

from pathlib import Path

from grpo_tui.app.tui.screens.rollouts.screen import RolloutsScreen
from tests.app import frames
from tests.app.rest import until
from tests.app.stored import record, run_events, workbench


async def test_rollouts_opens_at_the_step_and_the_prompt_of_watch(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    record(path, run_events(steps=8, seed=1), name="otter")
    app = workbench(path)
    async with app.run_test(size=(120, 40)) as pilot:

        async def at(cursor: tuple[int, ...], *keys: str) -> None:
            await pilot.press(*keys)
            screen = app.screen
            assert isinstance(screen, RolloutsScreen)
            await until(app, lambda: screen.view.cursor[:2] == cursor and screen.ready)

        await until(app, lambda: app.screen.snapshot.step == 8)  # type: ignore[attr-defined]
        await at((8, 0), "4")
        await at((7, 0), "less_than_sign", "m")
        assert "heat: change" in frames.text(app)
        await at((8, 1), "3", "n", "4")  # Watch is at its last step
        await pilot.press("3", "less_than_sign", "less_than_sign")
        await until(app, lambda: "Step 6." in frames.text(app), app.frame_now)
        await at((6, 1), "4")
        await at((6, 1), "t")  # pinned prompts of that step, not of the newest
        view = app.screen.view  # type: ignore[attr-defined]
        assert view.step.origin == "pinned"
        await pilot.press("t")  # back to where it was
        await until(app, lambda: app.screen.view.step.origin == "train")  # type: ignore[attr-defined]
        await at((6, 1))
        await at((8, 0), "3", "escape", "p", "4")
        assert app.screen.view.step.origin == "train"  # type: ignore[attr-defined]
