"""Watch's charts alone, and any metric as one of them."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.app.charts.series import Series
from grpo_tui.app.text.numbers import short
from grpo_tui.app.tui.dialogs.picker import Picker
from grpo_tui.app.tui.messages import RunOpened
from grpo_tui.app.tui.screens.watch.panels import Curves
from grpo_tui.app.tui.screens.watch.render import phase_line
from grpo_tui.app.tui.screens.watch.screen import WatchScreen
from grpo_tui.app.tui.widgets.panel import cells
from grpo_tui.experiments.reader import StoreReader
from tests.app import frames
from tests.app.frames import LOOKS
from tests.app.stored import record, run_events, workbench
from tests.app.walk import Walk, walk

STEPS = 40
ACCURACY = "rewards/accuracy/mean"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("charts") / "runs.db"
    record(path, run_events(steps=STEPS), name="otter")
    return path


async def opened(on: Walk, *keys: str) -> Any:
    """The curves of Watch, after some keys."""
    await on.until(lambda: on.screen.snapshot.step == STEPS)
    assert isinstance(on.screen, WatchScreen)
    curves = on.screen.query_one(Curves)
    curves.focus()
    await on.press(*keys)
    return curves


def values_of(store: Path, key: str) -> dict[int, float]:
    reader = StoreReader(store)
    series = reader.metric_series(1, key)
    reader.close()
    return dict(zip(series.steps, series.values, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("size", "theme"), LOOKS)
async def test_a_chart_is_drawn_alone_and_the_others_are_an_arrow_away(
    size: tuple[int, int], theme: str, store: Path
) -> None:
    async with walk(workbench(store, theme), size) as on:
        curves = await opened(on, "z", "down")
        frames.check(on.app)
        assert on.screen.maximized is curves
        assert curves.chosen is not None
        assert curves.chosen.keys == ("kl",)
        assert "answer length" not in on.text
        await on.press("z")
        assert on.screen.maximized is None
        await on.until(lambda: "groups" in on.text)


async def test_the_reward_alone_keeps_its_functions(store: Path) -> None:
    async with walk(workbench(store), (80, 24)) as on:
        await opened(on, "z")
        frames.check(on.app)
        lines = on.lines
        for name, weight in (("accuracy", 1.0), ("format", 0.1)):
            first = short(values_of(store, f"rewards/{name}/mean")[1])
            line = next(line for line in lines if f"━ {name} ×{short(weight)}" in line)
            assert f"{first} → " in line


async def test_a_logarithmic_axis_is_remembered_and_an_earlier_step_has_a_crosshair(
    store: Path,
) -> None:
    app = workbench(store)
    async with walk(app) as on:
        await opened(on, "z", "Y")
        await on.until(lambda: "log axis" in on.text)
        assert app.preferences.texts("charts.log") == ["reward"]
        await on.press("down")
        assert "log axis" not in on.text
        await on.press("up", "less_than_sign")
        await on.until(lambda: f"at step {STEPS - 1}" in on.text)
        row = next(line for line in on.lines if "accuracy ×" in line)
        smoothed = Series().extended(*zip(*sorted(values_of(store, ACCURACY).items()), strict=True))
        assert short(smoothed.line_at(STEPS - 1)[0]) in row.split()
        await on.press("Y")
        assert app.preferences.texts("charts.log") == []


@pytest.mark.slow
async def test_every_metric_can_be_searched_for_and_drawn(store: Path) -> None:
    async with walk(workbench(store)) as on:
        curves = await opened(on, "m")
        await on.until(lambda: isinstance(on.screen, Picker))
        picker = on.screen
        assert isinstance(picker, Picker)
        reader = StoreReader(store)
        trained = {key for key in reader.metric_keys(1) if not key.startswith("eval/")}
        assert trained <= {item.value for item in picker.items}
        reader.close()
        await on.press(*"diversity")  # an everyday word
        await on.until(lambda: "entropy" in {item.value for item in picker.items})
        assert "reward" not in {item.value for item in picker.items}
        await on.press(*["backspace"] * 9, *"max_len", "enter")
        await on.until(lambda: on.screen.maximized is curves)
        assert curves.chosen is not None
        assert curves.chosen.keys == ("completions/max_length",)
        await on.press("z")
        assert curves.chosen.keys == ("completions/max_length",)
        frames.check(on.app)


async def test_the_cursor_stays_on_its_chart_and_begins_anew_in_another_run(store: Path) -> None:
    async with walk(workbench(store)) as on:
        curves = await opened(on)
        state = curves.view
        series = {key: item for key, item in state.snapshot.series.items() if key != "kl"}
        curves.go_to("loss")
        index = curves.cursor
        curves.view = replace(state, snapshot=replace(state.snapshot, series=series))
        assert curves.chosen is not None
        assert curves.chosen.title == "loss"
        assert curves.cursor == index - 1
        head = replace(state.snapshot.head, id="another")
        curves.view = replace(state, snapshot=replace(state.snapshot, head=head))
        assert curves.cursor == 0


async def test_the_slowest_phase_is_never_cut(store: Path) -> None:
    async with walk(workbench(store)) as on:
        snapshot = (await opened(on)).snapshot
    for width in range(60, 140):
        line = phase_line(snapshot, 0.0, width)
        assert cells(line) <= width
        assert "◂ slowest" in "".join(text for text, _ in line)


def is_shown(on: Walk, name: str) -> bool:
    return bool(on.screen.snapshot.head.name == name)


@pytest.mark.slow
async def test_another_run_begins_with_all_panels(tmp_path: Path) -> None:
    path = tmp_path / "two.db"
    for name in ("first", "second"):
        record(path, run_events(steps=4), name=name)
    async with walk(workbench(path)) as on:
        for name in ("first", "second"):
            on.app.post_message(RunOpened(name))
            await on.until(partial(is_shown, on, name))
            assert on.screen.maximized is None
            await on.press("z")
            assert on.screen.maximized is not None
