"""The screens of a run of recipe sft, whose answers no reward scores."""

from pathlib import Path

import pytest

from grpo_engine.config.parse import build
from grpo_engine.control import Control
from grpo_engine.trainer import run
from grpo_tui.app.tui.messages import RolloutOpened
from grpo_tui.experiments.record.recorder import start_run
from tests.app import frames
from tests.app.rest import until
from tests.app.stored import workbench


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sft")
    config = build(
        {
            "steps": 3,
            "algorithm": {"recipe": "sft"},
            "rollout": {"prompts": 4},
            "evaluation": {"problems": 8, "pinned": 1},
        }
    )
    handle = start_run(folder / "runs.db", config, name="tutor")
    for event in run(config, Control(), folder=folder / "run"):
        handle.put(event)
    handle.close()
    return folder / "runs.db"


@pytest.mark.parametrize("size", frames.SIZES)
async def test_watch_shows_the_datas_answers_and_the_loss(
    store: Path, size: tuple[int, int]
) -> None:
    app = workbench(store)
    async with app.run_test(size=size):
        app.frame_now()
        await until(app, lambda: "answers to prompt 1" in frames.text(app))
        shown = frames.text(app)
        frames.check(app)
    for word in ("loss", "<think>", "▲+1"):
        assert word in shown
    assert "no push" not in shown


async def test_rollouts_says_why_there_is_no_reward(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(160, 48)):
        app.frame_now()
        await app.forward(RolloutOpened(1, 3, "train", 1, 0))
        await until(app, lambda: "pushed up, more" in frames.text(app))
        shown = " ".join(frames.text(app).split())
        frames.check(app)
    assert "group: the data's own" in shown
    assert "better answer" not in shown
