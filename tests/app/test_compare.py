"""Compare on real stores: what the screen says is what the store and `grpo-tui compare` say."""

import csv
import io
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from app.app import Workbench
from app.main import main
from app.messages import CompareRequested
from app.numbers import short, with_unit
from app.palette import PALETTES
from app.preferences import Preferences
from app.safe_text import safe
from app.screens.compare import CompareScreen
from app.screens.compare.curves import CurvesPanel
from app.screens.compare.panels import PagePanel, RunsPanel
from app.screens.compare.pick import Picker, PickList
from app.screens.compare.texts import as_csv, as_json, as_markdown, curves_csv
from app.screens.compare.verdict import verdict
from app.screens.compare.view import View
from app.screens.rollouts import RolloutsScreen
from app.screens.runs import RunsScreen
from experiments.reader import StoreReader
from experiments.recorder import Recorder
from grpo_engine import events as ev
from grpo_engine.metrics import spec
from grpo_engine.settings import build
from tests.app import frames
from tests.app.script import CONFIG, HOSTILE, evaluation, hostile_group, started
from tests.app.stored import record, run_events, with_ends

SIZES = [(80, 24), (120, 40), (200, 60)]


def algorithm(**changes: object) -> dict[str, object]:
    return {**CONFIG["algorithm"], **changes}  # type: ignore[dict-item]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that differ in beta, seed and length."""
    path = tmp_path_factory.mktemp("store") / "runs.db"
    record(path, run_events(steps=8, seed=1), name="calm-otter", seed=0)
    record(path, run_events(steps=6, seed=2), name="brave-fox", seed=1,
           algorithm=algorithm(beta=0.1))  # fmt: skip
    return path


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two betas, two learning rates, two seeds."""
    path = tmp_path_factory.mktemp("sweep") / "runs.db"
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
    """Bring the screen to the front with these runs, all of the store without any."""
    await app.hand_over("compare", CompareRequested(refs or refs_of(app.store)))
    screen = app.screen
    assert isinstance(screen, CompareScreen)
    await settled(pilot, screen)
    return screen


async def settled(pilot: Pilot[int], screen: CompareScreen) -> None:
    """Wait until everything the screen asked of the store is there and drawn."""
    await pilot.pause()
    for _ in range(600):
        await pilot.pause(0.01)
        busy = [w for w in screen.workers if not w.is_finished and w.group != "poll"]
        ready = not screen.view.refs or screen.view.charts is not None
        if not busy and ready and screen.view.loaded:
            break
    await pilot.pause()


def cli(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    capsys.readouterr()
    assert main(["compare", *args]) == 0
    return capsys.readouterr().out


# -- what differs, and the numbers --------------------------------------------------------------


async def test_exactly_the_settings_that_differ_are_shown(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = json.loads(cli(capsys, *refs_of(store), "--json", "--db", str(store)))
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        text = frames.text(app)
        shown = [path for path, _, _ in screen.view.settings()]
        assert shown == ["algorithm.beta", "seed"]
        assert "2 differ" in text
        assert "Differ in algorithm.beta (0.04, 0.1), seed (0, 1)." in text
        assert list(whole["settings"]) == shown
        await pilot.press("s")
        await pilot.pause()
        assert "task.name" in [path for path, _, _ in screen.view.settings()]
        assert "all settings" in frames.text(app)


async def test_numbers_on_screen_equal_the_store_and_the_command(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refs = refs_of(store)
    whole = json.loads(cli(capsys, *refs, "--baseline", refs[0], "--at", "step", "--json",
                           "--db", str(store)))  # fmt: skip
    app = workbench(store)
    reader = StoreReader(store)
    async with app.run_test(size=(200, 60)) as pilot:
        screen = await opened(app, pilot)
        text = frames.text(app)
        assert "step 6" in text
        for key in screen.view.known_metrics():
            cells = whole["metrics"][key]["runs"]
            for ref, run in zip(refs, (1, 2), strict=True):
                own = screen.view.cell(key, ref)
                assert own is not None
                assert own.best == cells[ref]["best"]
                assert own.at == cells[ref]["at"] == reader.value_at(run, key, 6)[0]
                assert own.delta_best == cells[ref]["delta_best"]
        for ref, name in zip(refs, ("calm-otter", "brave-fox"), strict=True):
            cell = whole["metrics"]["reward"]["runs"][ref]
            row = next(line for line in frames.frame(app) if name in line and "@" in line)
            assert f"{short(cell['best'])} @{cell['best_step']}" in row
            assert f" {short(cell['at'])} " in row
        kl = whole["metrics"]["kl"]["runs"][refs[1]]
        assert re.search(rf"kl +\S+ @8 .*{re.escape(short(kl['last']))} @6", text)
    reader.close()


async def test_the_crosshair_reads_every_run_at_the_same_place(store: Path) -> None:
    app = workbench(store)
    reader = StoreReader(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        assert screen.view.x == 6
        await pilot.press("left", "left")
        assert screen.view.x == 4
        for run, ref in enumerate(screen.view.refs, 1):
            expected = reader.value_at(run, "reward", 4)
            assert screen.view.value_at_x("reward", ref) == expected
        assert "▴ step 4" in frames.text(app)
        await settled(pilot, screen)
        assert screen.view.comparison is not None
        assert screen.view.comparison.at == "step 4"
        await pilot.press("end")
        await settled(pilot, screen)
        assert screen.view.x == 8
        assert "brave-fox ended before" in frames.text(app)
        await pilot.press("c")
        assert screen.view.x == 6
        await pilot.press("at")
        await pilot.pause()
        await pilot.press("backspace", "3", "enter")
        await pilot.pause()
        assert screen.view.x == 3
    reader.close()


async def test_axes_are_steps_tokens_and_wall_time(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        await pilot.press("a")
        await settled(pilot, screen)
        assert "at equal tokens" in frames.text(app)
        assert screen.view.comparison is not None
        assert screen.view.comparison.at == "10,200 tokens"
        await pilot.press("a")
        await settled(pilot, screen)
        assert "at equal wall time" in frames.text(app)
        assert screen.view.x == pytest.approx(6 * 2.1)
        await pilot.press("a", "L", "equals_sign", "minus", "minus")
        await settled(pilot, screen)
        text = frames.text(app)
        assert "by step" in text
        assert "log scale" in text
        assert "smooth .8" in text


async def test_another_baseline_turns_the_deltas_round(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        first = screen.view.cell("reward", screen.view.refs[1])
        await pilot.press("J", "b")
        await settled(pilot, screen)
        assert screen.view.base is not None
        assert screen.view.base.name == "brave-fox"
        second = screen.view.cell("reward", screen.view.refs[0])
        assert first is not None
        assert second is not None
        assert first.delta_best is not None
        assert second.delta_best is not None
        assert second.delta_best == pytest.approx(-first.delta_best)
        assert "Δ to brave-fox" in frames.text(app)
        better = "▲" if second.delta_best > 0 else "▼"
        row = next(line for line in frames.frame(app) if "calm-otter" in line and "@" in line)
        assert better in row


async def test_best_last_and_value_at_the_crosshair_take_turns(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        seen = []
        for _ in range(3):
            seen.append(screen.view.stat)
            assert f"Δ {screen.view.stat}" in frames.text(app)
            await pilot.press("t")
            await settled(pilot, screen)
        assert seen == ["best", "last", "at"]


# -- runs of all kinds --------------------------------------------------------------------------


async def test_marked_runs_come_from_the_runs_screen(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        runs = app.screen
        assert isinstance(runs, RunsScreen)
        for _ in range(300):
            await pilot.pause(0.01)
            if runs.view.loaded:
                break
        await pilot.press("space", "space", "d")
        await pilot.pause(0.05)
        screen = app.screen
        assert isinstance(screen, CompareScreen)
        await settled(pilot, screen)
        assert {run.name for run in screen.view.runs} == {"calm-otter", "brave-fox"}
        await pilot.press("q")
        await pilot.pause(0.05)
        assert app.screen is runs


async def test_an_empty_screen_helps_and_picks_runs(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("5")
        screen = app.screen
        assert isinstance(screen, CompareScreen)
        await settled(pilot, screen)
        text = frames.text(app)
        assert "Nothing is compared yet" in text
        assert "brave-fox and calm-otter" in text
        frames.check(app)
        await pilot.press("plus")
        await pilot.pause(0.2)
        assert isinstance(app.screen, Picker)
        frames.check(app)
        await pilot.press("slash", *"otter", "enter", "space", "enter")
        await settled(pilot, screen)
        assert [run.name for run in screen.view.runs] == ["calm-otter"]
        assert "Only calm-otter is here. + adds runs" in frames.text(app)
        frames.check(app)
        await pilot.press("x")
        await settled(pilot, screen)
        assert "Nothing is compared yet" in frames.text(app)
        await pilot.press("enter")
        await settled(pilot, screen)
        assert [run.name for run in screen.view.runs] == ["calm-otter", "brave-fox"]


async def test_a_store_without_runs_says_where_runs_come_from(tmp_path: Path) -> None:
    app = workbench(tmp_path / "none.db")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("5", "a", "enter", "plus", "x", "left")
        await pilot.pause(0.2)
        frames.check(app)
        assert isinstance(app.screen, CompareScreen)


async def test_gaps_missing_metrics_and_early_ends_are_said(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"

    def holes(events: Iterator[ev.Event]) -> Iterator[ev.Event]:
        for event in events:
            if isinstance(event, ev.StepFinished):
                kept = {k: v for k, v in event.metrics.items() if k != "kl"}
                event = replace(event, metrics={**kept, "reward": math.nan})
            yield event

    record(path, run_events(steps=6, seed=1), name="whole", seed=1)
    record(path, holes(run_events(steps=4, seed=2)), name="holes", seed=2)
    record(path, iter([started()]), name="begun", seed=3)
    app = workbench(path)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        text = frames.text(app)
        assert "holes: 4 of its values are NaN or infinite" in text
        assert "begun never recorded reward" in text
        assert screen.view.x == 4
        frames.check(app)
        await pilot.press("down", "down", "down", "L", "end")
        await settled(pilot, screen)
        assert screen.view.metric == "completions/mean_length"
        frames.check(app)
        await pilot.press("up", "L")
        await settled(pilot, screen)
        assert screen.view.metric == "kl"
        assert "holes never recorded kl" in frames.text(app)
        assert "■ none" in frames.text(app)


async def test_a_live_run_keeps_moving(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    record(path, run_events(steps=6, seed=1), name="done", seed=1)
    recorder = Recorder(path)
    handle = recorder.start_run(build({**CONFIG, "name": "live", "seed": 2}), name="live")
    steps = [e for e in run_events(steps=6, seed=2) if isinstance(e, ev.StepFinished)]
    handle.put(started())
    for event in steps[:2]:
        handle.put(event)
    app = workbench(path)
    async with app.run_test(size=(120, 40)) as pilot:
        for _ in range(100):
            await pilot.pause(0.02)
            if len(refs_of(path)) == 2:
                break
        screen = await opened(app, pilot)
        for event in steps[2:5]:
            handle.put(event)
        live = screen.view.refs[1]
        for _ in range(400):
            await pilot.pause(0.02)
            curve = screen.view.curve("reward", live)
            if curve is not None and len(curve.line.values) == 5:
                break
        assert curve is not None
        assert list(curve.line.values) == [event.metrics["reward"] for event in steps[:5]]
        assert screen.view.runs[1].step == 5
        frames.check(app)
    handle.close()
    recorder.close()


async def test_hidden_and_dropped_runs_leave_the_charts_but_keep_their_marks(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        fox = screen.view.refs[1]
        look = screen.view.look(fox, PALETTES["dark"])
        await pilot.press("space")
        await pilot.pause()
        assert [run.id for run in screen.view.drawn] == [fox]
        await pilot.press("J", "space")
        await pilot.pause()
        assert [run.id for run in screen.view.drawn] == [fox]
        await pilot.press("K", "space", "x")
        await settled(pilot, screen)
        assert [run.id for run in screen.view.runs] == [fox]
        assert screen.view.look(fox, PALETTES["dark"]) == look


def test_thirty_runs_are_told_apart_by_mark_and_colour_together() -> None:
    view = View().with_refs([str(number) for number in range(30)])
    for palette in PALETTES.values():
        looks = {(one := view.look(ref, palette)).mark + str(one.colour) for ref in view.refs}
        assert len(looks) == 30
        first = [view.look(str(number), palette) for number in range(10)]
        assert len({look.mark for look in first}) == 10


# -- metrics, pages -----------------------------------------------------------------------------


async def test_metrics_are_chosen_from_a_list(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        await pilot.press("m")
        await pilot.pause()
        assert isinstance(app.screen, Picker)
        app.screen.query_one(Input).focus()
        await pilot.press(*"grad_norm", "enter")
        picking = app.screen.query_one(PickList).picking
        assert [item.value for item in picking.shown] == ["grad_norm"]
        await pilot.press("enter")
        await settled(pilot, screen)
        assert screen.view.metric == "grad_norm"
        assert "gradient norm" in frames.text(app)
        await pilot.press("o")
        await settled(pilot, screen)
        assert "▸gradient norm" in frames.text(app)
        assert "answer length" not in frames.text(app)


async def test_seeds_are_grouped_with_mean_and_interval(sweep: Path) -> None:
    app = workbench(sweep)
    async with app.run_test(size=(200, 60)) as pilot:
        screen = await opened(app, pilot)
        await pilot.press("S", "v")
        await settled(pilot, screen)
        found = screen.view.comparison
        assert found is not None
        assert len(found.seeds) == 4
        assert all(len(group.runs) == 2 for group in found.seeds)
        text = frames.text(app)
        assert "seeds as bands" in text
        assert "algorithm.beta 0.1, optimizer.learning_rate 1e−05  2 seeds (0, 1)" in text
        one = next(item for item in found.seeds[0].best if item.key == "reward")
        assert one.low is not None
        assert one.high is not None
        assert f"{short(one.mean)}  [{short(one.low)}, {short(one.high)}]" in text
        assert screen.view.charts is not None
        assert len(screen.view.charts.charts[0].bands) == 4
        frames.check(app)


async def test_a_sweep_is_a_grid_of_two_settings(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = ("algorithm.beta", "optimizer.learning_rate")
    args = ("--grid", paths[0], "--grid", paths[1], "--json", "--db", str(sweep))
    told = json.loads(cli(capsys, *refs_of(sweep), *args))
    app = workbench(sweep)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        await pilot.press("g")
        await settled(pilot, screen)
        grid = screen.view.grid
        assert grid is not None
        assert (grid.rows_path, grid.columns_path) == paths
        assert [list(row) for row in grid.cells] == told["cells"]
        text = frames.text(app)
        for row in grid.cells:
            for value in row:
                assert short(value) in text
        assert "★" in text
        frames.check(app)


async def test_a_grid_says_what_it_needs(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot, refs_of(store)[:1])
        await pilot.press("g")
        await settled(pilot, screen)
        assert "A grid needs two settings that differ" in frames.text(app)
        await pilot.press("V")
        await settled(pilot, screen)
        assert "No two of these runs differ in nothing but the seed" in frames.text(app)


async def test_answers_to_the_same_prompt_stand_side_by_side(store: Path) -> None:
    app = workbench(store)
    reader = StoreReader(store)
    async with app.run_test(size=(200, 60)) as pilot:
        screen = await opened(app, pilot)
        await pilot.press("n")
        await settled(pilot, screen)
        text = frames.text(app)
        assert "17 + 25 = ?" in text
        answers = screen.view.answers
        assert answers is not None
        for run, ref in enumerate(screen.view.refs, 1):
            group = answers.groups[ref]
            assert group is not None
            assert group.step == 6
            stored = [g for g in reader.of_example(run, "17+25") if g.step == 6]
            assert [r.text for r in group.rollouts] == [
                r.text for r in reader.group(stored[-1].key).rollouts
            ]
            assert group.rollouts[0].text[:20] in text
        await pilot.press("n")
        await settled(pilot, screen)
        assert "31 + 9 = ?" in frames.text(app)
        await pilot.press("left", "left", "left")
        await settled(pilot, screen)
        assert screen.view.answers is not None
        later = screen.view.answers.groups[screen.view.refs[0]]
        assert later is not None
        assert later.step == 2
        screen.query_one(PagePanel).focus()
        await pilot.press("enter")
        await pilot.pause(0.1)
        assert isinstance(app.screen, RolloutsScreen)
    reader.close()


# -- which is better, and how sure ---------------------------------------------------------------


def judged(path: Path, first: float, second: float, fingerprint: str = "a1b2c3") -> None:
    """Two runs that end with these shares of 128 held-out problems right."""
    for number, share in enumerate((first, second)):
        begun = started()
        if number:
            begun = replace(begun, dataset_fingerprint=fingerprint)
        events: list[ev.Event] = [begun, evaluation(3, share, "after")]
        record(path, iter(events), name=f"run-{number}", seed=number)


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.75, "run-1 is better than run-0: +25 points (95 %: +17.4 to +32.6) on the same 128 "
               "held-out problems; p < .001, McNemar's exact test."),
        (0.51, "No sure difference: +1.6 points (95 %: −0.6 to +3.7) for run-1 over run-0 on the "
               "same 128 held-out problems; p = .500, McNemar's exact test."),
        (0.5, "run-1 and run-0 get as many right on the same 128 held-out problems; p = 1.000, "
              "McNemar's exact test."),
    ],
)  # fmt: skip
async def test_the_paired_test_is_one_sentence(share: float, expected: str, tmp_path: Path) -> None:
    judged(tmp_path / "runs.db", 0.5, share)
    app = workbench(tmp_path / "runs.db")
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        assert verdict(screen.view) == expected
        shown = " ".join(line.strip(" ▸") for line in frames.frame(app)[1:4])
        assert expected in shown


async def test_other_data_refuse_the_test_and_say_so(tmp_path: Path) -> None:
    judged(tmp_path / "runs.db", 0.5, 0.75, "other")
    app = workbench(tmp_path / "runs.db")
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        assert verdict(screen.view).startswith("Which is better cannot be tested: no paired test")
        assert "their data sets differ" in frames.text(app)


# -- looks, hostile text, exports, keys ----------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "theme"),
    [
        *((size, theme) for size in SIZES for theme in ("dark", "light")),
        *(((120, 40), theme) for theme in PALETTES if theme not in ("dark", "light")),
    ],
)
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
        own = json.loads(as_json(screen.view))
        assert {key: own[key] for key in told} == told
        assert own["shown"]["crosshair"] == 6
        assert list(csv.reader(io.StringIO(printed, newline=""))) == list(
            csv.reader(io.StringIO(as_csv(screen.view), newline=""))
        )
        await pilot.press("e", "c")
        await pilot.pause(0.1)
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
        await pilot.click(CurvesPanel, offset=(8, 12))
        await settled(pilot, screen)
        assert screen.view.chart == 1
        assert screen.view.x == 0
        await pilot.click(PagePanel, offset=(24, 1))
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
