"""Screens on stores that were edited by hand: nothing ends them, and damaged runs are named."""

from pathlib import Path

import pytest

from grpo_engine import events as ev
from grpo_engine.config.parse import build
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.preferences import Preferences
from grpo_tui.experiments.record.recorder import start_run
from tests.app.script import CONFIG
from tests.app.stored import run_events
from tests.app.tui.screens.test_hostile import KEYS, OBEYED
from tests.app.walk import walk
from tests.experiments.damage import DAMAGED, EDITED, damage, edited
from tests.experiments.made import alerted

EDITS = {
    "texts": EDITED["texts"],
    "bytes": EDITED["bytes"],
    "numbers": tuple(
        edit for name in EDITED if name.startswith("numbers") for edit in EDITED[name]
    ),
    "infinite numbers": EDITED["infinite numbers"],
    "the largest numbers": EDITED["the largest numbers"],
    "damaged": tuple(map(damage, DAMAGED)),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stored") / "grpo.db"
    for seed in (0, 1):
        handle = start_run(path, build({**CONFIG, "seed": seed}), name=f"run{seed}")
        for event in run_events(steps=2, seed=seed):
            if isinstance(event, ev.StepFinished):
                handle.put(alerted(event.step))
            handle.put(event)
        handle.close()
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("texts", marks=pytest.mark.slow),
        "bytes",
        pytest.param("numbers", marks=pytest.mark.slow),
        "damaged",
        pytest.param("infinite numbers", marks=pytest.mark.slow),
        pytest.param("the largest numbers", marks=pytest.mark.slow),
    ],
)
async def test_a_store_edited_by_hand_ends_no_screen(
    store: Path, tmp_path: Path, name: str
) -> None:
    async with walk(
        Workbench(edited(store, tmp_path, *EDITS[name]), preferences=Preferences()),
        notifications=True,
    ) as on:
        screen = on.screen
        screen.action_switch("archived")  # whether a run is archived cannot be read either
        await on.until(lambda: len(screen.view.runs) == 2 and screen.view.preview is not None)
        if name not in ("texts", "infinite numbers"):  # which can be read
            await on.until(lambda: "is damaged: " in on.text)
        for key in KEYS:
            await on.press(key)
            assert not any(sign in on.text for sign in OBEYED)
            assert not screen.view.problem
