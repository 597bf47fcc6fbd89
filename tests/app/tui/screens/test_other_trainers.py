"""A run of another trainer on the screens: live, and what only its trainer can do."""

from pathlib import Path

import pytest

from grpo_tui import record
from tests.app.compared import workbench
from tests.app.walk import walk


def step_of(run: record.Run, step: int) -> None:
    answers = [record.rollout(text, rewards={"right": float(text == "4")}) for text in "45"]
    run.step(step, [record.group("2 + 2 = ", answers)], metrics={"loss": 0.1})
    run._recorder.flush()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


async def test_a_run_appears_while_it_trains_and_only_its_trainer_can_pause_it(store: Path) -> None:
    run = record.run("theirs", trainer="TRL", store=store)
    step_of(run, 1)
    async with walk(workbench(store)) as on:
        await on.see("theirs")
        await on.press("enter")
        await on.see("2 + 2 =", "3 Watch")
        step_of(run, 2)
        await on.see("step 2")
        assert "step 2/" not in on.text
        await on.press("full_stop")
        await on.until(lambda: "theirs was trained by TRL" in on.text)
        run.close()


async def test_a_clone_and_a_resume_say_why_not(store: Path) -> None:
    with record.run("theirs", trainer="TRL", store=store) as run:
        step_of(run, 1)
        run.close("stopped")
    async with walk(workbench(store)) as on:
        await on.see("theirs")
        for key in ("r", "c"):
            on.app.notices.clear()
            await on.press(key)
            await on.until(lambda: "theirs was trained by TRL" in on.told)
