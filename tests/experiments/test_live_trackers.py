"""Live trackers: a process each, which may die at any time without the run noticing."""

import os
import re
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from grpo_engine import events as ev
from grpo_tui.experiments.db.paths import TRACKERS
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import Recorder, resume_run, start_run
from grpo_tui.experiments.recorded_events import events_after
from tests.experiments.made import config, ended, put_all, started, step_events
from tests.experiments.test_export import records
from tests.patience import PATIENCE, until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    return tmp_path / "store.db"


def followers(of: int = 0) -> list[psutil.Process]:
    """The trackers' processes, which are children of this process or of another."""
    children = psutil.Process(of or os.getpid()).children()
    found = []
    for child in children:
        with suppress(psutil.Error):  # it has just ended
            if "grpo_tui.experiments.export.follow" in child.cmdline():
                found.append(child)
    return found


def tracked(path: Path, tracker: str) -> Recorder:
    return start_run(path, config(record={"tokens": "none", "trackers": [tracker]}))


def logged(store: Path) -> set[int]:
    """The steps in the event files of TensorBoard."""
    found = set()
    for file in (store.parent / TRACKERS).rglob("events.out.tfevents.*"):
        # Event: wall_time is field 1 (9 bytes), then step, field 2: 0x10 and one byte below 128
        found |= {message[10] for message in records(file.read_bytes()) if message[9] == 0x10}
    return found


def notes(handle: Recorder) -> list[str]:
    with StoreReader(handle.path) as reader:
        facts = [fact.event for fact in events_after(reader, handle.key)]
    return [event.text for event in facts if isinstance(event, ev.NoteWritten)]


def test_a_step_is_logged_once_the_next_has_values_and_the_last_when_the_run_ends(
    path: Path,
) -> None:
    handle = tracked(path, "tensorboard")
    put_all(handle, started(), *step_events(1), *step_events(2), *step_events(3))
    until(lambda: logged(path) == {1, 2}, lambda: logged(path))
    put_all(handle, ended(3))
    handle.close()
    until(lambda: not followers())
    assert logged(path) == {1, 2, 3}


@pytest.mark.slow
def test_a_resumed_run_logs_the_steps_after_its_checkpoint(path: Path) -> None:
    handle = tracked(path, "tensorboard")
    put_all(handle, started(), *step_events(1), *step_events(2), ended(2))
    handle.close()
    until(lambda: not followers())
    for file in (path.parent / TRACKERS).rglob("events.out.tfevents.*"):
        file.unlink()
    again = resume_run(path, handle.key, from_step=1)
    put_all(again, started(1), *step_events(2), *step_events(3), ended(3))
    again.close()
    until(lambda: not followers())
    assert logged(path) == {2, 3}


@pytest.mark.slow
@pytest.mark.parametrize("tracker", ["tensorboard", "wandb", "trackio"])
def test_a_tracker_killed_half_way_is_told_once_and_the_run_does_not_notice(
    path: Path, tracker: str
) -> None:
    if tracker != "tensorboard" and find_spec(tracker) is None:
        pytest.skip(f"{tracker} is not installed")
    handle = tracked(path, tracker)
    put_all(handle, started(), *step_events(1), *step_events(2))
    (process,) = until(followers)
    folder = path.parent
    until(
        lambda: [
            *folder.rglob("*tfevents*"),
            *folder.rglob("*.wandb"),
            *folder.glob("trackio/*.db"),
        ]
    )
    process.kill()
    until(lambda: notes(handle))
    put_all(handle, *step_events(3), *step_events(4), ended(4))
    handle.close()
    (said,) = notes(handle)
    assert said == (
        f"{tracker} ended with status -9: no message; the run continues, and "
        f"`grpo-tui export {handle.id} --format {tracker} --out FOLDER` writes all of it"
    )
    with StoreReader(path) as reader:
        assert reader.runs()[0].status == "completed"
        assert reader.metric_series(handle.key, "reward").steps == (1, 2, 3, 4)


@pytest.mark.slow
def test_a_tracker_that_is_not_installed_says_what_to_install(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "wandb.py").write_text("raise ImportError('not installed')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "hidden"))
    handle = tracked(path, "wandb")
    put_all(handle, started(), *step_events(1))
    (said,) = until(lambda: notes(handle))
    assert re.match("wandb ended with status 1: .* pip install wandb; the run continues", said)
    handle.close()


@pytest.mark.slow
def test_a_tracker_ends_when_the_process_of_its_run_is_gone(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    code = (
        "import sys; from pathlib import Path;"
        "from grpo_tui.experiments.record.recorder import start_run;"
        "from tests.experiments.made import *;"
        "tree = config(record={'trackers': ['tensorboard']});"
        "handle = start_run(Path(sys.argv[1]), tree);"
        "put_all(handle, started(), *step_events(1)); handle.flush(60); print('on', flush=True);"
        "input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, store],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"on\n"
        (process,) = until(lambda: followers(run.pid))
        until(lambda: list((store.parent / TRACKERS).rglob("*tfevents*")))
        run.kill()
    process.wait(PATIENCE)
    assert logged(store) == {1}
