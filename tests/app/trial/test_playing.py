"""An episode with a person in the model's place: in the trial process and in its panel."""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.parse import build
from grpo_tui.app.trial import TrialProcess
from grpo_tui.app.trial.service import Trials
from grpo_tui.app.tui.screens.new_run.screen import PagePanel
from tests.app import frames
from tests.app.compared import workbench
from tests.app.new_run_kit import EXAMPLES, opened, turn_to
from tests.app.rest import until
from tests.app.script import HOSTILE
from tests.engine.sandbox.processes import pids_of

OWN = """
import os, time
from grpo_engine.environments.protocol import Reply

class Own:
    def reset(self, row, seed):
        return [{"role": "user", "content": f"process {os.getpid()}"}]

    def step(self, answer):
        if answer == "exit":
            os._exit(3)
        if answer == "hang":
            time.sleep(1000)
        if answer == "end":
            return Reply(done=True, reward=0.5)
        return Reply([{"role": "user", "content": f"heard {answer}"}], info={"length": len(answer)})
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(OWN)
    return f"{tmp_path / 'own.py'}:Own"


async def play(
    trial: TrialProcess, name: str, answer: str | None, limit: float = 30.0, **task: Any
) -> Mapping[str, Any]:
    config = build({"task": {"name": name, **task}, "rewards": {"time_limit": limit}})
    return await trial.request("play", config, answer=answer)


def texts(found: Mapping[str, Any]) -> list[str]:
    return [text for _, text in found["lines"]]


async def test_an_episode_is_played_turn_by_turn_in_a_process_of_its_own(own: str) -> None:
    trial = TrialProcess()
    try:
        found = await play(trial, own, None, max_turns=3)
        assert found["lines"][-1] == ["hint", "turn 1 of 3, your answer:"]
        (pid,) = [int(text.split()[-1]) for text in texts(found) if "process" in text]
        assert trial._sandbox is not None
        assert pid not in (os.getpid(), *pids_of(trial._sandbox))
        found = await play(trial, own, "a\nb")
        assert found["lines"][0] == ["reply", "heard a\nb"]
        assert texts(found)[1].startswith("(length 3, ")
        assert not found["over"]
        found = await play(trial, own, "end")
        assert "reward 0.5, the episode is over" in texts(found)[0]
        assert (found["over"], found["failed"]) == (True, False)
        assert "has ended" in (await play(trial, own, "more"))["problem"]
        # after task.max_turns an episode is over, too
        assert not (await play(trial, own, None, max_turns=1))["over"]
        assert (await play(trial, own, "x"))["over"]
    finally:
        trial.close()


@pytest.mark.parametrize(
    ("answer", "why"), [("exit", "ended its process"), ("hang", "longer than")]
)
async def test_an_environment_that_fails_says_why_and_another_episode_can_begin(
    own: str, answer: str, why: str
) -> None:
    trial = TrialProcess()
    try:
        await play(trial, own, None, limit=1)
        found = await play(trial, own, answer)
        assert (found["over"], found["failed"]) == (True, True)
        ((kind, text),) = found["lines"]
        assert kind == "error"
        assert why in text
        assert "process" in texts(await play(trial, own, None))[0]
    finally:
        trial.close()


async def test_a_call_that_takes_too_long_gives_way_to_a_newer_one(
    own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_tui.app.trial.client.REPLACED_S", 0.1)
    trial = TrialProcess()
    try:
        await play(trial, own, None, limit=600)
        first = asyncio.ensure_future(play(trial, own, "hang"))
        await asyncio.sleep(0.5)
        assert "process" in texts(await play(trial, own, None))[0]
        with pytest.raises(asyncio.CancelledError):
            await first
    finally:
        trial.close()


async def test_a_task_without_an_environment_and_a_broken_file_are_problems(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise ValueError('no such luck')")
    trial = TrialProcess()
    try:
        found = await play(trial, "arithmetic", None)
        assert "no environment and no tools" in found["problem"]
        found = await play(trial, f"{tmp_path / 'broken.py'}:Own", None)
        assert "no such luck" in found["problem"]
    finally:
        trial.close()


async def test_a_game_is_played_by_keys(tmp_path: Path) -> None:
    app = workbench(tmp_path / "grpo.db")
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        screen.change(screen.view.form.type("task.name", "guess"))
        assert "play" not in screen.view.pages
        screen.view = replace(screen.view, examples={**EXAMPLES, "environment": True})
        await turn_to(pilot, screen, "play")
        assert "⏎ begins an episode" in frames.text(app)
        await pilot.press("enter", "enter")
        await until(app, lambda: screen.view.episode.turn == "person")
        assert "turn 1 of 8" in frames.text(app)
        await pilot.press("0", "enter")
        await until(app, lambda: len(screen.view.episode.lines) > 5)
        text = frames.text(app)
        assert "▸ 0" in text
        assert "higher" in text
        assert "turn 2 of 8" in text
        frames.check(app)
        await pilot.press("escape", "y")
        assert "higher" in screen.query_one(PagePanel).copy_text()
        await pilot.press("enter", "1", "enter")
        await until(app, lambda: "turn 3 of 8" in frames.text(app))


async def test_a_run_may_get_its_rewards_from_its_environment_alone_or_look_at_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.py").write_text("def length(environments, **_):\n    return [1.0]")

    async def problems(task: str, *functions: str) -> list[str]:
        config = build({"model": {"path": "starter"}, "task": {"name": task},
                        "rewards": {"functions": list(functions)}})  # fmt: skip
        return [words for _, words in (await trial.request("ready", config))["problems"]]

    trial = TrialProcess()
    try:
        assert await problems("guess") == []
        own = f"{tmp_path / 'own.py'}:length"
        assert await problems("guess", own) == []
        assert "environments" in (await problems("arithmetic", own))[0]
    finally:
        trial.close()


def answering(lines: list[tuple[str, str]]) -> Callable[..., Any]:
    async def request(*_: Any, **__: Any) -> Mapping[str, Any]:
        await asyncio.sleep(0)
        return {"lines": [list(line) for line in lines], "over": False, "failed": False}

    return request


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_hostile_replies_are_shown_harmlessly(size: tuple[int, int], tmp_path: Path) -> None:
    app = workbench(tmp_path / "grpo.db")
    async with app.run_test(size=size) as pilot:
        screen = await opened(app, pilot)
        screen.view = replace(screen.view, examples={**EXAMPLES, "environment": True})
        await turn_to(pilot, screen, "play")
        await pilot.press("enter")
        kinds = ("prompt", "reply", "hint", "error")
        for text in HOSTILE:
            screen.player.request = answering([(kind, text) for kind in kinds])  # type: ignore[method-assign]
            await pilot.press("enter")
            await pilot.pause()
            frames.check(app)


def test_the_trial_process_ends_its_episode() -> None:
    trials = Trials(None)
    trials.play({"task": {"name": "guess"}}, None)
    episode = trials._player._episode
    assert episode is not None
    assert pids_of(episode.client._sandbox)
    trials.close()
    assert not pids_of(episode.client._sandbox)
