"""Watch's charts alone, and any metric as one of them."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.app.charts.series import Series
from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.text.numbers import short
from grpo_tui.app.tui.dialogs.picker import Picker
from grpo_tui.app.tui.messages import RunOpened
from grpo_tui.app.tui.screens.watch.panels import Curves
from grpo_tui.app.tui.screens.watch.render import chart_lines, phase_line
from grpo_tui.app.tui.screens.watch.screen import WatchScreen
from grpo_tui.app.tui.screens.watch.state import chart_of
from grpo_tui.app.tui.widgets.panel import cells
from grpo_tui.experiments.reader import StoreReader
from tests.app import frames
from tests.app.frames import LOOKS
from tests.app.rest import until
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
    await until(on.app, lambda: on.screen.snapshot.step == STEPS)
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
        await until(on.app, lambda: "groups" in on.text)


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
        await until(on.app, lambda: "log axis" in on.text)
        assert app.preferences.texts("charts.log") == ["reward"]
        await on.press("down")
        assert "log axis" not in on.text
        await on.press("up", "less_than_sign")
        await until(on.app, lambda: f"at step {STEPS - 1}" in on.text)
        row = next(line for line in on.lines if "accuracy ×" in line)
        smoothed = Series().extended(*zip(*sorted(values_of(store, ACCURACY).items()), strict=True))
        assert short(smoothed.line_at(STEPS - 1)[0]) in row.split()
        await on.press("Y")
        assert app.preferences.texts("charts.log") == []


@pytest.mark.slow
async def test_every_metric_can_be_searched_for_and_drawn(store: Path) -> None:
    async with walk(workbench(store)) as on:
        curves = await opened(on, "m")
        await until(on.app, lambda: isinstance(on.screen, Picker))
        picker = on.screen
        assert isinstance(picker, Picker)
        reader = StoreReader(store)
        trained = {key for key in reader.metric_keys(1) if not key.startswith("eval/")}
        assert trained <= {item.value for item in picker.items}
        reader.close()
        await on.press(*"diversity")  # an everyday word
        await until(on.app, lambda: "entropy" in {item.value for item in picker.items})
        assert "reward" not in {item.value for item in picker.items}
        await on.press(*["backspace"] * 9, *"max_len", "enter")
        await until(on.app, lambda: on.screen.maximized is curves)
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


async def test_the_time_of_the_phase_is_not_cut_while_a_run_is_paused(store: Path) -> None:
    async with walk(workbench(store)) as on:
        snapshot = (await opened(on)).snapshot
    ended = {"generate": 12.0, "score": 0.1, "logprobs": 1.2}
    board = replace(
        snapshot.board, phase="update", phase_seconds=ended, phase_started=1.0, done=3, total=4
    )
    line = phase_line(replace(snapshot, status="paused", board=board), 2.6, 80)
    assert cells(line) <= 80
    text = "".join(text for text, _ in line)
    assert "1.6s" in text
    assert "━" in text


async def test_a_run_that_failed_in_its_first_step_is_not_said_to_have_taken_no_time(
    store: Path,
) -> None:
    async with walk(workbench(store)) as on:
        snapshot = (await opened(on)).snapshot
    for elapsed, after in ((0.0, False), (40.0, True)):
        failed = replace(snapshot, status="failed", elapsed=elapsed, worked=0.0)
        text = "".join(text for text, _ in phase_line(failed, 0.0, 80))
        assert text.startswith(" failed")
        assert ("after" in text) is after


def test_the_change_beside_a_value_says_what_it_is_from() -> None:
    steps = range(21)
    series = {
        "kl": Series.of("kl", steps, [0.01 * step for step in steps], 1e-9),
        # from .31 up to .47 and back to .39: since the first it rose, as Runs says
        "eval/accuracy": Series.of("eval/accuracy", (0, 10, 20), (0.31, 0.47, 0.39), 0.9),
    }
    snapshot = Snapshot(status="running", step=20, series=series)

    def title(key: str, width: int) -> str:
        line, *_ = chart_lines(chart_of(key), snapshot, width, 1, chosen=False)
        return "".join(text for text, _ in line)

    assert title("kl", 60).endswith(".2 ▲.10 in 10 steps")
    assert title("kl", 32).endswith(".2 ▲.10 in 10")
    assert title("kl", 24).endswith(".2")  # a change of no period says nothing
    assert title("eval/accuracy", 60).endswith("39% ▲8.0 since step 0")
    assert title("eval/accuracy", 44).endswith("39% ▲8.0 since 0")


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
