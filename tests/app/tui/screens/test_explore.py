"""Watch's charts alone: crosshair, zoom, smoothing, log axis and any metric, as on Compare."""

from dataclasses import replace
from pathlib import Path

import pytest
from textual import events
from textual.pilot import Pilot

from grpo_tui.app.feed.stored import StoreFeed
from grpo_tui.app.text.numbers import BARS, short, with_unit
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.dialogs.picker import Picker
from grpo_tui.app.tui.messages import MetricRequested
from grpo_tui.app.tui.preferences import Preferences
from grpo_tui.app.tui.screens.compare.state import MIN_STEPS
from grpo_tui.app.tui.screens.watch import WatchScreen
from grpo_tui.app.tui.screens.watch.explore import ExploreScreen
from grpo_tui.experiments.reader import StoreReader
from tests.app import frames
from tests.app.frames import LOOKS
from tests.app.rest import until
from tests.app.stored import record, run_events
from tests.patience import PATIENCE

STEPS = 40


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explore") / "runs.db"
    record(path, run_events(steps=STEPS), name="otter")
    return path


async def explored(app: Workbench, pilot: Pilot[int], *keys: str) -> ExploreScreen:
    await until(app, lambda: app.screen.snapshot.step == STEPS)  # type: ignore[attr-defined]
    assert isinstance(app.screen, WatchScreen)
    app.screen.query_one("#curves").focus()
    await pilot.press(*keys, "z")
    await until(app, lambda: isinstance(app.screen, ExploreScreen))
    screen = app.screen
    assert isinstance(screen, ExploreScreen)
    await until(app, lambda: screen.view.charts is not None)
    await pilot.pause()
    return screen


def workbench(store: Path, theme: str = "dark") -> Workbench:
    preferences = Preferences()
    preferences.remember(theme=theme)
    feed = StoreFeed(store, "@last")
    assert feed.caught_up.wait(PATIENCE)
    return Workbench(store, feed=feed, mode="watch", preferences=preferences)


def values_of(store: Path, key: str) -> dict[int, float]:
    reader = StoreReader(store)
    series = reader.metric_series(1, key)
    reader.close()
    return dict(zip(series.steps, series.values, strict=True))


@pytest.mark.parametrize(("size", "theme"), LOOKS)
async def test_a_chart_alone_has_its_extremes_and_its_limit_at_every_size(
    size: tuple[int, int], theme: str, store: Path
) -> None:
    app = workbench(store, theme)
    async with app.run_test(size=size) as pilot:
        screen = await explored(app, pilot, "right")
        frames.check(app)
        assert screen.view.metric == "kl"
        kl = values_of(store, "kl")
        text = frames.text(app)
        assert f"max {with_unit(max(kl.values()), '')} @{max(kl, key=lambda s: kl[s])}" in text
        assert f"last {with_unit(kl[STEPS], '')} @{STEPS}" in text
        screen.action_switch("solo")
        await pilot.pause()
        frames.check(app)
        await pilot.press("z")
        await until(app, lambda: isinstance(app.screen, WatchScreen))


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_the_reward_alone_keeps_its_functions(size: tuple[int, int], store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=size) as pilot:
        screen = await explored(app, pilot)
        frames.check(app)
        functions = frames.frame(app)[2:4]
        moved = {}
        for name, weight, line in zip(("accuracy", "format"), (1.0, 0.1), functions, strict=True):
            values = [*values_of(store, f"rewards/{name}/mean").values()]
            last = norm = 0.0
            for value in values:
                last, norm = 0.9 * last + 0.1 * value, 0.9 * norm + 0.1
            assert f"━ {name} ×{short(weight)}" in line
            assert f"{short(values[0])} → {short(last / norm)}" in line
            moved[name] = weight * abs(last / norm - values[0])
        most = max(moved, key=moved.__getitem__)
        starts = [min(line.find(bar) % 1000 for bar in BARS.strip()) for line in functions]
        assert starts[0] == starts[1]  # the curves begin below each other
        assert [name for name, line in zip(moved, functions, strict=True)
                if "◂ moved the reward most" in line] == [most]  # fmt: skip
        await pilot.press("down", *["down"] * len(moved))  # the first of another metric
        await until(app, lambda: "rewards" not in screen.view.metric)
        await pilot.pause()
        assert "━ accuracy" not in frames.text(app)


