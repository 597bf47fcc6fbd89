"""Which runs Compare and Runs begin with, and how others are chosen: sweeps, filters, keys."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.dialogs.picker import Picker
from grpo_tui.app.tui.messages import CompareRequested, RunOpened
from grpo_tui.app.tui.screens.compare.screen import CompareScreen
from grpo_tui.app.tui.screens.compare.state import load_runs
from grpo_tui.experiments.reader import StoreReader
from tests.app import frames
from tests.app.compared import opened, refs_of, settled, sweep_of_rates, workbench
from tests.app.walk import Walk, walk

RATES = {f"rates-{number}" for number in range(1, 7)}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs rates-1 to -6 of one sweep, other-1 and -2 of another of its name, lone-wolf of none."""
    return sweep_of_rates(tmp_path_factory.mktemp("sweep"))


async def watch(on: Walk, name: str) -> None:
    on.app.post_message(RunOpened(name))
    await on.until(lambda: "▌3 Watch▐" in on.text)
    await on.pilot.pause()


async def on_compare(on: Walk, *keys: str) -> Any:
    await on.press("5", *keys)
    screen = on.screen
    await on.until(lambda: screen.view.charts.charts)
    return screen


def names(screen: CompareScreen) -> list[str]:
    return [run.name for run in screen.view.runs]


def picker(app: Workbench) -> Picker:
    assert isinstance(app.screen, Picker)
    return app.screen


def listed(app: Workbench) -> list[str]:
    return [item.columns[0] for item in picker(app).items]


# -- the open run -------------------------------------------------------------------------------


@pytest.mark.slow
async def test_help_on_compare_has_the_values_of_the_compared_runs_alone(store: Path) -> None:
    async with walk(workbench(store)) as on:
        await watch(on, "lone-wolf")
        rates = refs_of(store)[2:4]
        await on.go(CompareRequested(rates))
        screen = on.screen
        await on.until(lambda: len(screen.view.runs) == 2)
        await on.press("question_mark")
        await on.see("in the compared runs", "rates-1", "rates-2", "at step 6")
        text = on.text.partition("in the compared runs")[2]
        assert "lone-wolf" not in text
        assert "health of" not in on.text


@pytest.mark.slow
async def test_while_runs_are_read_nothing_of_the_former_ones_is_shown(store: Path) -> None:
    async with walk(workbench(store)) as on:
        *others, _ = refs_of(store)
        with StoreReader(store) as reader:
            requested = load_runs(reader, others[:2])
        screen = await opened(on, tuple(others[2:]))
        assert "is better than" in on.text
        screen.view = replace(screen.view.with_refs(others[:2]), requested=requested)
        await on.see("Reading the runs", "● other-1", "■ other-2")
        assert "rates" not in on.text
        assert "better" not in on.text


async def test_compare_begins_with_the_open_run(store: Path) -> None:
    async with walk(workbench(store), (80, 24)) as on:
        await watch(on, "rates-2")
        screen = await on_compare(on)
        assert names(screen) == ["rates-2"]
        assert "Only rates-2 is compared." in on.lines[1]
        frames.check(on.app)
        await on.press("plus")
        item = picker(on.app).item
        assert item is not None
        assert item.value not in picker(on.app).marks  # the next one to add
        assert picker(on.app).marks == tuple(run.id for run in screen.view.runs)
        row = next(line for line in on.lines[1:] if "✓ rates-2" in line)
        assert re.search(r"best reward \S+ · seed 1", row)
        frames.check(on.app)


