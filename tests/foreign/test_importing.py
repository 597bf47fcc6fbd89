"""A run of another trainer is imported once, goes on where it stopped, and is followed."""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grpo_engine import events as ev
from grpo_tui import record
from grpo_tui.app.cli.main import main
from grpo_tui.app.text.run_text import files_text
from grpo_tui.experiments.errors import ImportRefusedError
from grpo_tui.experiments.record.writer import RunWriter
from grpo_tui.foreign.importing import Imported, Options, import_runs
from tests.foreign.made import detail, events, names, texts, verl_step
from tests.patience import until

Import = Callable[..., Imported | None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def take(store: Path, folder: Path) -> Import:
    def take(path: Path = folder, **options: object) -> Imported | None:
        imported = import_runs(path, Options(store=store, **options))  # type: ignore[arg-type]
        return imported[0] if imported else None

    return take


def answers(*steps: int, letters: str = "abcd") -> list[str]:
    return [f"{letter} of step {step}" for step in steps for letter in letters]


def test_an_import_goes_on_where_it_stopped_and_never_doubles(
    take: Import, store: Path, folder: Path
) -> None:
    verl_step(folder, 1)
    verl_step(folder, 2)
    first = take(name="mine", task="sums")
    assert first is not None
    assert (first.name, first.steps) == ("mine", 2)
    assert take() is None
    verl_step(folder, 3)
    again = take()
    assert again is not None
    assert (again.id, again.steps) == (first.id, 1)
    assert texts(store) == answers(1, 2, 3)
    run = detail(store)
    assert (run.summary.status, run.summary.step, run.summary.task) == ("imported", 3, "sums")
    assert [attempt.from_step for attempt in run.attempts] == [0, 2]


def test_a_step_that_was_read_in_part_is_read_again(
    take: Import, store: Path, folder: Path
) -> None:
    verl_step(folder, 1)
    verl_step(folder, 2, "ab")
    take()
    verl_step(folder, 2, "abcd")
    take()
    assert texts(store) == answers(1, 2)
    assert names(store) == ["run"]


def test_a_step_whose_import_was_ended_in_the_middle_is_whole_after_the_next(
    take: Import, store: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its groups are in the store already, without the event that ends the step."""
    verl_step(folder, 1)
    verl_step(folder, 2)
    step = record.Run.step

    def ends(run: record.Run, number: int, groups: list[record.Group], **rest: object) -> None:
        if number == 2:
            run.groups(number, groups)
            raise KeyboardInterrupt
        step(run, number, groups, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(record.Run, "step", ends)
    with pytest.raises(KeyboardInterrupt):
        take()
    assert texts(store) == answers(1, 2)
    monkeypatch.undo()
    take()
    assert texts(store) == answers(1, 2)
    assert detail(store).summary.step == 2


def test_a_folder_that_was_moved_is_the_same_run_and_a_new_training_in_it_is_another(
    take: Import, store: Path, folder: Path, tmp_path: Path
) -> None:
    for step in (1, 2):
        verl_step(folder, step)
    take()
    moved = tmp_path / "moved"
    folder.rename(moved)
    verl_step(moved, 3)
    take(moved)
    assert (names(store), texts(store)) == (["run"], answers(1, 2, 3))
    assert detail(store).origin == f"verl, read from {moved}"
    shutil.rmtree(moved)
    verl_step(moved, 1, "xyzw")
    take(moved)
    assert names(store) == ["run", "moved"]
    assert texts(store, "moved") == answers(1, letters="xyzw")


def test_steps_that_were_deleted_stay_in_the_store_and_later_ones_follow(
    take: Import, store: Path, folder: Path
) -> None:
    for step in (1, 2):
        verl_step(folder, step)
    take()
    for step in (1, 2):
        (folder / f"{step}.jsonl").unlink()
    verl_step(folder, 3)
    take()
    assert (names(store), texts(store)) == (["run"], answers(1, 2, 3))


def test_two_folders_with_the_same_first_step_are_two_runs(
    take: Import, store: Path, folder: Path, tmp_path: Path
) -> None:
    """With one seed, runs of other settings begin with the same answers."""
    verl_step(folder, 1)
    verl_step(tmp_path / "b", 1)
    take()
    take(tmp_path / "b")
    assert names(store) == ["run", "b"]


def test_a_growing_folder_is_followed_to_the_interrupt(
    take: Import, store: Path, folder: Path
) -> None:
    folder.mkdir()
    lengths: list[int] = []
    messages: list[str] = []

    def moves() -> Iterator[None]:
        yield  # nothing yet
        verl_step(folder, 1)
        yield
        yield
        lengths.append(len(texts(store)))
        verl_step(folder, 2, cut=5)  # in the middle of its last line
        yield
        yield
        lengths.append(len(texts(store)))
        verl_step(folder, 2)
        yield
        verl_step(folder, 3, "ab")  # step 2 is at its end now
        yield
        lengths.append(len(texts(store)))
        verl_step(folder, 3)  # the writer had only paused
        yield
        lengths.append(len(texts(store)))
        assert detail(store).summary.status == "running"
        yield
        raise KeyboardInterrupt

    move = moves()
    run = take(follow=True, wait=lambda: next(move), progress=messages.append)
    assert run is not None
    assert lengths == [4, 4, 8, 8]
    assert texts(store) == answers(1, 2, 3)
    assert (run.steps, detail(store).summary.status) == (3, "imported")
    assert messages[0].startswith("waiting for the first step")


def test_a_run_that_another_process_follows_is_not_read_twice(take: Import, folder: Path) -> None:
    verl_step(folder, 1)

    def second() -> None:
        with pytest.raises(ImportRefusedError, match="is being imported as run by another"):
            take()
        raise KeyboardInterrupt

    waits = iter([lambda: None, second])
    take(follow=True, wait=lambda: next(waits)())


def test_a_damaged_line_ends_the_import_after_the_steps_before_it(
    take: Import, store: Path, folder: Path
) -> None:
    verl_step(folder, 1)
    path = verl_step(folder, 2, cut=5)
    verl_step(folder, 3)
    with pytest.raises(ImportRefusedError, match=r"2\.jsonl:4: the last line is cut; complete or"):
        take()
    assert texts(store) == answers(1)
    assert detail(store).summary.status == "imported"
    path.unlink()
    verl_step(folder, 2)
    take()
    assert texts(store) == answers(1, 2, 3)


def test_the_newest_step_is_left_out_while_its_last_line_is_cut(
    take: Import, store: Path, folder: Path
) -> None:
    messages: list[str] = []
    verl_step(folder, 1)
    verl_step(folder, 2, cut=1)  # only the line's end is missing: the object is whole
    verl_step(folder, 3, cut=9)
    take(progress=messages.append)
    assert texts(store) == answers(1, 2)
    assert any("step 3 is left out: " in text and "3.jsonl:4" in text for text in messages)


def test_a_store_that_cannot_be_written_ends_the_import_and_nothing_is_lost(
    take: Import, store: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verl_step(folder, 1)
    verl_step(folder, 2)
    write = RunWriter.write

    def fails(writer: RunWriter, items: list[object], limit: float) -> None:
        if any(getattr(item, "event").step == 2 for item in items):  # noqa: B009
            raise OSError(28, "No space left on device")
        write(writer, items, limit)  # type: ignore[arg-type]

    monkeypatch.setattr(RunWriter, "write", fails)
    monkeypatch.setattr(record, "CLOSE_S", 0.5)
    with pytest.raises(ImportRefusedError, match="step 2 is not in the store"):
        take()
    monkeypatch.undo()
    # The recorder of the first import would have ended with its process.
    until(lambda: all(thread.name != "recorder" for thread in threading.enumerate()))
    take()
    assert texts(store) == answers(1, 2)


def test_the_runs_page_says_what_was_recorded_and_what_would_record_the_rest(
    take: Import, store: Path, folder: Path
) -> None:
    verl_step(folder, 1)
    take()
    files = detail(store).files
    assert files is not None
    assert (files.format, files.path) == ("verl", str(folder))
    assert files.recorded == ("answers", "rewards", "reference solutions")
    assert "let the reward function return a dict" in files.missing["rewards by function"]
    labels = [label for label, _ in files_text(files)]
    assert labels == ["recorded", *["not recorded"] * 4]
    finished = [e for e in events(store) if isinstance(e, ev.StepFinished)]
    assert all(step.elapsed != step.elapsed for step in finished), "no time was recorded"


def test_a_time_that_no_file_has_is_not_shown_as_0(
    take: Import,
    store: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    verl_step(folder, 1)
    take()
    monkeypatch.setenv("GRPO_TUI_DB", str(store))
    assert main(["runs", "show", "@last"]) == 0
    shown = capsys.readouterr().out
    assert "elapsed" not in shown
    assert "not recorded: metrics: verl gives them to its loggers" in shown
