"""Stores with runs to compare, and helpers for the Compare screen."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import pytest

from grpo_engine import events as ev
from grpo_tui.app.cli.main import main
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.messages import CompareRequested
from grpo_tui.app.tui.preferences import Preferences
from grpo_tui.app.tui.screens.compare.screen import CompareScreen
from grpo_tui.experiments.queue import RunQueue
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.store import ExperimentStore
from tests.app.script import algorithm, evaluation, started
from tests.app.stored import record, run_events

if TYPE_CHECKING:
    from tests.app.walk import Walk


def made_once(make: Callable[..., Path]) -> Callable[..., Path]:
    """Make a store once in a process for the same arguments, and copy it from then on."""

    @cache
    def made(**changes: Any) -> tuple[TemporaryDirectory[str], Path]:
        folder = TemporaryDirectory()  # is removed with the cache
        return folder, make(Path(folder.name), **changes)

    def copied(folder: Path, **changes: Any) -> Path:
        _, path = made(**changes)
        shutil.copytree(path.parent, folder, dirs_exist_ok=True)
        return folder / path.name

    return copied


def two_runs(folder: Path) -> Path:
    """Two runs that differ in beta, seed and length."""
    path = folder / "runs.db"
    record(path, run_events(steps=8, seed=1), name="calm-otter", seed=0)
    record(
        path, run_events(steps=6, seed=2), name="brave-fox", seed=1, algorithm=algorithm(beta=0.1)
    )
    return path


@made_once
def sweep_of_settings(
    folder: Path, betas: tuple[float, ...] = (0.04, 0.0, 0.1, 0.4), seeds: int = 3, steps: int = 6
) -> Path:
    """Runs of several betas and seeds, with greedy and sampled evaluations that favour the last."""
    path = folder / "runs.db"
    random = Random(0)
    for place, beta in enumerate(betas):
        for seed in range(seeds):
            end = 0.3 + 0.12 * place + random.gauss(0, 0.03)
            events = improving(random, end, steps, seed=1 + place * seeds + seed)
            record(
                path, events, name=f"b{beta:g}-s{seed}", seed=seed, algorithm=algorithm(beta=beta)
            )
    return path


@made_once
def sweep_of_rates(folder: Path) -> Path:
    """A sweep of two learning rates and three seeds, another sweep of its name, and a lone run."""
    path = folder / "runs.db"
    random = Random(0)
    with ExperimentStore(path) as made_in:
        for name, rates, seeds in (("other", (1e-6,), 2), ("rates", (1e-5, 1e-4), 3)):
            points: list[tuple[dict[str, Any], int]] = [
                ({"optimizer": {"learning_rate": rate}, "seed": seed}, place)
                for place, rate in enumerate(rates)
                for seed in range(seeds)
            ]
            sweep, _ = RunQueue(made_in).sweep("rates", {"seed": [name]}, [])
            for number, (changes, place) in enumerate(points, 1):
                events = improving(random, 0.35 + 0.3 * place, 6, seed=number)
                record(path, events, sweep=sweep, name=f"{name}-{number}", **changes)
    record(path, run_events(steps=3), name="lone-wolf")
    return path


@made_once
def sweep_of_two_settings(folder: Path) -> Path:
    """A sweep of two learning rates by two betas, two seeds each; only the rate matters."""
    path = folder / "runs.db"
    random = Random(0)
    with ExperimentStore(path) as store:
        sweep, _ = RunQueue(store).sweep("square", {"seed": ["square"]}, [])
        for rate, beta, seed in product((1e-5, 1e-4), (0.04, 0.4), (0, 1)):
            events = improving(random, 0.65 if rate == 1e-4 else 0.35, 6, seed=seed)
            changes: dict[str, Any] = {
                "optimizer": {"learning_rate": rate},
                "algorithm": algorithm(beta=beta),
            }
            record(
                path, events, sweep=sweep, name=f"r{rate:g}-b{beta:g}-{seed}", seed=seed, **changes
            )
    return path


def evaluated_runs(folder: Path, *runs: tuple[str, int, int, int]) -> Path:
    """Runs of (name, steps, tokens a step, steps between evaluations), better with each step."""
    path = folder / "runs.db"
    for beta, (name, *pace) in enumerate(runs):
        record(path, evaluated_events(*pace), name=name, algorithm=algorithm(beta=beta))
    return path


def evaluated_events(steps: int, tokens: int, every: int) -> Iterator[ev.Event]:
    yield started()
    yield evaluation(0, 0.25, "before")
    for step in range(1, steps + 1):
        share = 0.25 + step / 64
        yield ev.StepFinished(
            step=step, metrics={"reward": share}, tokens=tokens * step, elapsed=2.0 * step
        )
        if step % every == 0:
            yield evaluation(step, share, "during")


def improving(random: Random, end: float, steps: int, seed: int) -> Iterator[ev.Event]:
    """A scripted run with both kinds of evaluation, the last of which has this share right."""
    for event in run_events(steps=steps, seed=seed, prompts=2):
        if isinstance(event, ev.EvaluationFinished):
            yield from evaluations(event, random, end, steps)
        else:
            yield event


def evaluations(
    event: ev.EvaluationFinished, random: Random, end: float, steps: int
) -> Iterator[ev.EvaluationFinished]:
    """Both kinds of evaluation of 60 problems; the share of right answers grows to `end`."""
    share = 0.1 + (end - 0.1) * event.step / steps
    modes: tuple[tuple[Literal["greedy", "sampled"], int], ...] = (("greedy", 1), ("sampled", 4))
    for mode, samples in modes:
        right = [
            sum(random.random() < min(1.0, share * (0.4 + 1.2 * at / 59)) for _ in range(samples))
            for at in range(60)
        ]
        rows = tuple(
            ev.EvaluationSample(
                example_key=f"held-{at}",
                correct=count,
                samples=samples,
                rewards={"accuracy": count / samples},
            )
            for at, count in enumerate(right)
        )
        yield replace(
            event,
            mode=mode,
            problems=60,
            samples=samples,
            rows=rows,
            metrics={"eval/accuracy": sum(right) / (60 * samples)},
        )


def workbench(store: Path, theme: str = "dark", *, read_only: bool = False) -> Workbench:
    preferences = Preferences()
    preferences.remember(theme=theme)
    return Workbench(store, preferences=preferences, read_only=read_only)


def refs_of(store: Path) -> tuple[str, ...]:
    reader = StoreReader(store)
    runs = reader.runs(sort="created")
    reader.close()
    return tuple(run.id for run in runs)


async def opened(on: "Walk", refs: tuple[str, ...] = ()) -> Any:
    """Open the screen with these runs, or with all runs of the store."""
    await on.app.forward(CompareRequested(refs or refs_of(on.app.store)))
    screen = on.screen
    await settled(on, screen)
    return screen


def choose(screen: CompareScreen, metric: str) -> None:
    """Put the cursor on a metric's chart."""
    screen.view = replace(screen.view, chart=screen.view.metrics.index(metric))


async def settled(on: "Walk", screen: CompareScreen) -> None:
    """Wait until everything the screen requested from the store is loaded and drawn."""
    await on.pilot.pause()
    assert not screen.view.refs or screen.view.charts.charts


def cli(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    capsys.readouterr()
    assert main(["compare", *args]) == 0
    return capsys.readouterr().out
