"""A run of another trainer on the screens: live, and what only its trainer can do."""

from pathlib import Path

import pytest

from grpo_tui import record
from grpo_tui.foreign.importing import Options, import_runs
from grpo_tui.foreign.messages import answer_of
from tests.app.compared import workbench
from tests.app.tui.screens.test_rollouts import opened
from tests.app.walk import walk

VERIFIERS = Path(__file__).parents[3] / "foreign" / "verifiers" / "0.4"


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
        await on.see("2 + 2 =", "3 Watch", "waits for the next step of TRL")
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


async def test_turns_whose_tokens_are_unknown_are_shown_as_texts(store: Path) -> None:
    chat = [
        {"role": "assistant", "content": "let me add"},
        {"role": "tool", "name": "add", "content": "7"},
        {"role": "assistant", "content": "it is seven"},
    ]
    text, spans = answer_of(chat)
    answer = record.rollout(text, reward=1.0, tokens=record.Tokens(spans=spans))
    with record.run("theirs", trainer="TRL", store=store) as run:
        run.step(1, [record.group("5 + 2 = ", [answer])])
    async with walk(workbench(store)) as on:
        await opened(on, step=1, group=0, rollout=0)
        await on.see("turn 2 of 2", "let me add", "‹7›", "it is seven")
        assert "0 tokens" not in on.text


async def test_an_imported_evaluation_was_not_trained(store: Path) -> None:
    import_runs(VERIFIERS, Options(store=store))
    async with walk(workbench(store)) as on:
        await on.see("0.4")
        await on.press("enter")
        await on.see("The import ended; verifiers evaluated it.", "What is 6 * 7?")
        assert "after 0 steps" not in on.text
