"""The trial process: the model's input, the cost of a step, the scores of rewards."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.parse import build
from grpo_engine.config.settings import RunConfig
from grpo_tui.app.trial.client import TrialProcess
from tests.engine.runs import settings
from tests.engine.sandbox.processes import kill
from tests.patience import until


async def asked(trial: TrialProcess, what: str, config: RunConfig, **more: Any) -> dict[str, Any]:
    return await trial.request(what, config, **more)


@pytest.mark.slow
async def test_prompts_memory_and_rewards_are_tried_in_a_process_of_their_own(world: Path) -> None:
    trial, config = TrialProcess(), settings(world)
    try:
        found = await asked(trial, "examples", config)
        assert (found["train"], found["held_out"]) == (34, 6)
        assert (
            found["gets"] == "completions as text, because the prompts of problems.jsonl are text"
        )
        texts = [example["text"] for example in found["examples"]]
        assert len(texts) == 3
        assert all(text.startswith("say ") for text in texts)

        # The same problems as in the run's first step, with the engine's tokens.
        from grpo_engine.tasks.base import draw, load_task

        drawn = draw(load_task(config.task), config.seed, 0, 3)
        assert [example["key"] for example in found["examples"]] == [e.key for e in drawn]

        memory = await asked(trial, "memory", config)
        assert 0 < memory["weights"] < memory["peak"] < memory["limit"]
        assert memory["dtype"] == "float32"
        # 2 prompts x 4 answers, and optimizer.micro_rows 4
        assert (memory["max_rows"], memory["micro_rows"]) == (8, 4)

        score = await asked(trial, "score", config, example=0, completion="abc123")
        assert [row["name"] for row in score["rows"]] == ["letters", "accuracy"]
        # three letters of twelve; the sum of the characters' codes is 444 = 3 x 148
        assert [row["value"] for row in score["rows"]] == [0.25, 1.0]
        assert score["total"] == 1.25
    finally:
        trial.close()


@pytest.mark.slow
async def test_what_goes_wrong_is_said_and_the_process_goes_on(world: Path, tmp_path: Path) -> None:
    hostile = tmp_path / "broken.py"
    hostile.write_text("import os\ndef dies(completions, **_):\n    os._exit(3)\n")
    trial, config = TrialProcess(), settings(world)
    try:
        bad = settings(world, task={"name": str(world / "nowhere.jsonl"), "held_out_size": 6})
        found = await asked(trial, "examples", bad)
        assert "nowhere.jsonl" in found["problem"]
        fatal = settings(world, rewards={"functions": [f"{hostile}:dies"]})
        found = await asked(trial, "score", fatal, example=0, completion="x")
        assert found["rows"][0]["value"] is None
        assert "its process exited" in found["problems"][0]
        astray = settings(world, algorithm={"recipe": "dapo", "refill_on": "acc"})
        found = await asked(trial, "score", astray, example=0, completion="x")
        assert "refill_on: 'acc' is not a reward function of the run" in found["problem"]
        lost = settings(world, model={"path": "someone/not-on-this-machine"})
        found = await asked(trial, "examples", lost)
        assert "D on New run now" in found["problem"]
        assert "problem" not in await asked(trial, "examples", config)
    finally:
        trial.close()


@pytest.mark.slow
async def test_a_cancelled_question_is_not_asked_and_a_dead_process_is_replaced(
    world: Path,
) -> None:
    trial, config = TrialProcess(), settings(world)
    try:
        first = asyncio.ensure_future(asked(trial, "examples", config))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(asked(trial, "examples", config))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert json.dumps(await second)
        kill(trial._processes[False])
        again = await asked(trial, "examples", config)
        assert again["examples"]
    finally:
        trial.close()


@pytest.mark.slow
async def test_nothing_is_left_in_the_temporary_folder(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    trial = TrialProcess()
    score = await asked(trial, "score", settings(world), example=0, completion="abc")
    assert score["rows"]
    assert await asked(trial, "memory", settings(world))
    folders = list(tmp_path.glob("*/*.scratch"))
    assert folders
    trial.close()
    until(lambda: not any(folder.exists() for folder in folders if "engine" not in folder.name))


@pytest.mark.slow
async def test_a_call_that_takes_too_long_is_ended_once_nobody_waits_for_it(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_tui.app.trial.client.CANCELLED_S", 0.1)
    (tmp_path / "own.py").write_text(
        "import time\n\ndef slow(completions, **_):\n"
        "    time.sleep(1000 * (completions[0] == 'hang'))\n    return [1.0]\n"
    )
    config = settings(
        world, rewards={"functions": [f"{tmp_path / 'own.py'}:slow"], "time_limit": 600}
    )
    trial = TrialProcess()
    try:
        first = asyncio.ensure_future(asked(trial, "score", config, example=0, completion="hang"))
        await asyncio.sleep(2.0)
        first.cancel()
        score = await asked(trial, "score", config, example=0, completion="x")
        assert score["rows"]
        with pytest.raises(asyncio.CancelledError):
            await first
    finally:
        trial.close()


@pytest.mark.slow
async def test_a_run_may_get_its_rewards_from_its_environment_alone_or_look_at_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.py").write_text("def length(environments, **_):\n    return [1.0]")

    async def problems(task: str, *functions: str) -> list[str]:
        config = build(
            {
                "model": {"path": "starter"},
                "task": {"name": task},
                "rewards": {"functions": list(functions)},
            }
        )
        return [words for _, words in (await trial.request("ready", config))["problems"]]

    trial = TrialProcess()
    try:
        assert await problems("guess") == []
        own = f"{tmp_path / 'own.py'}:length"
        assert await problems("guess", own) == []
        assert "environments" in (await problems("arithmetic", own))[0]
    finally:
        trial.close()
