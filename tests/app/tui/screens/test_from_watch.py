"""Rollouts shows what Watch shows: the key that leads there takes its step and prompt along."""

from pathlib import Path

from tests.app.stored import record, run_events, workbench
from tests.app.walk import walk


async def test_rollouts_opens_at_the_step_and_the_prompt_of_watch(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    record(path, run_events(steps=8, seed=1), name="otter")
    async with walk(workbench(path)) as on:

        async def at(cursor: tuple[int, ...], *keys: str) -> None:
            await on.press(*keys)
            screen = on.screen
            await on.until(lambda: screen.view.cursor[:2] == cursor and screen.ready)

        await on.until(lambda: on.screen.snapshot.step == 8)
        await at((8, 0), "4")
        await at((7, 0), "less_than_sign", "m")
        assert "heat: change" in on.text
        await at((8, 1), "3", "n", "4")  # Watch is at its last step
        await on.press("3", "less_than_sign", "less_than_sign")
        await on.until(lambda: "Step 6." in on.text)
        await at((6, 1), "4")
        await at((6, 1), "t")  # pinned prompts of that step, not of the newest
        view = on.screen.view
        assert view.step.origin == "pinned"
        await on.press("t")  # back to where it was
        await on.until(lambda: on.screen.view.step.origin == "train")
        await at((6, 1))
        await at((8, 0), "3", "escape", "p", "4")
        assert on.screen.view.step.origin == "train"
