"""`e` writes what a screen shows to new files, and says where, or why not."""

import csv
import json
import re
import sys
from pathlib import Path

import pytest

from grpo_tui.app.charts.lines import curve_of
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.exporting import Export, file_stem, written
from grpo_tui.app.tui.messages import CompareRequested
from grpo_tui.app.tui.screens.compare.state import PAGES
from grpo_tui.app.tui.screens.rollouts.lab.screen import LabScreen
from grpo_tui.app.tui.screens.rollouts.lab.state import name_of
from grpo_tui.experiments.errors import ExportError
from grpo_tui.experiments.reader import StoreReader
from tests.app.compared import sweep_of_settings
from tests.app.stored import record, run_events, workbench
from tests.app.walk import Walk, walk
from tests.disks import fill, small_disk


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of two runs, and a folder for files that the program is started in."""
    path = tmp_path / "store" / "runs.db"
    path.parent.mkdir()
    for seed in (1, 2):
        record(path, run_events(steps=4, seed=seed), name=f"otter-{seed}", seed=seed)
    (tmp_path / "files").mkdir()
    monkeypatch.chdir(tmp_path / "files")
    return path


async def export(on: Walk, key: str) -> Path:
    """Press `e` and a key of its dialog, and return the file that the message names."""
    before = len(on.app.notices)
    await on.press("e")
    await on.see("─ export ─")
    await on.press(key)
    await on.until(lambda: len(on.app.notices) > before)
    path = Path(on.told.removeprefix("Wrote "))
    assert path.is_file(), on.told
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
async def test_runs_writes_its_table_and_a_page_beside_what_is_there(store: Path) -> None:
    async with walk(Workbench(store)) as on:
        await on.until(lambda: len(on.view.runs) == 2)
        path = await export(on, "t")
        assert path == Path.cwd() / "runs.csv"
        with StoreReader(store) as reader:
            runs = reader.runs()
        assert [row["name"] for row in rows_of(path)] == ["otter-2", "otter-1"]
        best = [float(row["best reward"]) for row in rows_of(path)]
        assert best == [run.metrics["reward"].best for run in runs]
        assert all(row["health"] for row in rows_of(path))
        path.write_text("mine", encoding="utf-8")
        assert (await export(on, "t")).name == "runs-2.csv"
        assert path.read_text(encoding="utf-8") == "mine"
        page = await export(on, "p")
        assert page.name == "otter-2.html"
        assert "Content-Security-Policy" in page.read_text(encoding="utf-8")


@pytest.mark.slow
async def test_watch_writes_the_chosen_chart_and_its_numbers(store: Path) -> None:
    pytest.importorskip("matplotlib")
    async with walk(workbench(store)) as on:
        await on.until(lambda: on.screen.snapshot.step == 4)
        chart = on.screen.query_one("#curves").chosen
        assert chart.keys[0] == "reward"
        rows = rows_of(await export(on, "n"))
        with StoreReader(store) as reader:
            stored = reader.metric_series(2, "reward")
        of_reward = [row for row in rows if row["name"] == chart.title]
        assert tuple(int(row["step"]) for row in of_reward) == stored.steps
        assert tuple(float(row["value"]) for row in of_reward) == stored.values
        # the average of the first two, debiased: (.1 x .9 x first + .1 x second) / (1 - .9^2)
        first, second = stored.values[:2]
        smoothed = float(of_reward[1]["smoothed"])
        assert smoothed == pytest.approx((0.09 * first + 0.1 * second) / 0.19)
        assert {row[end] for row in of_reward for end in ("low", "high")} == {""}
        drawn = (await export(on, "c")).read_text(encoding="utf-8")
        assert len(re.findall(r'<g id="reward ', drawn)) == len(chart.keys)


@pytest.mark.slow
async def test_rollouts_writes_the_answer_to_read_and_as_json(store: Path) -> None:
    async with walk(workbench(store)) as on:
        await on.press("4")
        await on.until(lambda: on.screen.view.loaded)
        rollout, group = on.view.rollout, on.view.group
        text = (await export(on, "t")).read_text(encoding="utf-8")
        assert group.prompt_text in text
        assert rollout.text in text
        path = await export(on, "j")
        assert path.name == "otter-2-step-4-1a.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        assert content["completion"] == rollout.text
        assert content["rewards"][0]["value"] == rollout.rewards[0].value
        assert "".join(token["text"] for token in content["token_numbers"]) == rollout.text
        assert set(content["token_numbers"][0]) == {"text", "id", "ref", "old", "new", "after"}


@pytest.mark.slow
async def test_the_lab_writes_both_settings_by_step_or_by_answer(store: Path) -> None:
    async with walk(workbench(store)) as on:
        await on.press("4")
        await on.until(lambda: on.screen.view.loaded)
        await on.press("v")
        await on.until(lambda: isinstance(on.screen, LabScreen) and not on.view.pending)
        await on.press("right")  # another beta
        await on.until(lambda: on.view.recipe != on.view.base and not on.view.pending)
        path = await export(on, "t")
        assert path.name == "otter-2-what-if.csv"
        rows = rows_of(path)
        assert [row["step"] for row in rows] == ["1", "2", "3", "4"] * 2
        name = name_of(on.view.recipe, on.view.base)
        assert [row["settings"] for row in rows] == ["the run"] * 4 + [name] * 4
        kl = [float(row["KL penalty"]) for row in rows]
        effects = [*on.view.curve(on.view.base).values(), *on.view.curve(on.view.recipe).values()]
        assert kl == [effect.measures[3] for effect in effects]
        assert kl[:4] != kl[4:]
        assert {row["name"] for row in rows_of(await export(on, "n"))} == {"the run", name}
        await on.press("t", "e")
        await on.until(lambda: on.told.endswith("otter-2-what-if-3.csv"))
        rows = rows_of(Path(on.told.removeprefix("Wrote ")))
        assert len(rows) == 2 * len(on.view.rollouts)
        before, after = (float(rows[i]["push"]) for i in (0, len(rows) // 2))
        assert before == on.view.outcomes[on.view.base].effect(0).push
        assert after == on.view.outcomes[on.view.recipe].effect(0).push


@pytest.mark.slow
async def test_compare_writes_each_of_its_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sweep_of_settings(tmp_path, betas=(0.04, 0.4), seeds=2)
    (tmp_path / "files").mkdir()
    monkeypatch.chdir(tmp_path / "files")
    async with walk(workbench(path)) as on:
        with StoreReader(path) as reader:
            runs = reader.runs(sort="created")
        await on.go(CompareRequested(tuple(run.id for run in runs)))
        await on.until(lambda: on.view.runs and on.view.charts.charts)
        for page in PAGES:
            on.screen.show_page(page)
            await on.until(lambda: on.view.page != "answers" or on.view.completions)
            rows = rows_of(await export(on, "t"))
            columns = [on.view.column_name(column) for column in on.view.columns]
            if page == "metrics":
                first = {row["metric"]: row for row in rows}["reward"]
                assert all(float(first[f"{name} low"]) <= float(first[name]) for name in columns)
            elif page == "settings":
                assert {row["setting"]: row for row in rows}["algorithm.beta"].keys() >= {*columns}
            elif page == "ranking":
                settings = on.view.comparison.rankings[0].settings
                assert [row["right"] for row in rows][:2] == [str(s.own.share) for s in settings]
            else:
                groups = on.view.completions.groups.values()
                answers = [r.text for group in groups if group for r in group.rollouts]
                assert [row["completion"] for row in rows] == answers


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["step", "tokens", "wall"])
async def test_the_chart_of_compare_has_the_axis_on_screen(store: Path, axis: str) -> None:
    async with walk(workbench(store)) as on:
        with StoreReader(store) as reader:
            runs = reader.runs(sort="created")
            await on.go(CompareRequested(tuple(run.id for run in runs)))
            await on.until(lambda: on.view.runs and on.view.charts.charts)
            await on.press(*["a"] * ["step", "tokens", "wall"].index(axis))
            await on.until(lambda: on.view.axis == axis and on.view.charts.charts)
            rows = rows_of(await export(on, "n"))
            ends = {"step": "step", "tokens": "tokens", "wall": "elapsed"}
            for run in runs:
                read = [row for row in rows if row["name"] == run.name]
                curve = curve_of(reader, [run], on.view.metric, on.view.smoothing)
                assert curve is not None
                assert [float(row["value"]) for row in read] == list(curve.recorded)
                assert float(read[-1][axis]) == pytest.approx(float(getattr(run, ends[axis])))


async def test_new_run_asks_for_the_name_of_its_settings(store: Path) -> None:
    async with walk(workbench(store)) as on:
        await on.press("2")
        await on.until(lambda: on.screen.mode == "new_run")
        await on.press("e")
        await on.see("─ save as ─")


async def test_nothing_is_written_from_an_empty_or_a_read_only_screen(tmp_path: Path) -> None:
    async with walk(Workbench(tmp_path / "none.db")) as on:
        await on.press("3", "e")
        await on.until(lambda: "nothing here to write" in on.told)
    async with walk(Workbench(tmp_path / "none.db", read_only=True)) as on:
        await on.press("e")
        await on.until(lambda: "read-only" in on.told)


async def test_a_figure_without_matplotlib_says_what_to_install(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    async with walk(workbench(store), (160, 40)) as on:
        await on.until(lambda: on.screen.snapshot.step == 4)
        await on.press("e", "c")
        await on.until(lambda: "pip install 'grpo-tui[plots]'" in on.told)
        assert list(Path.cwd().iterdir()) == []


def plain(text: str, name: str = "a.txt") -> Export:
    return Export(
        key="a",
        name="a",
        description="",
        file=name,
        write=lambda out: out.write_text(text, "utf-8"),
    )


def test_a_file_that_is_there_keeps_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").symlink_to("nowhere")  # a link is never followed
    assert [written(plain(text)).name for text in "bc"] == ["a-2.txt", "a-3.txt"]
    assert [path.read_text() for path in sorted(tmp_path.glob("a-*"))] == ["b", "c"]


def test_a_full_disk_is_a_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "small", "64k") as disk:
        fill(disk)
        monkeypatch.chdir(disk)
        with pytest.raises(ExportError, match=r"cannot write .*a\.txt: No space left"):
            written(plain("x" * 10_000))
        assert [path.name for path in disk.iterdir()] == ["ballast"]
        monkeypatch.chdir(tmp_path)


def test_a_folder_that_is_gone_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(ExportError, match=r"cannot write a\.txt: No such file"):
        written(plain("x"))


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("calm-otter", "calm-otter"),
        ("../../etc/passwd", "etc-passwd"),
        ("..", "run"),
        ("a\x1b]0;x\x07/b\udc80", "a--0-x--b"),
        ("-rf", "rf"),
        ("x" * 500, "x" * 60),
    ],
)
def test_a_hostile_name_stays_in_the_folder(name: str, stem: str) -> None:
    assert file_stem(name) == stem
