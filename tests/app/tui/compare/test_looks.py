"""The appearance of Compare: frames, hostile text, exports, keys and mouse."""

import re
from pathlib import Path

import pytest

from grpo_tui.app.text.comparison import ranking_of, standing
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.screens.compare.panels import ComparePagePanel, CurvesPanel, RunsPanel
from grpo_tui.app.tui.screens.compare.state import MARKS
from tests.app.compared import (
    choose,
    opened,
    settled,
    sweep_of_settings,
    workbench,
)
from tests.app.walk import walk


async def test_the_mouse_does_what_keys_do(store: Path) -> None:
    async with walk(workbench(store)) as on:
        screen = await opened(on)
        await on.pilot.click(RunsPanel, offset=(6, 3))
        await on.pilot.pause()
        assert screen.view.chosen.name == "brave-fox"
        await on.pilot.click(CurvesPanel, offset=(68, 5))
        await settled(on, screen)
        assert screen.view.chart == 1
        assert screen.view.x == 0
        await on.pilot.click(ComparePagePanel, offset=(30, 1))
        await settled(on, screen)
        assert screen.view.page == "answers"


async def test_copy_gives_the_focused_panel(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    monkeypatch.setattr(Workbench, "copy", lambda _, text: copied.append(text))
    async with walk(workbench(store)) as on:
        screen = await opened(on)
        await on.press("y")
        screen.query_one(ComparePagePanel).focus()
        await on.press("y")
        assert "calm-otter\t" in copied[0]
        assert "algorithm" not in copied[1]
        assert "reward" in copied[1]


async def test_searching_keeps_matching_settings_and_metrics(store: Path) -> None:
    async with walk(workbench(store)) as on:
        screen = await opened(on)
        await on.press("slash", *"clip")
        assert {row.key.split("/")[0] for row in screen.view.rows} == {"clip_ratio", "completions"}
        # a metric is named in words, with its key, and found by both
        await on.press("escape", "slash", *"without sig")
        await on.until(lambda: [one.key for one in screen.view.rows] == ["frac_reward_zero_std"])
        assert "groups without signal" in on.text
        await on.press("escape")
        assert "reward" in {row.key for row in screen.view.rows}


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_only_the_verdict_marks_what_is_better(
    size: tuple[int, int], store: Path, tmp_path: Path
) -> None:
    """Between these two runs nothing is told apart, whatever their rewards are."""
    async with walk(workbench(store), size) as on:
        screen = await opened(on)
        for metric in screen.view.metrics:
            choose(screen, metric)
            for page in ("metrics", "ranking"):
                screen.show_page(page)
                await settled(on, screen)
                text = on.text
                assert not re.search(r"[▲▼★] ?[+−\d]|\d ★", text)
                row = next(line for line in text.splitlines() if "│ ■ brave-fox" in line)
                assert "cannot tell" in row
    path = sweep_of_settings(tmp_path, betas=(0.04, 0.4), seeds=3, steps=4)
    async with walk(workbench(path), max(size, (120, 40))) as on:  # with all rows of the legend
        screen = await opened(on)
        found = screen.view.comparison
        assert found is not None
        for metric in ("eval/accuracy", "reward", "eval/greedy/accuracy"):
            choose(screen, metric)
            await settled(on, screen)
            ranking = ranking_of(found)
            assert ranking is not None
            (other,) = [row for row in ranking.settings if row.test]
            assert other.test is not None
            sure = other.test.low > 0 or other.test.high < 0
            rows = [line for line in on.lines if re.search(r"│.\S b0", line)]
            said = standing(other.test)
            assert (said == "cannot tell") is not sure
            # it stands once for each setting; its other seeds point to that row
            first = next(place for place, line in enumerate(rows) if "b0.4-" in line)
            assert [place for place, line in enumerate(rows[:6]) if said in line] == [first]
            shown = [re.findall(r"baseline|same setting", line)[0] for line in rows[:3]]
            assert shown == ["baseline", "same setting", "same setting"]
            assert all("same setting" in line for line in rows[first + 1 : 6])
            # pooled seeds have one mark, in the legend and in the curves
            marks = {screen.view.marker(run).mark for run in other.own.runs}
            assert marks == {screen.view.marker(screen.view.columns[-1][0]).mark}


def test_no_mark_of_a_run_is_a_verdict() -> None:
    assert not set("▲▼") & set(MARKS)
    assert len(set(MARKS)) == len(MARKS)
