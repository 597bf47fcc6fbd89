"""Stores with runs to compare, and helpers for the Compare screen."""

from pathlib import Path

import pytest
from textual.pilot import Pilot

from app.cli.main import main
from app.tui.app import Workbench
from app.tui.messages import CompareRequested
from app.tui.preferences import Preferences
from app.tui.screens.compare import CompareScreen
from experiments.reader import StoreReader
from tests.app.script import algorithm
from tests.app.stored import record, run_events


def two_runs(folder: Path) -> Path:
    """Two runs that differ in beta, seed and length."""
    path = folder / "runs.db"
    record(path, run_events(steps=8, seed=1), name="calm-otter", seed=0)
    record(path, run_events(steps=6, seed=2), name="brave-fox", seed=1,
           algorithm=algorithm(beta=0.1))  # fmt: skip
    return path


def grid_of_runs(folder: Path) -> Path:
    """Two betas, two learning rates, two seeds."""
    path = folder / "runs.db"
    place = 0
    for beta in (0.0, 0.1):
        for rate in (1e-5, 1e-4):
            for seed in (0, 1):
                place += 1
                record(path, run_events(steps=3, seed=place, prompts=2), name=f"sweep-{place}",
                       seed=seed, algorithm=algorithm(beta=beta),
                       optimizer={"learning_rate": rate})  # fmt: skip
    return path


def workbench(store: Path, theme: str = "dark") -> Workbench:
    preferences = Preferences()
    preferences.remember(theme=theme)
    return Workbench(store, preferences=preferences)


def refs_of(store: Path) -> tuple[str, ...]:
    reader = StoreReader(store)
    runs = reader.runs(sort="created")
    reader.close()
    return tuple(run.id for run in runs)


async def opened(app: Workbench, pilot: Pilot[int], refs: tuple[str, ...] = ()) -> CompareScreen:
    """Open the screen with these runs, or with all runs of the store."""
    await app.forward("compare", CompareRequested(refs or refs_of(app.store)))
    screen = app.screen
    assert isinstance(screen, CompareScreen)
    await settled(pilot, screen)
    return screen


async def settled(pilot: Pilot[int], screen: CompareScreen) -> None:
    """Wait until everything the screen requested from the store is loaded and drawn."""
    await pilot.pause()
    assert screen.view.loaded
    assert not screen.view.refs or screen.view.charts is not None


def cli(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    capsys.readouterr()
    assert main(["compare", *args]) == 0
    return capsys.readouterr().out