@pytest.mark.slow
async def test_a_run_that_is_still_opening_is_compared_once_it_is_there(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: list[str] = []
    monkeypatch.setattr(CompareScreen, "run_on_watch", property(lambda _: run[0] if run else None))
    async with walk(workbench(store)) as on:
        await on.press("5")
        screen = on.screen
        await on.until(lambda: "No runs to compare yet" in on.text)
        with StoreReader(store) as reader:
            run.append(reader.resolve("lone-wolf").id)
        await on.until(lambda: names(screen) == ["lone-wolf"])


@pytest.mark.slow
async def test_a_compared_run_that_is_opened_leaves_a_comparison_as_it_is(store: Path) -> None:
    async with walk(workbench(store)) as on:
        screen = await opened(on, refs_of(store)[:2])
        await watch(on, "other-2")
        assert await on_compare(on) is screen
        assert names(screen) == ["other-1", "other-2"]
        await watch(on, "lone-wolf")  # what is on Watch is on Compare, too
        await on_compare(on)
        await on.until(lambda: names(screen) == ["lone-wolf"])


@pytest.mark.slow
async def test_a_run_that_was_removed_does_not_come_back(store: Path) -> None:
    async with walk(workbench(store)) as on:
        await watch(on, "rates-2")
        await on_compare(on)
        await on.press("x")
        assert "No runs to compare yet" in on.text


@pytest.mark.slow
async def test_the_cursor_of_runs_is_on_the_run_that_was_opened(store: Path) -> None:
    async with walk(workbench(store)) as on:
        await watch(on, "rates-2")
        await on.press("1")
        screen = on.screen
        await on.until(lambda: getattr(screen.view.selected, "name", "") == "rates-2")
        # the cursor stays where it is moved to, until another run is opened
        await on.press("home", "3", "1")
        assert screen.view.selected.name == "lone-wolf"
        await watch(on, "other-1")
        await on.press("1")
        await on.until(lambda: getattr(screen.view.selected, "name", "") == "other-1")


@pytest.mark.slow
async def test_runs_that_were_marked_are_compared_however_one_goes_there(store: Path) -> None:
    async with walk(workbench(store)) as on:
        await watch(on, "rates-2")
        await on.press("1")
        runs = on.screen
        await on.until(lambda: getattr(runs.view.selected, "name", "") == "rates-2")
        await on.press("home", *("space", "down") * 3)
        screen = await on_compare(on)
        assert names(screen) == ["rates-5", "rates-6", "lone-wolf"]  # the oldest first
        assert screen.view.baseline == screen.view.refs[0]
        # what is chosen on Compare stays until other runs are marked
        await on.press("x", "1")
        assert names(await on_compare(on)) == ["rates-6", "lone-wolf"]
        await on.press("1", "space", "3")
        await on_compare(on)
        await on.until(lambda: names(screen) == ["rates-4", "rates-5", "rates-6", "lone-wolf"])
        # runs that are asked for count more than marks, and one mark alone is no comparison
        await on.press("1", "escape", "home", "space", "down", "space")
        await opened(on, refs_of(store)[:2])
        await on.press("1", "escape", "home", "space")
        assert names(await on_compare(on)) == ["other-1", "other-2"]


# -- a whole sweep ------------------------------------------------------------------------------


@pytest.mark.parametrize(("keys", "size"), [(("5", "G"), (80, 24)), (("1", "G", "d"), (200, 60))])
async def test_a_sweep_is_compared_with_few_keys_and_the_verdict_is_first(
    store: Path, keys: tuple[str, ...], size: tuple[int, int]
) -> None:
    async with walk(workbench(store), size) as on:
        await watch(on, "rates-2")
        for key in keys:
            await on.press(key)
        await on.until(lambda: "▌5 Compare▐" in on.text)
        screen = on.screen
        await on.until(lambda: set(names(screen)) == RATES)
        await settled(on, screen)
        said = " ".join(line.strip() for line in on.lines[1:4])
        assert "▸ learning_rate 0.0001 (3 seeds) is better than learning_rate 1e−05 (3 s" in said
        assert "p < .001" in said
        assert screen.view.bands
        assert screen.view.page == "ranking"
        frames.check(on.app)


@pytest.mark.slow
async def test_a_sweep_is_marked_on_runs_and_unmarked(store: Path) -> None:
    async with walk(workbench(store)) as on:
        await watch(on, "rates-2")
        await on.press("1", "G")
        screen = on.screen
        assert {run.name for run in screen.view.selection} == RATES
        await on.press("G")
        assert not screen.view.marked
        # marks of an earlier comparison leave, and space adds to the sweep
        await on.press("home", "space", "end", "G")
        assert {run.name for run in screen.view.selection} == {"other-1", "other-2"}
        await on.press("home", "space")
        assert {run.name for run in screen.view.selection} == {"lone-wolf", "other-1", "other-2"}
        await on.press("home", "G")
        assert len(screen.view.marked) == 3
        assert "lone-wolf is part of no sweep" in on.told


@pytest.mark.slow
async def test_the_newest_sweep_is_compared_where_a_run_has_none(store: Path) -> None:
    async with walk(workbench(store)) as on:
        await watch(on, "lone-wolf")
        screen = await on_compare(on)
        assert "Only lone-wolf is compared." in on.text
        await on.until(lambda: "G sweep" in on.lines[-1])
        await on.press("G")
        await on.until(lambda: set(names(screen)) == RATES)


# -- the list to pick from ----------------------------------------------------------------------


@pytest.mark.slow
async def test_all_runs_of_the_list_are_marked_and_unmarked_with_one_key(store: Path) -> None:
    async with walk(workbench(store)) as on:
        await watch(on, "rates-2")
        screen = await on_compare(on)
        await on.press("plus", *"/seed:1", "down")
        await on.until(lambda: len(listed(on.app)) in range(2, 9))
        found = set(listed(on.app))
        await on.press("ctrl+a")
        assert picker(on.app).marks[0] == screen.view.refs[0]  # what was marked stays first
        await on.press("ctrl+a")
        assert len(picker(on.app).marks) == int("rates-2" not in found)
        await on.press("ctrl+a", "enter")
        await on.until(lambda: set(names(screen)) == found | {"rates-2"})


@pytest.mark.slow
async def test_without_a_mark_the_run_under_the_cursor_is_taken(store: Path) -> None:
    async with walk(workbench(store)) as on:
        await watch(on, "rates-2")
        screen = await on_compare(on)
        await on.press("plus", "ctrl+a", "ctrl+a", "home")
        assert not picker(on.app).marks
        await on.press("enter")
        await on.until(lambda: names(screen) == ["lone-wolf"])


@pytest.mark.slow
async def test_arrows_lead_from_the_filter_to_the_list_where_space_marks(store: Path) -> None:
    async with walk(workbench(store)) as on:
        await opened(on, refs_of(store)[:1])
        await on.press("plus", *"seed:1")
        await on.until(lambda: len(listed(on.app)) in range(2, 9))
        first, second = picker(on.app).items[:2]
        await on.press("down", "space")
        assert picker(on.app).marks[-1] == second.value
        await on.press("up", "space")
        assert picker(on.app).item == first
        assert first.value in picker(on.app).marks
        await on.press("0")
        assert on.screen.query_one(Input).value == "seed:10"
