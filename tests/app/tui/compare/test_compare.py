"""Compare on real stores: the screen agrees with the store and with `grpo-tui compare`."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_engine import events as ev
from grpo_engine.config.parse import build
from grpo_tui.app.text.numbers import short
from grpo_tui.app.tui.screens.compare.panels import CurvesPanel, RunsPanel
from grpo_tui.app.tui.screens.compare.state import CompareView, load_comparison
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import start_run
from tests.app import frames
from tests.app.compared import choose, cli, opened, refs_of, settled, workbench
from tests.app.script import CONFIG, started
from tests.app.stored import record, run_events
from tests.app.walk import walk


async def test_numbers_on_screen_equal_the_store_and_the_command(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refs = refs_of(store)
    whole = json.loads(
        cli(capsys, *refs, "--baseline", refs[0], "--at", "step", "--json", "--db", str(store))
    )
    reader = StoreReader(store)
    async with walk(workbench(store), (200, 60)) as on:
        screen = await opened(on)
        choose(screen, "reward")
        await on.until(lambda: "│    reward " in on.text)
        text = on.text
        assert "step 6" in text
        for key in screen.view.metric_keys():
            cells = whole["metrics"][key]["runs"]
            for ref, run in zip(refs, (1, 2), strict=True):
                own = screen.view.cell(key, ref)
                assert own is not None
                assert own.best == cells[ref]["best"]
                assert own.at == cells[ref]["at"] == reader.value_at(run, key, 6)[0]
                assert own.delta_best == cells[ref]["delta_best"]
        for ref, name in zip(refs, ("calm-otter", "brave-fox"), strict=True):
            cell = whole["metrics"]["reward"]["runs"][ref]
            row = next(line for line in on.lines if name in line and "@" in line)
            assert f"{short(cell['best'])} @{cell['best_step']}" in row
            assert f" {short(cell['at'])} " in row
        kl = whole["metrics"]["kl"]["runs"][refs[1]]
        assert re.search(rf"kl +\S+ .*{re.escape(short(kl['at']))} ", text)
    reader.close()


@pytest.mark.slow
async def test_the_crosshair_reads_every_run_at_the_same_place(store: Path) -> None:
    reader = StoreReader(store)
    async with walk(workbench(store)) as on:
        screen = await opened(on)
        assert screen.view.x == 6
        await on.press("left", "left")
        assert screen.view.x == 4
        for run, ref in enumerate(screen.view.refs, 1):
            expected = reader.value_at(run, "reward", 4)
            assert screen.view.value_at_x("reward", (ref,)) == expected
        assert " at step 4 " in on.text
        await settled(on, screen)
        assert screen.view.comparison.at == "step 4"
        await on.press("end")
        assert screen.view.x == 8
        assert re.search(r"■ brave-fox .* @6 ", on.text)  # it ended before
        await on.press("at")
        await on.press("backspace", "3", "enter")
        assert screen.view.x == 3
    reader.close()


@pytest.mark.slow
async def test_axes_are_steps_tokens_and_wall_time(store: Path) -> None:
    async with walk(workbench(store)) as on:
        screen = await opened(on)
        await on.press("a")
        assert " at 10k tokens " in on.text
        assert screen.view.comparison.at == "10,200 tokens"
        await on.press("a")
        assert " at 13s " in on.text
        assert screen.view.x == pytest.approx(6 * 2.1)
        await on.press("a", "equals_sign", "minus", "minus")
        text = on.text
        assert " at step 6" in text
        assert "smooth .8" in text


async def test_down_goes_to_the_chart_below_and_reaches_every_one(store: Path) -> None:
    async with walk(workbench(store), (200, 60)) as on:
        screen = await opened(on)
        curves, count = screen.query_one(CurvesPanel), len(screen.view.metrics)
        assert curves.columns(count) == 2
        choose(screen, screen.view.metrics[0])
        seen = [screen.view.chart]
        for _ in range(count - 1):
            await on.press("down")
            seen.append(screen.view.chart)
        assert seen == [*range(0, count, 2), *range(1, count, 2)]


@pytest.mark.slow
async def test_another_baseline_turns_the_deltas_round(store: Path) -> None:
    async with walk(workbench(store)) as on:
        screen = await opened(on)
        first = screen.view.cell("reward", screen.view.refs[1])
        screen.query_one(RunsPanel).focus()
        await on.press("down", "b")
        assert screen.view.base.name == "brave-fox"
        second = screen.view.cell("reward", screen.view.refs[0])
        assert first is not None
        assert second is not None
        assert first.delta_best is not None
        assert second.delta_best is not None
        assert second.delta_best == pytest.approx(-first.delta_best)
        assert "Δ to brave-fox" in on.text
        choose(screen, "reward")
        await on.until(lambda: re.search(r"● calm-otter .* [−+]\.\d+ ", on.text))


# -- runs of all kinds --------------------------------------------------------------------------


@pytest.mark.slow
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
    async with walk(workbench(path)) as on:
        screen = await opened(on)
        choose(screen, "reward")
        await on.until(lambda: "│    reward " in on.text)
        text = on.text
        assert re.search("✚ begun .*–", text)
        assert screen.view.x == 4
        frames.check(on.app)
        choose(screen, "kl")
        await on.press("end")
        frames.check(on.app)
        assert re.search("■ holes .*–", on.text)


@pytest.mark.slow
async def test_a_live_run_keeps_moving(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    record(path, run_events(steps=6, seed=1), name="done", seed=1)
    handle = start_run(path, build({**CONFIG, "name": "live", "seed": 2}), name="live")
    steps = [e for e in run_events(steps=6, seed=2) if isinstance(e, ev.StepFinished)]
    handle.put(started())
    for event in steps[:2]:
        handle.put(event)
    async with walk(workbench(path)) as on:
        await on.until(lambda: len(refs_of(path)) == 2)
        screen = await opened(on)
        for event in steps[2:5]:
            handle.put(event)
        live = screen.view.refs[1]

        def values() -> list[float]:
            charts = screen.view.charts.charts
            return list(charts["reward"].series[live].values) if "reward" in charts else []

        await on.until(lambda: len(values()) == 5)
        assert values() == [event.metrics["reward"] for event in steps[:5]]
        assert screen.view.runs[1].step == 5
        frames.check(on.app)
    handle.close()


@pytest.mark.slow
async def test_a_run_that_is_removed_leaves_the_others_their_marks(store: Path) -> None:
    async with walk(workbench(store)) as on:
        screen = await opened(on)
        fox = screen.view.refs[1]
        look = screen.view.marker(fox)
        await on.press("x")
        assert [run.id for run in screen.view.runs] == [fox]
        assert screen.view.marker(fox) == look


def test_charts_are_the_main_metrics_of_the_runs_until_others_are_chosen(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    begun = [event for event in run_events(steps=1) if event.step == 0]
    record(path, iter(begun), name="new")
    record(path, run_events(steps=2), name="old")
    with StoreReader(path) as reader:
        alone, both = (
            load_comparison(reader, refs, "", "step", None) for refs in (["new"], ["new", "old"])
        )
    view = CompareView().with_comparison(alone)
    assert view.metrics == ("eval/greedy/accuracy",)
    assert {"reward", "kl", "entropy"} <= set(view.with_comparison(both).metrics)
    chosen = replace(view.with_comparison(both), metrics=("loss", "reward"))
    assert chosen.with_comparison(both).metrics == ("loss", "reward")
