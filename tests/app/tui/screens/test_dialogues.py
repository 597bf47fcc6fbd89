"""Dialogues on Watch as they happen, and on Rollouts turn by turn."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_engine import events as ev
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.screens.rollouts.screen import CompletionPanel
from tests.app import dialogues, frames
from tests.app.compared import workbench
from tests.app.frames import LOOKS
from tests.app.script import FIRST_WALL_TIME
from tests.app.stored import record
from tests.app.tui.screens.test_rollouts import opened
from tests.app.tui.screens.test_watch import settle
from tests.app.tui.screens.test_watch import workbench as watching
from tests.app.walk import Walk, walk


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "runs.db"
    record(path, dialogues.run_events())
    return path


@pytest.fixture
def at_rest(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The board's clock stands seven seconds before the screen's."""
    monkeypatch.setattr("grpo_tui.experiments.board.time.time", lambda: FIRST_WALL_TIME - 7)
    return iter(())


async def at(on: Walk, group: int, rollout: int) -> Any:
    return await opened(on, step=2, group=group, rollout=rollout)


def lines(app: Workbench) -> list[str]:
    return frames.text(app).splitlines()


@pytest.mark.usefixtures("at_rest")
@pytest.mark.parametrize(("size", "theme"), LOOKS)
async def test_turns_are_shown_as_they_happen(
    size: tuple[int, int], theme: str, tmp_path: Path
) -> None:
    async with walk(watching(dialogues.sampling(), tmp_path, theme), size) as on:
        await settle(on.pilot, on.app)
        frames.check(on.app)
        text = on.text
        assert "56▪" in text
        assert "53 ⚙" in text  # who waits
        assert "75 [failed]" in text
        if size[0] > 80:
            assert "2 wait for an environment" in text  # of both prompts
            await on.press("n")
            assert "⚙ calculator(17*23) → 391" in on.text
            assert "tool_call" not in on.text
        frames.check(on.app)


@pytest.mark.parametrize(("size", "theme"), LOOKS)
async def test_frames_are_whole_at_every_turn(
    size: tuple[int, int], theme: str, store: Path
) -> None:
    async with walk(workbench(store, theme), size) as on:
        for group in (0, 1):
            for rollout in range(4):
                screen = await at(on, group, rollout)
                frames.check(on.app)
                await on.press("end")
                frames.check(on.app)
                await on.press("pageup")
                assert screen.view.token in screen.view.tokens
                frames.check(on.app)


async def test_turns_are_shown_with_reply_info_and_reward(store: Path) -> None:
    async with walk(workbench(store), (120, 60)) as on:
        screen = await at(on, 0, 0)
        text = on.text
        assert "turn 1 of 4, 2 tokens" in text
        assert "‹higher›" in text
        assert "Guess: guesses 1   3 ms" in text
        await on.press("pagedown", "pagedown", "pagedown", "pagedown")
        assert screen.view.token == 12
        last = next(line for line in lines(on.app) if "turn 4 of 4" in line)
        assert "reward .7" in last  # 1 - .1 × 3 guesses before it


async def test_the_cursor_walks_over_the_models_tokens_only(store: Path) -> None:
    async with walk(workbench(store)) as on:
        screen = await at(on, 0, 0)
        seen = [screen.view.token]
        for _ in range(9):
            await on.press("right")
            seen.append(screen.view.token)
        # two tokens a turn, and two of the reply in between
        assert seen == [0, 1, 4, 5, 8, 9, 12, 13, 13, 13]
        text = on.text
        assert "token 8 of 8" in text
        await on.press("left", "left", "left")
        assert screen.view.token == 8
        assert screen.view.at_token(7).token == 5  # of a reply: the token before it


async def test_a_failed_environment_says_why_in_its_turn_and_beside_the_reward(
    store: Path,
) -> None:
    async with walk(workbench(store), (160, 48)) as on:
        await at(on, 0, 2)
        await on.press("pagedown")
        text = on.text
        assert text.count("took longer than") == 2
        assert "environment failed" in text
        head = next(line for line in lines(on.app) if "turn 2 of 2" in line)
        assert "failed" in head


async def test_a_click_on_a_turn_goes_to_its_first_token(store: Path) -> None:
    async with walk(workbench(store), (120, 60)) as on:
        screen = await at(on, 0, 0)
        panel = screen.query_one(CompletionPanel)
        row = next(y for y, line in enumerate(lines(on.app)) if "turn 3 of 4" in line)
        await on.pilot.click(panel, offset=(9, row - panel.region.y))
        assert screen.view.token == 8
        row = next(y for y, line in enumerate(lines(on.app)) if "62▪" in line)
        await on.pilot.click(panel, offset=(3, row - panel.region.y))
        assert screen.view.token == 9  # its end token


async def test_search_finds_the_names_of_tools(store: Path) -> None:
    async with walk(workbench(store)) as on:
        screen = await at(on, 0, 0)

        async def at_once() -> None:
            """Search without waiting for the next key."""

        screen.typing_pause = at_once
        screen.find("calculator(1/0)")
        await on.until(lambda: screen.view.search.hits)
        assert {(hit.group_index, hit.index) for hit in screen.view.search.hits} == {(1, 2)}


async def test_a_dialogue_without_token_numbers_is_told_by_its_turns(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    events = (e for e in dialogues.run_events(1) if not isinstance(e, ev.TokensScored))
    record(path, events, record={"tokens": "none"})
    async with walk(workbench(path)) as on:
        await opened(on, step=1, group=0, rollout=0)
        await on.press("right", "pagedown")
        text = on.text
        assert "turn 4 of 4" in text
        assert "‹higher›" in text
        frames.check(on.app)
