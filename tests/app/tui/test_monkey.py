"""Random keys, clicks, sizes and themes during a run: no exception, no leak, an intact store."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from grpo_engine.config.settings import RunConfig
from grpo_tui.app.tui.screens.new_run.screen import NewRunScreen
from tests.app.monkey import Monkey, kept_at_home, play
from tests.app.stored import record
from tests.engine.runs import settings


async def romp(
    world: Path,
    folder: Path,
    patch: pytest.MonkeyPatch,
    inputs: int,
    seed: int,
    most: int = 0,
) -> Monkey:
    """Send random input to a workbench on a store with a few runs, then check the store."""
    store = folder / "grpo.db"
    for name in ("calm-otter", "swift-heron"):
        record(store, name=name)
    monkey = Monkey(int(os.environ.get("MONKEY_SEED", "0")) or seed)
    print(f"MONKEY_SEED={monkey.seed}")

    def config(number: int) -> RunConfig:
        return settings(world, name=f"busy-{number}", steps=10_000)

    try:
        with kept_at_home(folder, patch):
            await play(monkey, store, config, inputs, 25, most)
    except BaseException:
        print(f"last inputs: {monkey.inputs[-40:]}")
        raise
    with closing(sqlite3.connect(store)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    return monkey


@pytest.mark.slow
async def test_a_short_romp_breaks_nothing(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkey = await romp(world, tmp_path, monkeypatch, 60, 2)
    assert len({screen for screen, _ in monkey.done}) >= 4


@pytest.mark.soak
@pytest.mark.timeout(7200)  # half an hour on an idle machine
async def test_ten_thousand_deeds_fire_every_action_often(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = int.from_bytes(os.urandom(3))
    monkeypatch.setattr(NewRunScreen, "REHEARSE_S", 0.5)
    monkey = await romp(world, tmp_path, monkeypatch, 10_000, seed, most=20_000)
    fired = {name: monkey.done[name] for name in monkey.bound}
    print(
        f"{len(monkey.inputs)} inputs, {sum(fired.values())} of them by {len(fired)} bound actions"
    )
    assert monkey.seldom == {}
