"""Runs on real stores: the table, filters, marks, groups, writing, and the hint card."""

import asyncio
import re
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from grpo_engine import events as ev
from grpo_tui.app.feed.outcomes import outcomes_with_curves
from grpo_tui.app.tui import messages as msg
from grpo_tui.app.tui.dialogs.picker import Picker
from grpo_tui.app.tui.screens.runs import state
from grpo_tui.app.tui.screens.runs.dialogs import QueueScreen
from grpo_tui.app.tui.screens.runs.render import fitting
from grpo_tui.app.tui.screens.runs.screen import RunsTable
from grpo_tui.app.tui.screens.runs.state import RunsView
from grpo_tui.app.tui.store import writes
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.purge import purge_deleted
from grpo_tui.experiments.queue import RunQueue
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import start_run
from grpo_tui.experiments.store import ExperimentStore
from grpo_tui.experiments.values import RunSummary
from tests.app import frames
from tests.app.compared import sweep_of_rates, workbench
from tests.app.rest import until
from tests.app.script import algorithm, evaluation, started
from tests.app.stored import half_recorded, record, run_events
from tests.app.walk import Walk, walk
from tests.experiments.made import CONFIG
from tests.patience import PATIENCE


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "runs.db"
    for seed in range(3):
        record(
            path,
            run_events(steps=4, seed=seed),
            name=f"otter-{seed}",
            seed=seed,
            algorithm=algorithm(beta=0.04 if seed else 0.1),
        )
    return path


def is_told(on: Walk, text: str) -> bool:
    return text in on.text


async def ready(on: Walk) -> Any:
    screen = on.screen
    await on.pilot.pause()
    preview, selected = screen.view.preview, screen.view.selected
    assert screen.view.loaded
    assert selected is None or (preview and preview.detail.summary.key == selected.key)
    return screen


