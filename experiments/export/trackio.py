"""A trackio project: a run's settings, its metrics, and each answer as a trace.

The database is written here, not by the package: that drops what it cannot keep, dates a step by
the export, and writes a file for each trace beside it. Opening it, trackio adds the other tables.
"""

import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grpo_tui.experiments.db.texts import seconds
from grpo_tui.experiments.errors import ExportError
from grpo_tui.experiments.export.files import require_folder, writing
from grpo_tui.experiments.export.json import plain
from grpo_tui.experiments.export.rows import finite_metrics, groups_of, metric_rows, turns_of
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.values import GroupView, RolloutView, RunSummary

PROJECT = "grpo-tui"
TABLES = {
    "metrics": """
        id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, timestamp TEXT NOT NULL,
        run_name TEXT NOT NULL, step INTEGER NOT NULL, metrics TEXT NOT NULL, log_id TEXT,
        space_id TEXT""",
    "configs": """
        id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, run_name TEXT NOT NULL,
        config TEXT NOT NULL, created_at TEXT NOT NULL, UNIQUE(run_id)""",
    "traces": """
        id TEXT PRIMARY KEY, run_id TEXT NOT NULL, timestamp TEXT NOT NULL,
        run_name TEXT NOT NULL, step INTEGER NOT NULL, key TEXT NOT NULL, trace_index INTEGER,
        messages TEXT NOT NULL, metadata TEXT NOT NULL, search_text TEXT NOT NULL, log_id TEXT,
        space_id TEXT, spans TEXT NOT NULL DEFAULT '[]'""",
}
RESERVED = ("project", "run", "timestamp", "step", "time", "metrics")  # trackio's own columns
KEYS = {"train": "rollouts", "eval": "rollouts/eval", "pinned": "rollouts/pinned"}


def export_trackio(reader: StoreReader, runs: Sequence[RunSummary], out: Path) -> tuple[int, int]:
    """Write runs into a project's database in the folder `out`; count their values and answers.

    A run is written completely or not at all, and replaces its earlier export.
    """
    require_folder(out)
    path = out / f"{PROJECT}.db"
    values = answers = 0
    try:
        with writing(path):
            out.mkdir(exist_ok=True)
            _refuse_others(path)
            with closing(sqlite3.connect(path, isolation_level=None)) as conn:
                conn.execute("PRAGMA trusted_schema = OFF")
                for run in runs:
                    with conn:
                        conn.execute("BEGIN IMMEDIATE")
                        times = dict[int, str]()
                        _clear(conn, run)
                        values += _write_metrics(conn, reader, run, times)
                        answers += _write_answers(conn, reader, run, times)
    except sqlite3.Error as error:
        raise ExportError(
            f"cannot write {path}: {error}; if an older trackio made it, open it with the newest "
            "once, or choose another folder"
        ) from error
    return values, answers


def _refuse_others(path: Path) -> None:
    """Refuse what is no file, and a database of another program, such as a store."""
    if not path.exists():
        return
    if path.is_file():
        with closing(sqlite3.connect(path)) as conn:
            names = {name for (name,) in conn.execute("SELECT name FROM sqlite_master")}
        if not names or "configs" in names:
            return
    raise ExportError(f"{path} is not trackio's; choose another folder")


def _clear(conn: sqlite3.Connection, run: RunSummary) -> None:
    """Make the tables, and remove what is there of a run."""
    for name, columns in TABLES.items():
        conn.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
        conn.execute(f"DELETE FROM {name} WHERE run_id = ?", [run.uid])


def _insert(conn: sqlite3.Connection, table: str, run: RunSummary, **values: Any) -> None:
    """Add a row of a run; it has the name that a run logged by the package has."""
    values |= {"run_id": run.uid, "run_name": f"{run.name}-{run.id}"}
    marks = ", ".join("?" * len(values))
    conn.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", [*values.values()])


def _write_metrics(
    conn: sqlite3.Connection, reader: StoreReader, run: RunSummary, times: dict[int, str]
) -> int:
    """Write the settings and metrics of a run, note the time of each step, and count the values."""
    began = _time(run.started_at or run.created_at)
    settings = {**reader.settings(run.key), "_Created": began}
    _insert(conn, "configs", run, config=_json(settings), created_at=began)
    count = 0
    for row in metric_rows(reader, run):
        values, step = finite_metrics(row), row["step"]
        if (tokens := values.pop("tokens", None)) is not None:
            values.setdefault("num_tokens", tokens)  # as TRL calls them
        times[step] = _time(row["at"]) if row["at"] else began
        named = {f"__{key}" if key in RESERVED else key: value for key, value in values.items()}
        _insert(conn, "metrics", run, step=step, timestamp=times[step], metrics=_json(named))
        count += len(values)
    return count


def _write_answers(
    conn: sqlite3.Connection, reader: StoreReader, run: RunSummary, times: Mapping[int, str]
) -> int:
    """Write every answer of a run as a trace, and count them."""
    began = _time(run.started_at or run.created_at)
    count = 0
    for group in groups_of(reader, run):
        key = KEYS[group.origin]
        for rollout in group.rollouts:
            uid = f"{run.uid}:{group.key}:{rollout.index}"
            messages, metadata = _json(messages_of(group, rollout)), _json(_scores(group, rollout))
            _insert(
                conn,
                "traces",
                run,
                id=uid,
                timestamp=times.get(group.step, began),
                step=group.step,
                key=key,
                trace_index=rollout.index,
                messages=messages,
                metadata=metadata,
                search_text=f"{uid} {key} {messages} {metadata}".lower(),
            )
            count += 1
    return count


def messages_of(group: GroupView, rollout: RolloutView) -> list[dict[str, str]]:
    """The prompt as the user's message, then the model's turns and the replies to them."""
    messages = [{"role": "user", "content": group.prompt_text}]
    for span, text in turns_of(rollout):
        role = "assistant" if span.kind == "model" else "tool"
        named = {"name": span.name} if span.name else {}
        messages.append({"role": role, **named, "content": text})
    return messages


def _scores(group: GroupView, rollout: RolloutView) -> dict[str, Any]:
    """The numbers of an answer under the names that TRL's traces have; unknown ones are absent."""
    values = {
        "reward": rollout.reward,
        "reward_std": group.reward_std,
        **{f"rewards/{item.name}": item.value for item in rollout.rewards},
        "advantage": rollout.advantage,
        "group_id": group.key,
        "completion_tokens": rollout.tokens,
        "finish": rollout.finish or None,
        "target": group.target or None,
        "example_key": group.example_key or None,
        **{f"sampling/{name}": value for name, value in group.sampling.items()},
        **{f"weights/{item.name}": item.weight for item in rollout.rewards},
        **{f"reasons/{item.name}": item.reason or None for item in rollout.rewards},
    }
    return {
        name: value
        for name, value in values.items()
        if value is not None and not (isinstance(value, float) and math.isnan(value))
    }


def _time(text: str) -> str:
    """A time as trackio writes it."""
    return datetime.fromtimestamp(seconds(text), UTC).isoformat()


def _json(value: Any) -> str:
    """JSON that trackio reads, which refuses lone surrogates."""
    text = json.dumps(plain(value), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
