"""The trackio export: every number is in the project's database, which trackio itself opens."""

import json
import math
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from grpo_engine import events as ev
from grpo_tui.experiments.errors import ExportError
from grpo_tui.experiments.export.trackio import PROJECT, TABLES, export_trackio
from grpo_tui.experiments.reader import StoreReader
from tests.experiments.made import CONFIG, ended, evaluated, finished, group, recorded, started

THEIRS = Path(__file__).parents[1] / "foreign" / "trackio.sql"
DIALOGUE = ev.Rollout(
    index=1,
    ids=(1, 2, 3),
    text="let me add it is 4",
    finish="length",
    rewards=(
        ev.RewardValue(name="accuracy", value=0.5, weight=2.0, reason="as \ud800 computed"),
        ev.RewardValue(name="absent", value=None, weight=1.0),
    ),
    reward=1.0,
    advantage=None,
    sampler_logprobs=(),
    spans=(
        ev.Span(start=0, length=1, kind="model", turn=0, chars=6),
        ev.Span(start=1, length=1, kind="environment", turn=0, chars=5, name="calculator"),
        ev.Span(start=2, length=1, kind="model", turn=1, chars=7),
    ),
)


def two(index: int = 0, origin: ev.Origin = "train") -> ev.Group:
    """A group of a plain answer and a dialogue."""
    plain = group(index, ("4",), origin=origin, prompt="2 + 2 = ?")
    return ev.Group(
        **{name: getattr(plain, name) for name in ev.Group.__dataclass_fields__}
        | {"rollouts": (plain.rollouts[0], DIALOGUE)}
    )


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[StoreReader]:
    path = tmp_path / "store.db"
    for name in ("one", "two"):
        recorded(
            path,
            started(),
            ev.GroupScored(step=0, group=two(origin="eval")),
            evaluated(0),
            *(ev.GroupScored(step=1, group=two(index)) for index in range(2)),
            finished(1, reward=math.nan, time=3.5),
            ev.GroupScored(step=2, group=two(origin="pinned")),
            finished(2, reward=0.75),
            ended(2),
            name=name,
        )
    with StoreReader(path) as made:
        yield made


def written(out: Path, table: str, *columns: str) -> list[Any]:
    with closing(sqlite3.connect(out / f"{PROJECT}.db")) as conn:
        return conn.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY rowid").fetchall()


def test_the_tables_are_those_of_trackio() -> None:
    ours, theirs = sqlite3.connect(":memory:"), sqlite3.connect(":memory:")
    theirs.executescript(THEIRS.read_text("utf-8"))
    for name, columns in TABLES.items():
        ours.execute(f"CREATE TABLE {name} ({columns})")
        table, unique = (
            [conn.execute(f"PRAGMA {pragma}({name})").fetchall() for conn in (ours, theirs)]
            for pragma in ("table_info", "index_list")
        )
        assert table[0] == table[1]
        assert table[0]
        automatic = [[row[1] for row in rows if row[3] != "c"] for rows in unique]
        assert automatic[0] == automatic[1]


def test_an_answer_is_a_trace_with_its_messages_and_numbers(
    reader: StoreReader, tmp_path: Path
) -> None:
    (run,) = (run for run in reader.runs() if run.name == "one")
    _, answers = export_trackio(reader, [run], tmp_path / "out")
    rows = written(tmp_path / "out", "traces", "step", "key", "trace_index", "messages", "metadata")
    assert [row[:3] for row in rows] == [
        (0, "rollouts/eval", 0),
        (0, "rollouts/eval", 1),
        *[(1, "rollouts", 0), (1, "rollouts", 1)] * 2,
        (2, "rollouts/pinned", 0),
        (2, "rollouts/pinned", 1),
    ]
    assert answers == len(rows) == 8
    prompt = {"role": "user", "content": "2 + 2 = ?"}
    assert json.loads(rows[2][3]) == [prompt, {"role": "assistant", "content": "4"}]
    assert json.loads(rows[3][3]) == [
        prompt,
        {"role": "assistant", "content": "let me"},
        {"role": "tool", "name": "calculator", "content": " add "},
        {"role": "assistant", "content": "it is 4"},
    ]
    numbers, dialogue, other = (json.loads(rows[index][4]) for index in (2, 3, 4))
    assert numbers.pop("group_id") == dialogue.pop("group_id") != other["group_id"]
    common = {"example_key": "example-0", "target": "2", "sampling/temperature": 1.0}
    assert numbers == common | {
        "reward": 1.0,
        "reward_std": 0.5,
        "rewards/accuracy": 1.0,
        "weights/accuracy": 1.0,
        "reasons/accuracy": "as computed",
        "advantage": 0.5,
        "completion_tokens": 3,
        "finish": "stop",
    }
    # No advantage and no score by `absent`: the keys are absent, not null. trackio refuses half of
    # a surrogate pair, so it is replaced.
    assert dialogue == common | {
        "reward": 1.0,
        "reward_std": 0.5,
        "rewards/accuracy": 0.5,
        "weights/accuracy": 2.0,
        "weights/absent": 1.0,
        "reasons/accuracy": "as \ufffd\ufffd\ufffd computed",
        "completion_tokens": 2,
        "finish": "length",
    }


