"""The appearance of Compare: frames, hostile text, exports, keys and mouse."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from app.text.numbers import with_unit
from app.text.safe_text import safe
from app.tui.app import Workbench
from app.tui.screens.compare.curves import CurvesPanel
from app.tui.screens.compare.panels import PagePanel, RunsPanel
from app.tui.screens.compare.texts import as_csv, as_json, as_markdown, curves_csv
from app.tui.screens.compare.view import MARKS
from experiments.reader import StoreReader
from grpo_engine import events as ev
from grpo_engine.metrics import spec
from tests.app import frames
from tests.app.compared import (
    cli,
    grid_of_runs,
    opened,
    refs_of,
    settled,
    two_runs,
    workbench,
)
from tests.app.frames import LOOKS, SIZES
from tests.app.rest import until
from tests.app.script import HOSTILE, hostile_group, started
from tests.app.stored import record, with_ends


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_runs(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grid_of_runs(tmp_path_factory.mktemp("sweep"))


@pytest.mark.parametrize(("size", "theme"), LOOKS)
async def test_frames_are_whole_on_every_page_size_and_theme(
    size: tuple[int, int], theme: str, store: Path
) -> None:
    app = workbench(store, theme)
    async with app.run_test(size=size) as pilot:
        screen = await opened(app, pilot)
        frames.check(app)
        assert "calm-otter" in frames.text(app)
        for _ in range(6):
            await pilot.press("v")
            await settled(pilot, screen)
            frames.check(app)
        await pilot.press("z")
        await settled(pilot, screen)
        frames.check(app)


async def test_hostile_names_and_answers_are_harmless(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    group = with_ends(hostile_group(1).group)
    for seed, name in enumerate((HOSTILE[0], "=cmd()|[bold]\u202e")):
        events: list[ev.Event] = [started(), ev.GroupScored(step=1, group=group)]
        events.append(ev.StepFinished(step=1, metrics={"reward": 0.5}, tokens=1, elapsed=1.0))
        record(path, iter(events), name=name, seed=seed)
    for size in SIZES:
        app = workbench(path)
        async with app.run_test(size=size) as pilot:
            screen = await opened(app, pilot)
            await pilot.press("n")
            await settled(pilot, screen)
            for _ in range(3):
                frames.check(app)
                await pilot.press(*["down"] * 4)
            assert safe("\x1b[31m") in frames.text(app)
            assert "\x00" not in as_csv(screen.view)
            assert "\x1b" not in as_json(screen.view) + as_markdown(screen.view)
            assert "\u202e" not in as_markdown(screen.view)
            assert "'=cmd()" in as_csv(screen.view)


async def test_exports_are_what_the_command_gives(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refs = refs_of(store)
    args = (*refs, "--baseline", refs[0], "--at", "step=6", "--db", str(store))
    monkeypatch.chdir(tmp_path)
    told = json.loads(cli(capsys, *args, "--json"))
    printed = cli(capsys, *args, "--csv")
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        assert screen.view.comparison
        assert screen.view.comparison.tests[0].step == 6  # the last ones, since not both have one
        await pilot.press("at", "enter")  # the same step, but asked for
        await until(app, lambda: screen.view.comparison and not screen.view.comparison.tests)
        own = json.loads(as_json(screen.view))
        assert {key: own[key] for key in told} == told
        assert own["shown"]["crosshair"] == 6
        assert list(csv.reader(io.StringIO(printed, newline=""))) == list(
            csv.reader(io.StringIO(as_csv(screen.view), newline=""))
        )
        await pilot.press("e", "c")
        await pilot.pause()
        written = next(tmp_path.glob("*.csv")).read_bytes().decode()
        assert written == as_csv(screen.view)
        assert "# calm-otter · brave-fox" in as_markdown(screen.view)
        curves = list(csv.DictReader(io.StringIO(curves_csv(screen.view), newline="")))
        reader = StoreReader(store)
        series = reader.metric_series(2, "reward")
        reader.close()
        assert (
            tuple(
                float(row["value"])
                for row in curves
                if row["metric"] == "reward" and row["run"] == refs[1]
            )
            == series.values
        )


async def test_the_mouse_does_what_keys_do(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        await pilot.click(RunsPanel, offset=(6, 3))
        await pilot.pause()
        assert screen.view.chosen is not None
        assert screen.view.chosen.name == "brave-fox"
        await pilot.click(CurvesPanel, offset=(68, 5))
        await settled(pilot, screen)
        assert screen.view.chart == 1
        assert screen.view.x == 0
        await pilot.click(PagePanel, offset=(33, 1))
        await settled(pilot, screen)
        assert screen.view.page == "seeds"


async def test_copy_gives_the_focused_panel(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    monkeypatch.setattr(Workbench, "copy", lambda _, text: copied.append(text))
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        await pilot.press("y")
        screen.query_one(PagePanel).focus()
        await pilot.press("y")
        assert "calm-otter\t" in copied[0]
        assert "algorithm" not in copied[1]
        assert "reward" in copied[1]


async def test_searching_keeps_matching_settings_and_metrics(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        await pilot.press("slash", *"clip")
        await pilot.pause()
        assert {row.key.split("/")[0] for row in screen.view.rows} == {
            "clip_ratio", "completions"
        }  # fmt: skip
        await pilot.press("escape")
        assert "reward" in {row.key for row in screen.view.rows}


async def test_the_keys_that_choose_the_runs_are_on_the_key_line_of_a_small_terminal(
    store: Path,
) -> None:
    app = workbench(store)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(app, pilot)
        assert "v view  + runs  * sweep  b baseline" in frames.frame(app)[-1]


async def test_numbers_say_what_they_are_where_they_stand(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)

        def heads() -> str:
            return next(line for line in frames.frame(app) if " Δ " in line)

        assert re.search(r" raw reward +step 6 +best +Δ best ", heads())
        for said in ("best where ↑ or ↓, else last", "last", "at step 6"):
            assert f"raw values, {said} (t) · Δ to calm-otter" in frames.text(app)
            await pilot.press("t")
        assert "smooth .9, numbers raw" in frames.text(app)
        # without a better direction the last value is compared
        screen.view = replace(screen.view, chart=screen.view.metrics.index("kl"))
        await until(app, lambda: re.search(r" raw KL .*step 6 +last +Δ last ", heads()))
        # evaluations are never smoothed
        found = screen.view.metrics.index("eval/greedy/accuracy")
        screen.view = replace(screen.view, chart=found)
        await until(app, lambda: "raw" not in heads() and "held-out" in heads())


def test_no_mark_of_a_run_is_the_baseline_or_a_verdict() -> None:
    assert not set("◆▲▼") & set(MARKS)
    assert len(set(MARKS)) == len(MARKS)


async def test_no_key_is_bound_twice(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        keys: dict[str, list[str]] = {}
        for _, bindings in [(type(screen), screen._bindings)]:
            for key, found in bindings.key_to_bindings.items():
                keys.setdefault(key, []).extend(one.action for one in found)
        assert {key: found for key, found in keys.items() if len(set(found)) > 1} == {}


async def test_every_metric_in_the_table_has_a_readable_number(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(200, 60)) as pilot:
        screen = await opened(app, pilot)
        text = frames.text(app)
        for row in screen.view.rows[:8]:
            for cell in row.cells:
                assert with_unit(cell.best, spec(row.key).unit) in text