async def test_z_shows_the_chart_alone_also_right_after_the_key_that_moved_the_focus(
    store: Path,
) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(app, lambda: app.screen.snapshot.step == STEPS)  # type: ignore[attr-defined]
        screen = app.screen
        assert isinstance(screen, WatchScreen)
        screen.query_one("#groups").focus()
        await pilot.pause()
        screen.set_focus(screen.query_one("#curves"))
        screen.action_zoom()  # before the panel was told of its focus
        await until(app, lambda: isinstance(app.screen, ExploreScreen))


async def test_one_crosshair_reads_all_charts_at_one_step(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(200, 60)) as pilot:
        screen = await explored(app, pilot)
        screen.action_switch("solo")
        await pilot.press(*["minus"] * 6, "home", *["right"] * 9)
        await until(app, lambda: screen.view.charts is not None)
        await pilot.pause()
        assert screen.view.smoothing == 0
        at = int(screen.view.x)
        assert 0 < at < STEPS
        text = frames.text(app)
        for key in ("kl", "entropy", "loss"):
            value = values_of(store, key)[at]
            assert with_unit(value, "") in text, key
        assert f"step {at}" in text


async def test_curves_that_are_read_while_the_screen_closes_are_not_drawn(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await explored(app, pilot)
        await app.pop_screen()
        assert not screen.children
        screen.view = replace(screen.view, solo=not screen.view.solo)  # as its worker does


async def test_the_axis_zooms_around_the_crosshair_and_pans(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await explored(app, pilot)
        await pilot.press("end")
        screen.action_zoom_axis(1)
        screen.action_zoom_axis(1)
        assert screen.view.window == (STEPS * 0.75, STEPS)
        screen.action_pan(-1)
        assert screen.view.window == (STEPS * 0.75 - 2.5, STEPS - 2.5)
        await pilot.press("home")
        assert screen.view.window == (0.0, STEPS * 0.25)
        for _ in range(9):
            screen.action_zoom_axis(1)
        assert screen.view.window == (0.0, MIN_STEPS)
        await until(app, lambda: screen.view.charts is not None
                    and screen.view.charts.span == MIN_STEPS)  # fmt: skip
        await pilot.pause()
        frames.check(app)
        for _ in range(9):
            screen.action_zoom_axis(-1)
        assert screen.view.window is None


async def test_the_wheel_zooms_around_the_pointer(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await explored(app, pilot)
        panel = screen.query_one("#curves")
        await pilot._post_mouse_events(  # the pilot has no wheel of its own
            [events.MouseScrollUp], panel, offset=(60, 10), button=0
        )  # fmt: skip
        await pilot.pause()
        assert screen.view.window is not None
        first, last = screen.view.window
        assert last - first == STEPS / 2
        assert 0 < first < last < STEPS


async def test_every_metric_can_be_searched_for_and_drawn(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(app, lambda: app.screen.snapshot.step == STEPS)  # type: ignore[attr-defined]
        app.screen.query_one("#curves").focus()
        await pilot.press("m")
        await until(app, lambda: isinstance(app.screen, Picker))
        picker = app.screen
        assert isinstance(picker, Picker)
        reader = StoreReader(store)
        assert {item.value for item in picker.items} == set(reader.metric_keys(1))
        reader.close()
        await pilot.press(*"diversity")  # an everyday word
        await until(app, lambda: "entropy" in {item.value for item in picker.items})
        assert "reward" not in {item.value for item in picker.items}
        await pilot.press(*["backspace"] * 9, *"max_len", "enter")
        await until(app, lambda: isinstance(app.screen, ExploreScreen))
        assert app.screen.view.metric == "completions/max_length"  # type: ignore[attr-defined]


async def test_a_metric_that_the_palette_found_is_shown_alone(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(app, lambda: app.screen.snapshot.step == STEPS)  # type: ignore[attr-defined]
        await pilot.press("1")
        app.post_message(MetricRequested("entropy"))
        await until(app, lambda: isinstance(app.screen, ExploreScreen))
        await until(app, lambda: app.screen.view.metric == "entropy")  # type: ignore[attr-defined]


async def test_a_choice_of_metrics_that_is_left_leads_back_to_watch(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(app, lambda: app.screen.snapshot.step == STEPS)  # type: ignore[attr-defined]
        app.screen.query_one("#curves").focus()
        await pilot.press("m")
        await until(app, lambda: isinstance(app.screen, Picker))
        await pilot.press("escape")
        await until(app, lambda: isinstance(app.screen, WatchScreen))
        screen = await explored(app, pilot)
        await pilot.press("m")
        await until(app, lambda: isinstance(app.screen, Picker))
        await pilot.press("escape")
        await until(app, lambda: app.screen is screen)
        await pilot.pause()
        assert app.screen is screen
