"""What Watch writes to files: the stored values, even if its curves are coarser."""

import json
from pathlib import Path

import pytest

from grpo_tui.app.feed.session import Session
from grpo_tui.app.feed.stored import StoreFeed
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.preferences import Preferences
from grpo_tui.app.tui.screens.watch.texts import as_csv, as_json, as_markdown
from grpo_tui.experiments.export.csv import csv_string
from grpo_tui.experiments.export.files import header_for
from grpo_tui.experiments.export.rows import metric_rows
from grpo_tui.experiments.reader import StoreReader
from tests.app.script import ScriptFeed, hostile_group, started
from tests.app.stored import record, run_events
from tests.patience import PATIENCE

STEPS = 8


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("watch") / "runs.db"
    record(path, run_events(steps=STEPS))
    return path


def feed_of(store: Path) -> StoreFeed:
    feed = StoreFeed(store, "@last")
    assert feed.caught_up.wait(PATIENCE)
    return feed


def test_exports_have_the_stored_values(store: Path) -> None:
    snapshot = Session(feed_of(store)).pull()
    reader = StoreReader(store)
    written = as_csv(reader, 1, snapshot)
    runs = reader.runs()
    assert written == csv_string(header_for("metrics", reader, runs), metric_rows(reader, runs))
    stored = list(reader.metric_series(1, "reward").values)
    tree = json.loads(as_json(reader, 1, snapshot))
    reader.close()
    assert [row["reward"] for row in tree["metrics"] if row["step"]] == stored
    assert [prompt["prompt"] for prompt in tree["prompts"]] == [1, 2, 3, 4]


async def test_the_export_key_writes_what_the_command_writes(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = Workbench(store, feed=feed_of(store), mode="watch", preferences=Preferences())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        app.frame_now()
        await pilot.press("e", "c")
        await pilot.pause()
    reader = StoreReader(store)
    runs = reader.runs()
    wanted = csv_string(header_for("metrics", reader, runs), metric_rows(reader, runs))
    reader.close()
    assert next(tmp_path.glob("*.csv")).read_bytes().decode() == wanted


def test_hostile_answers_do_no_harm_in_markdown() -> None:
    snapshot = Session(ScriptFeed([started(), hostile_group(1)])).pull()
    text = as_markdown(snapshot)
    assert not any(sign in text for sign in ("\x1b", "\x07", "\x00", "\u202e"))
    rows = [line for line in text.splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert len(rows) == sum(len(group.rollouts) for group in snapshot.groups) > 0