def test_metrics_and_settings_are_there_and_what_is_not_finite_is_absent(
    reader: StoreReader, tmp_path: Path
) -> None:
    (run,) = (run for run in reader.runs() if run.name == "one")
    values, _ = export_trackio(reader, [run], tmp_path / "out")
    rows = [
        (step, json.loads(text))
        for step, text in written(tmp_path / "out", "metrics", "step", "metrics")
    ]
    assert [step for step, _ in rows] == [0, 1, 2]
    # `time` is a column of trackio, which renames such a metric.
    assert rows[1][1] == {"kl": 0.01, "__time": 3.5, "num_tokens": 100.0}
    assert rows[2][1] == {"reward": 0.75, "kl": 0.02, "num_tokens": 200.0}
    assert values == sum(len(metrics) for _, metrics in rows)
    ((uid, name, text),) = written(tmp_path / "out", "configs", "run_id", "run_name", "config")
    assert (uid, name) == (run.uid, f"one-{run.id}")
    config = json.loads(text)
    assert config["algorithm.beta"] == CONFIG["algorithm"]["beta"]  # type: ignore[index]
    assert config["_Created"] == str(run.started_at).replace("Z", "000+00:00")


def test_a_second_export_replaces_the_first_and_leaves_other_runs(
    reader: StoreReader, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with closing(sqlite3.connect(out / f"{PROJECT}.db")) as conn:
        conn.executescript(THEIRS.read_text("utf-8"))
    before = len(written(out, "traces", "id"))
    counts = [export_trackio(reader, reader.runs(), out) for _ in range(2)]
    assert counts[0] == counts[1]
    assert len(written(out, "traces", "id")) == before + counts[0][1] == before + 16
    assert len(written(out, "configs", "id")) == 3 + 2
    assert sum(len(json.loads(row[0])) for row in written(out, "metrics", "metrics")) > counts[0][0]


def test_a_run_that_cannot_be_read_leaves_its_earlier_export(
    reader: StoreReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    export_trackio(reader, reader.runs(), out)
    before = (out / f"{PROJECT}.db").read_bytes()

    def broken(*_: Any) -> Iterator[Any]:
        raise ExportError("half way")

    monkeypatch.setattr("grpo_tui.experiments.export.trackio.groups_of", broken)
    with pytest.raises(ExportError, match="half way"):
        export_trackio(reader, reader.runs(), out)
    assert (out / f"{PROJECT}.db").read_bytes() == before


def test_a_store_or_another_database_is_not_written_into(
    reader: StoreReader, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / f"{PROJECT}.db").write_bytes(reader.path.read_bytes())
    with pytest.raises(ExportError, match=r"is not trackio's; choose another folder"):
        export_trackio(reader, reader.runs(), out)
    assert (out / f"{PROJECT}.db").read_bytes() == reader.path.read_bytes()
    # As trackio before 0.24 made it, without the runs' ids.
    (out / f"{PROJECT}.db").unlink()
    with closing(sqlite3.connect(out / f"{PROJECT}.db")) as conn:
        conn.execute("CREATE TABLE configs (id INTEGER PRIMARY KEY, run_name TEXT, config TEXT)")
    with pytest.raises(ExportError, match="no such column: run_id; if an older trackio made it"):
        export_trackio(reader, reader.runs(), out)


@pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is not installed")
def test_trackio_opens_what_was_written(reader: StoreReader, tmp_path: Path) -> None:
    export_trackio(reader, reader.runs(), tmp_path / "out")
    run = reader.runs()[0]
    code = f"""
import json
from trackio.sqlite_storage import SQLiteStorage as storage
storage.migrate_all_projects()
name = "{run.name}-{run.id}"
traces = storage.get_traces("{PROJECT}", name, sort="step_asc", search="LET ME")
logs = storage.get_logs("{PROJECT}", name)
print(json.dumps([storage.get_projects(), len(storage.get_runs("{PROJECT}")), traces, logs]))
"""
    environment = os.environ | {"TRACKIO_DIR": str(tmp_path / "out")}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    projects, runs, traces, logs = json.loads(found.stdout)
    assert (projects, runs, len(traces)) == ([PROJECT], 2, 4)
    assert traces[0]["messages"][-1] == {"role": "assistant", "content": "it is 4"}
    assert [trace["metadata"]["rewards/accuracy"] for trace in traces] == [0.5] * 4
    assert [log["step"] for log in logs] == [0, 1, 2]