async def test_the_cursor_stays_where_it_was_moved_while_the_table_was_read(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with walk(workbench(store)) as on:
        screen = await ready(on)
        read, goes_on = screen.read, asyncio.Event()

        async def slow(name: str, *question: Any) -> Any:
            result = await read(name, *question)
            if name == "runs":
                await goes_on.wait()
            return result

        monkeypatch.setattr(screen, "read", slow)
        worker = screen.refresh_runs()
        await on.pilot.press("down")
        moved = screen.view.selected
        goes_on.set()
        await worker.wait()
        assert moved is not None
        assert screen.view.selected == moved
        assert moved.name == "otter-1"


async def test_the_sparkline_of_a_run_that_ended_since_has_its_last_steps(tmp_path: Path) -> None:
    recorder, record_rest = half_recorded(tmp_path / "runs.db")
    async with walk(workbench(tmp_path / "runs.db")) as on:
        screen = await ready(on)
        record_rest()
        recorder.close()
        await screen.refresh_runs().wait()
        await ready(on)
        reader = StoreReader(tmp_path / "runs.db")
        assert screen.view.outcomes == outcomes_with_curves(reader, screen.view.runs)
        reader.close()


async def test_the_preview_of_a_failed_run_says_once_what_went_wrong(tmp_path: Path) -> None:
    failed = ev.RunFailed(step=0, error="DataError", message="no column is named 'answer'")
    events: list[ev.Event] = [started(), failed]
    record(tmp_path / "runs.db", iter(events), name="sour-crab")
    async with walk(workbench(tmp_path / "runs.db"), (160, 48)) as on:
        await ready(on)
        text = on.text
        assert "DataError: no column" in text
        assert "ended:" not in text
        assert re.search(r"last seen [0-9-]+ [0-9:]+ UTC", text)
        assert "no checkpoint: it would start over" in text
        assert "from there" not in text
        assert re.search(r"\d\d:\d\d:\d\d step 0: no column", text)
        assert not re.search(r"T\d\d:", text)


async def test_a_store_of_many_runs_shows_the_first_and_a_search_finds_the_others(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MAX_RUNS", 2)
    async with walk(workbench(store)) as on:
        screen = await ready(on)
        assert [run.name for run in screen.view.runs] == ["otter-2", "otter-1"]
        assert "the first 2 runs, / finds others" in on.text
        await on.press("slash", *"otter-0", "enter")
        await on.until(lambda: [run.name for run in screen.view.runs] == ["otter-0"])
        assert "finds others" not in on.text


async def test_a_filter_that_is_wrong_says_so(store: Path) -> None:
    async with walk(workbench(store)) as on:
        screen = await ready(on)
        screen.find("(")
        await on.pilot.pause()
        assert "filter" in screen.view.problem
        frames.check(on.app)


async def test_marked_runs_go_to_compare_with_the_oldest_first(store: Path) -> None:
    asked: list[msg.CompareRequested] = []

    def hook(message: object) -> None:
        if isinstance(message, msg.CompareRequested):
            asked.append(message)

    async with walk(workbench(store), message_hook=hook) as on:
        screen = await ready(on)
        newest, older, *_ = screen.view.runs
        await on.press("space", "down", "space", "d")
        assert asked[0].refs == (older.id, newest.id)


async def test_escape_clears_the_marks_once_the_search_is_closed(store: Path) -> None:
    async with walk(workbench(store)) as on:
        screen = await ready(on)
        await on.press("space")
        assert (len(screen.view.marked), screen.view.cursor) == (1, 0)
        await on.press("down", "space", "slash", "o", "escape")
        assert len(screen.view.marked) == 2
        await on.press("escape")
        assert screen.view.marked == frozenset()
        assert on.screen is screen


@pytest.mark.slow
async def test_sweeps_of_one_name_are_groups_of_their_own(tmp_path: Path) -> None:
    async with walk(workbench(sweep_of_rates(tmp_path))) as on:
        screen = await ready(on)
        screen._relist(group="sweep")
        await on.until(lambda: "no sweep  (1)" in on.text)
        text = on.text
        assert "sweep rates  (6)" in text
        assert "sweep rates  (2)" in text
        # both are marked and folded alone
        await on.press("home", "down", "down", "space")
        assert {run.name for run in screen.view.selection} == {f"rates-{n}" for n in range(1, 7)}
        await on.press("enter")
        await on.until(lambda: "▸ sweep rates  (6)" in on.text)
        assert "▾ sweep rates  (2)" in on.text


async def test_tags_are_a_column_and_found_by_a_search(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    for name in ("otter", "heron"):
        record(path, run_events(steps=1), name=name)
    made = ExperimentStore(path)
    made.tag(1, add=["keep-this"])
    made.change(2, note="slow on battery")
    made.close()
    async with walk(workbench(path)) as on:
        screen = await ready(on)
        lines = on.lines
        assert any("tags" in line and "steps" in line for line in lines)
        assert any("otter" in line and "keep-this" in line for line in lines)
        for words, found in (("keep", "otter"), ("battery", "heron"), ("hero", "heron")):
            screen.find(words)
            await ready(on)
            assert [run.name for run in screen.view.runs] == [found]


@pytest.mark.parametrize("key", ["a", "d"])
async def test_what_is_archived_or_deleted_is_hidden_and_undo_brings_it_back_under_the_cursor(
    tmp_path: Path, key: str
) -> None:
    path = tmp_path / "runs.db"
    for name in ("old-fox", "new-fox"):
        record(path, run_events(steps=1), name=name)
    async with walk(workbench(path)) as on:
        screen = await ready(on)
        await on.press("x", "escape")  # nothing is removed before the question is answered
        await ready(on)
        assert len(screen.view.runs) == 2
        await on.press("x")
        await on.press(key)
        await on.until(lambda: [run.name for run in screen.view.runs] == ["old-fox"])
        assert on.app.has_deleted is (key == "d")
        await on.press("u")
        await on.until(lambda: len(screen.view.runs) == 2)
        assert not on.app.has_deleted
        assert screen.view.selected.name == "new-fox"


@pytest.mark.slow
async def test_a_deleted_run_is_no_longer_on_watch_nor_on_rollouts(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    record(path, run_events(steps=1), name="otter")
    async with walk(workbench(path)) as on:
        screen = await ready(on)
        await on.press("enter", "4")
        await on.until(lambda: "answer a" in on.text)
        await on.press("1", "x")
        await on.press("d")
        await on.until(lambda: screen.view.runs == ())
        assert on.app.session is None
        await on.press("4")
        await on.until(lambda: "No run is open" in on.text)
        assert "answer a" not in on.text


async def test_what_an_earlier_workbench_deleted_comes_back_unless_it_left_cleanly(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.db"
    record(path, run_events(steps=1), name="calm-otter")
    with ExperimentStore(path) as opened:
        opened.delete([opened.key_of("calm-otter")])
    async with walk(workbench(path)) as on:
        screen = await ready(on)
        assert "1 deleted (u)" in on.text
        await on.press("u")
        await on.until(lambda: [run.name for run in screen.view.runs] == ["calm-otter"])
        await on.press("x")
        await on.press("d")
        await on.until(lambda: screen.view.runs == ())
    on.app.finish_run()
    with ExperimentStore(path) as opened:
        assert purge_deleted(opened) == (0, [])
        assert opened.restore() == ()


async def test_an_active_run_is_not_removed(tmp_path: Path) -> None:
    handle = start_run(tmp_path / "runs.db", CONFIG, name="busy-otter")
    handle.put(started())
    assert handle.flush(PATIENCE)
    async with walk(workbench(tmp_path / "runs.db")) as on:
        screen = await ready(on)
        await on.press("x")
        assert on.screen is screen
        assert "busy-otter has not ended yet" in on.told
    handle.close()


async def test_an_undo_at_once_comes_after_the_archiving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.db"
    record(path, run_events(steps=1))
    set_archived = writes.set_archived

    def slow_to_archive(store: ExperimentStore, runs: Sequence[RunSummary], archived: bool) -> str:
        time.sleep(0.2 if archived else 0)
        return set_archived(store, runs, archived)

    monkeypatch.setattr(writes, "set_archived", slow_to_archive)
    async with walk(workbench(path)) as on:
        screen = await ready(on)
        screen._remove(screen.view.selection, "archive")
        screen.action_undo()
        await on.pilot.pause()
        assert len(screen.view.runs) == 1


async def test_a_change_of_the_queue_is_seen_without_waiting_for_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.db"
    with ExperimentStore(path) as opened:
        RunQueue(opened).add(CONFIG, name="otter")
    monkeypatch.setattr(QueueScreen, "on_mount", lambda self: self.refresh_queue())  # once
    async with walk(workbench(path)) as on:
        await ready(on)
        await on.press("Q")
        await on.until(lambda: "queued" in "\n".join(on.lines))
        await on.press("x")
        await on.until(lambda: "cancelled" in "\n".join(on.lines))


async def test_a_change_of_the_queue_that_the_store_refuses_is_told_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.db"
    with ExperimentStore(path) as opened:
        RunQueue(opened).add(CONFIG, name="otter")

    def refused(*_: object) -> None:
        raise StoreError("the store is busy")

    monkeypatch.setattr(RunQueue, "finish", refused)
    async with walk(workbench(path), notifications=True) as on:
        await ready(on)
        await on.press("Q")
        await on.until(lambda: "queued" in "\n".join(on.lines))
        await on.press("x")
        await on.until(lambda: "the store is busy" in "\n".join(on.lines))


async def test_name_tags_and_note_are_one_dialog(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    record(path, run_events(steps=1), name="otter")
    with ExperimentStore(path) as opened:
        opened.tag(1, add=["old", "kept"])
    async with walk(workbench(path)) as on:
        await ready(on)
        await on.press("i", *"heron", "tab", *" good -old", "tab", *"slow", "enter")
        await on.until(lambda: on.app.notices and on.told == "otter changed.")
    with StoreReader(path) as reader:
        run = reader.resolve("@last")
    assert (run.name, run.tags, run.note) == ("heron", ("good", "kept"), "slow")


async def test_tags_of_marked_runs_are_changed_together(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    for name, tags in (("otter", ["a", "b"]), ("heron", ["b", "c"])):
        record(path, run_events(steps=1), name=name)
        with ExperimentStore(path) as opened:
            opened.tag(opened.key_of(name), add=tags)
    async with walk(workbench(path)) as on:
        await ready(on)
        await on.press("space", "down", "space", "i", "backspace", *"both", "enter")
        await on.until(lambda: on.app.notices and on.told == "2 runs changed.")
    with StoreReader(path) as reader:
        found = {run.name: run.tags for run in reader.runs()}
    assert found == {"otter": ("a", "both"), "heron": ("both", "c")}


async def test_a_read_only_view_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    record(path, run_events(steps=1))
    async with walk(workbench(path, read_only=True)) as on:
        screen = await ready(on)
        await on.press("x")
        assert len(screen.view.runs) == 1


# What the list of runs shows, the first to be cut last.
IN_ORDER = (
    *("name", "health", "held-out", "steps", "kl", "beta", "age", "curve", "recipe", "KL", "task"),
    *("model", "best reward"),
)


@pytest.mark.parametrize("width", range(12, 220, 7))
@pytest.mark.parametrize("sort", ["-created", "-kl", "reward"])
def test_the_columns_that_fit_are_the_first_of_a_list_whatever_the_order(
    width: int, sort: str
) -> None:
    view = RunsView(columns=("last kl as kl",), axes=("algorithm.beta",), sort=sort)
    columns = fitting(width, view)
    assert 2 + sum(column.width + 1 for column in columns) <= width
    titles = [column.title for column in columns]
    assert titles == [title for title in IN_ORDER if title in titles]
    first = titles[:4]
    assert tuple(first) == IN_ORDER[: len(first)]
    assert len(first) == 4 or width < 60


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_worker_of_the_queue_is_a_process_of_its_own(
    read_only: bool, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(
        "grpo_engine.platform.spawn.subprocess.Popen", lambda words, **_: started.append(words)
    )
    async with walk(workbench(store, read_only=read_only)) as on:
        await ready(on)
        await on.press("Q", "enter")
    wanted = ["-P", "-m", "grpo_tui", "sweep", "--queue", "--db", str(store)]
    assert [words[1:] for words in started] == ([] if read_only else [wanted])


async def test_only_a_view_that_may_write_saves_a_picture(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for read_only in (True, False):
        async with walk(workbench(store, read_only=read_only), notifications=True) as on:
            screen = await ready(on)
            screen.action_picture()
            told = "This view is read-only." if read_only else "Saved"
            await until(on.app, partial(is_told, on, told))
            pictures = [path.read_text() for path in tmp_path.glob("*.svg")]
            assert len(pictures) == (not read_only)
            assert all("otter" in text for text in pictures)


@pytest.mark.slow
async def test_columns_are_picked_from_settings_and_metrics_and_remembered(store: Path) -> None:
    async with walk(workbench(store), (160, 48)) as on:
        screen = await ready(on)
        await on.press("m")
        await on.until(lambda: isinstance(on.screen, Picker))
        await on.press(*"learning_rate", "enter")
        await on.until(lambda: screen.view.columns == ("=optimizer.learning_rate",))
        await on.until(lambda: " learning_rate " in on.lines[2])
        assert on.app.preferences.texts("runs.columns") == ["=optimizer.learning_rate"]
        await on.press("m")
        await on.until(lambda: isinstance(on.screen, Picker))
        await on.press("space", "enter")
        await on.until(lambda: screen.view.columns == ())


async def test_settings_that_differ_among_the_listed_runs_are_columns(tmp_path: Path) -> None:
    async with walk(workbench(sweep_of_rates(tmp_path))) as on:
        screen = await ready(on)
        await on.until(lambda: "learning_rate" in on.lines[2])
        row = next(line for line in on.lines if "rates-1" in line)
        assert "1e−5" in row or ".1" in row
        await on.press("slash", *"lone-wolf", "enter")
        await on.until(lambda: len(screen.view.runs) == 1)
        await on.until(lambda: "learning_rate" not in on.lines[2])


async def test_a_click_on_a_title_sorts_and_a_second_one_reverses(store: Path) -> None:
    async with walk(workbench(store)) as on:
        screen = await ready(on)
        title = on.lines[2].index("held-out")
        for sort in ("-last eval/accuracy", "last eval/accuracy", "-last eval/accuracy"):
            await on.pilot.click(RunsTable, offset=(title, 1))
            assert screen.view.sort == sort
            await on.until(lambda: len(re.findall("[▾▴]", on.lines[2])) == 1)


@pytest.mark.parametrize(("key", "mode"), [("3", "watch"), ("4", "rollouts")])
async def test_the_selected_run_opens_with_the_keys_of_its_screens(
    store: Path, key: str, mode: str
) -> None:
    async with walk(workbench(store)) as on:
        await ready(on)
        await on.press("down", key)
        await on.until(lambda: on.app.current_mode == mode)
        await on.until(lambda: "otter-1" in on.text)


@pytest.mark.parametrize(
    ("by", "heading"), [("seed", "▾ seed 0  (1)"), ("algorithm.beta", "▾ algorithm.beta 0.04  (2)")]
)
async def test_groups_are_headed_by_their_value_also_where_that_is_0(
    store: Path, by: str, heading: str
) -> None:
    async with walk(workbench(store)) as on:
        await ready(on)
        await on.press("g")
        await on.until(lambda: isinstance(on.screen, Picker))
        await on.press(*by, "enter")
        await on.until(lambda: heading in on.text)
        assert f"by {by} · 3 runs" in on.text


async def test_the_preview_of_a_group_has_its_runs_the_best_first(tmp_path: Path) -> None:
    for name, accuracy in (("fair", 0.5), ("good", 0.75), ("poor", 0.25)):
        after = evaluation(0, accuracy, "after")
        events: list[ev.Event] = [started(), after]
        record(tmp_path / "runs.db", iter(events), name=name)
    async with walk(workbench(tmp_path / "runs.db")) as on:
        screen = await ready(on)
        screen._relist(group="recipe")
        await on.press("home")
        await on.see("─ 3 runs ─", "highest first", "⏎ folds the group")
        preview = "".join(line.rpartition("││")[2] for line in on.lines)
        assert re.search("good +75%.*fair +50%.*poor +25%", preview)


@pytest.mark.slow
async def test_the_key_of_rollouts_opens_the_run_under_the_cursor_after_another(
    store: Path,
) -> None:
    async with walk(workbench(store)) as on:
        await ready(on)
        await on.press("down", "enter")
        await on.until(lambda: "▌3 Watch▐" in on.text and "otter-1" in on.text)
        await on.press("1")
        await on.until(lambda: on.screen.mode == "runs" and on.screen.ready)
        watched = on.view.selected.title
        await on.press("home")
        name = on.view.selected.title
        assert name != watched
        await on.press("4")
        await on.until(lambda: on.screen.mode == "rollouts" and on.view.loaded is not None)
        assert on.view.step.run.name == name
        # the way back to an answer that was left for the list of runs stays as it was
        await on.press("<")
        shown = on.view.cursor
        await on.press("1")
        await on.until(lambda: on.screen.mode == "runs" and on.screen.ready)
        await on.press("4")
        await on.until(lambda: on.screen.mode == "rollouts")
        assert on.view.cursor == shown
