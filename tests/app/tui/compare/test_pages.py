"""The pages below the curves of Compare: metrics, seeds, grid, answers, and the paired test."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import Input

from grpo_engine import events as ev
from grpo_tui.app.text.comparison import verdict as verdict_of
from grpo_tui.app.tui.dialogs.picker import Picker
from grpo_tui.app.tui.screens.compare.panels import ComparePagePanel, RunsPanel
from grpo_tui.app.tui.screens.compare.render import (
    completions_lines,
    earlier,
    metric_cell,
    metrics_lines,
    verdict,
)
from grpo_tui.app.tui.screens.compare.state import CompareView, load_comparison
from grpo_tui.app.tui.screens.rollouts.screen import RolloutsScreen
from grpo_tui.app.tui.screens.watch.screen import WatchScreen
from grpo_tui.app.tui.widgets.panel import plain_text
from grpo_tui.experiments.compare.runs import compare
from grpo_tui.experiments.reader import StoreReader
from tests.app import frames
from tests.app.compared import (
    cli,
    opened,
    refs_of,
    sweep_of_settings,
    sweep_of_two_settings,
    two_runs,
    workbench,
)
from tests.app.script import algorithm, evaluation, started
from tests.app.stored import record
from tests.app.walk import walk


@pytest.mark.slow
async def test_metrics_are_chosen_from_a_list(store: Path) -> None:
    async with walk(workbench(store)) as on:
        screen = await opened(on)
        await on.press("m")
        assert isinstance(on.screen, Picker)
        picker = on.screen
        on.screen.query_one(Input).focus()
        await on.press(*"grad_norm")
        await on.until(lambda: [one.value for one in picker.items] == ["grad_norm"])
        await on.press("enter")
        assert screen.view.metric == "grad_norm"
        assert "gradient norm" in on.text
        await on.press("z")
        assert "▸gradient norm" in on.text
        assert "answer length" not in on.text


@pytest.mark.slow
async def test_the_verdict_is_the_same_wherever_the_crosshair_is(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    for number, ends in enumerate(((0.2, 0.75), (0.75, 0.2))):
        events: list[ev.Event] = [started()]
        for step, share in enumerate(ends, 1):
            events.append(
                ev.StepFinished(step=step, metrics={"reward": share}, tokens=9, elapsed=step)
            )
            events.append(evaluation(step, share, "during"))
        record(path, iter(events), name=f"run-{number}", algorithm=algorithm(beta=number))
    async with walk(workbench(path)) as on:
        screen = await opened(on)
        said = verdict(screen.view)
        assert said.startswith("run-0 is better than run-1 in greedy answers: ")
        await on.press("home", "right")
        await on.until(lambda: screen.view.comparison and screen.view.comparison.at == "step 1")
        cell = screen.view.cell("reward", screen.view.refs[0])
        assert cell is not None
        assert cell.at == 0.2
        assert verdict(screen.view) == said
        assert "step 2" in said


@pytest.mark.slow
async def test_answers_to_the_same_prompt_stand_side_by_side(store: Path) -> None:
    reader = StoreReader(store)
    async with walk(workbench(store), (200, 60)) as on:
        screen = await opened(on)
        await on.press("n")
        text = on.text
        assert "17 + 25 = ?" in text
        answers = screen.view.completions
        assert answers is not None
        for run, ref in enumerate(screen.view.refs, 1):
            group = answers.groups[ref]
            assert group is not None
            assert group.step == 6
            stored = [g for g in reader.groups(run, example_key="17+25") if g.step == 6]
            assert [r.text for r in group.rollouts] == [
                r.text for r in reader.groups_by_key([stored[-1].key])[0].rollouts
            ]
            assert group.rollouts[0].text[:12] in text
        assert " of 2 " not in text
        narrow = completions_lines(screen.view, 50, 20)
        assert "run 1 of 2" in "".join(part for part, _ in narrow[0])
        await on.press("n")
        assert "31 + 9 = ?" in on.text
        await on.press("left", "left", "left")
        later = screen.view.completions.groups[screen.view.refs[0]]
        assert later is not None
        assert later.step == 2
        screen.query_one(ComparePagePanel).focus()
        await on.press("enter")
        assert isinstance(on.screen, RolloutsScreen)
    reader.close()


@pytest.mark.slow
async def test_a_run_that_was_opened_from_here_leads_back(store: Path) -> None:
    async with walk(workbench(store)) as on:
        screen = await opened(on)
        screen.query_one(RunsPanel).focus()
        await on.press("enter")
        await on.until(lambda: isinstance(on.screen, WatchScreen))
        await on.press("escape")
        await on.until(lambda: on.screen is screen)


@pytest.mark.parametrize(
    ("fingerprint", "begin", "end"),
    [
        (
            "a1b2c3",
            "No significant difference in greedy answers: +1.6 points ",
            "To be sure: 700 more problems.",
        ),
        ("other", "Which is better cannot be tested: ", "their data sets differ"),
    ],
)
def test_a_verdict_that_is_not_sure_says_what_is_missing(
    fingerprint: str, begin: str, end: str, tmp_path: Path
) -> None:
    path = tmp_path / "runs.db"
    for number, share in enumerate((0.5, 0.51)):
        begun = replace(started(), dataset_fingerprint=fingerprint if number else "a1b2c3")
        events: list[ev.Event] = [begun, evaluation(3, share, "after")]
        record(path, iter(events), name=f"run-{number}", algorithm=algorithm(beta=number))
    with StoreReader(path) as reader:
        found = load_comparison(reader, ["run-0", "run-1"], "", "step", None)
    said = verdict(CompareView().with_comparison(found))
    assert said.startswith(begin)
    assert end in said


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_verdict_is_of_settings_and_of_the_evaluation_in_the_table(
    size: tuple[int, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sweep_of_settings(tmp_path, betas=(0.04, 0.4), seeds=2, steps=4)
    async with walk(workbench(path), size) as on:
        screen = await opened(on)
        said = verdict(screen.view)
        assert "for beta 0.4 (2 seeds) over beta 0.04 (2 seeds)" in said
        assert "sampled 4 times, step 4" in said
        assert " Greedy answers: " in said
        # the shares in the sentence are the means of those in the table
        table = [screen.view.cell("eval/accuracy", run.id) for run in screen.view.runs]
        shares = sorted(100 * cell.last for cell in table if cell and cell.last is not None)
        means = re.findall(r"([0-9.]+) and ([0-9.]+)%", said)[0]
        assert list(map(float, means)) == pytest.approx(
            [sum(shares[2:]) / 2, sum(shares[:2]) / 2], abs=0.06
        )
        frames.check(on.app)
        assert "beta 0.4" in on.text
        # the sentence stays the same, whichever metric is looked at
        greedy = replace(screen.view, chart=screen.view.metrics.index("eval/greedy/accuracy"))
        assert verdict(greedy) == said
        screen.view = greedy
        screen.draw()
        await on.until(lambda: "held-out accuracy, greedy" in on.text)
    printed = " ".join(cli(capsys, *refs_of(path), "--all", "--db", str(path)).split())
    assert said in printed
    assert "eval/accuracy (sampled) ↑" in printed


def test_the_column_of_the_baseline_leaves_the_cells_of_a_difference_to_the_names(
    tmp_path: Path,
) -> None:
    path = two_runs(tmp_path)
    with StoreReader(path) as reader:
        refs = tuple(run.id for run in reader.runs())
        comparison = load_comparison(reader, refs, "", "step", 5.0)
    view = CompareView(refs=refs, at=5.0).with_comparison(comparison)
    assert view.base_column == view.columns[0]
    head, *rows = plain_text(metrics_lines(view, 78, 9)).splitlines()
    (row,) = [row for row in rows if "groups without signal" in row]
    # 23 cells for the longest label, and the 10 that the baseline has no use for
    assert row[32] == "↓"
    # the marks are above the last digits, and the difference is behind the other run alone
    name = view.column_name(view.columns[0])
    first = head.index(name) + len(name) - 1
    second = len(head) - 1
    assert row[first - 2 : first + 1] == "25%"
    assert row[first + 1 : second + 1].strip() == "0%"
    assert row[second + 1 :].strip() == "−25 pt"


@pytest.mark.slow
def test_no_difference_is_taken_from_a_value_before_training(tmp_path: Path) -> None:
    with StoreReader(sweep_of_settings(tmp_path)) as reader:
        runs = reader.runs(limit=3)
        comparison = compare(reader, runs, keys=["eval/accuracy"], baseline=runs[0])
    (metric,) = comparison.metrics
    # at the crosshair: .8 and .7 of steps 6 and 4, and .3 from before the first step
    ends = ((0.8, 6), (0.7, 4), (0.3, 0))
    cells = [
        replace(cell, at=at, at_step=step)
        for cell, (at, step) in zip(metric.cells, ends, strict=True)
    ]
    view = CompareView(refs=tuple(run.id for run in runs)).with_comparison(
        replace(comparison, metrics=(replace(metric, cells=tuple(cells)),))
    )
    base, trained, untrained = ((run.id,) for run in runs)
    assert view.delta("eval/accuracy", trained, base) == pytest.approx(-0.1)
    assert view.delta("eval/accuracy", untrained, base) is None
    assert view.delta("eval/accuracy", base, untrained) is None
    cell = metric_cell(replace(view, at=6.0), "eval/accuracy", untrained, 24)
    assert "".join(text for text, _ in cell).split() == ["30%", "@0"]


@pytest.mark.parametrize(
    ("axis", "x", "step", "text"),
    [
        ("step", 25.0, 25, ""),
        ("step", 25.0, 20, " @20"),
        ("step", 25.0, 0, " @0"),
        ("tokens", 10_545.0, 3, ""),
        ("tokens", 10_545.0, 0, " @0"),
        ("wall", 60.0, 0, " @0"),
    ],
)
def test_a_value_from_before_training_is_known_by_its_step_on_every_axis(
    axis: str, x: float, step: int, text: str
) -> None:
    view = CompareView(axis=axis, at=x)
    assert earlier(view, step) == text


@pytest.mark.slow
def test_the_verdict_on_two_settings_begins_with_the_one_that_matters(tmp_path: Path) -> None:
    path = sweep_of_two_settings(tmp_path)
    with StoreReader(path) as reader:
        comparison = load_comparison(reader, refs_of(path), "", "step", None)
    first, second, *_ = verdict_of(comparison).split(". ")
    assert re.match(
        r"learning_rate 0.0001 instead of 1e−05: \+.* points, p . \.\d+; beta: no clear effect",
        first,
    )
    assert "is better than" in second
