"""Importing runs: from another store, and the completions that TRL logs."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from grpo_engine import events as ev
from grpo_tui.experiments.errors import ImportRefusedError
from grpo_tui.experiments.importing import import_files
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.recorded_events import events_after
from grpo_tui.experiments.search import search
from grpo_tui.experiments.store import ExperimentStore
from tests.experiments.made import evaluated, record_run

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def facts(path: Path, run: str) -> list[ev.Event]:
    with closing(StoreReader(path)) as reader:
        return [fact.event for fact in events_after(reader, reader.resolve(run).key, limit=10_000)]


def test_runs_of_another_store_are_taken_in_whole_and_once(tmp_path: Path) -> None:
    there, here = tmp_path / "other" / "s.db", tmp_path / "s.db"
    record_run(there, name="theirs", last=(evaluated(3),))
    record_run(here, name="theirs")
    store = ExperimentStore(here)
    ((short, _),) = import_files(store, [there])
    assert import_files(store, [there]) == []
    store.close()
    with closing(StoreReader(here)) as reader, closing(StoreReader(there)) as other:
        run, original = reader.resolve(short), other.resolve("theirs")
        assert (run.name, run.uid, run.status) == ("theirs-2", original.uid, "completed")
        assert run.created_at == original.created_at
        assert reader.settings(run.key) == other.settings(original.key)
        (attempt,), (theirs,) = reader.attempts(run.key), other.attempts(original.key)
        assert attempt == theirs
        view = reader.groups(run.key, 3)[0]
        tokens = reader.tokens(run.key, view.key)
        assert tokens is not None
        assert tokens.rows == other.tokens(original.key, other.groups(original.key, 3)[0].key).rows  # type: ignore[union-attr]
        assert len(list(search(reader, "yes", run=run.key))) == 6
    assert facts(here, short) == facts(there, "theirs")


def test_an_attempt_without_an_end_ends_in_the_import_at_its_last_sign_of_life(
    tmp_path: Path,
) -> None:
    there, here = tmp_path / "other" / "s.db", tmp_path / "s.db"
    record_run(there, name="theirs")
    with closing(sqlite3.connect(there)) as conn, conn:
        conn.execute("UPDATE attempt SET ended_at = NULL, heartbeat = '2026-01-02T03:04:05'")
    store = ExperimentStore(here)
    ((short, _),) = import_files(store, [there])
    store.close()
    with closing(StoreReader(here)) as reader:
        (attempt,) = reader.attempts(reader.resolve(short).key)
    assert attempt.ended_at == attempt.heartbeat == "2026-01-02T03:04:05"


def completions(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def trl_rows(step: int) -> list[dict[str, Any]]:
    chat = [{"role": "user", "content": "1 + 1?"}]
    return [
        {
            "step": step, "prompt": chat, "completion": [{"role": "assistant", "content": text}],
            "accuracy_reward": reward, "format_reward": float("nan"), "advantage": reward - 0.5,
        }
        for text, reward in (("two", 1.0), ("=3", 0.0))
    ]  # fmt: skip


def test_completions_of_trl_become_a_run_to_look_at(tmp_path: Path) -> None:
    folder = tmp_path / "my-trl-run"
    folder.mkdir()
    files = [completions(folder / f"completions_{n:05}.parquet", trl_rows(n)) for n in (1, 2)]
    store = ExperimentStore(tmp_path / "s.db")
    ((short, name),) = import_files(store, files)
    assert import_files(store, files) == []
    store.close()
    assert name == "my-trl-run"
    with closing(StoreReader(tmp_path / "s.db")) as reader:
        run = reader.resolve(short)
        assert (run.status, run.step, run.tags) == ("imported", 2, ("trl",))
        assert reader.metric_series(run.key, "reward").values == (0.5, 0.5)
        assert reader.metric_keys(run.key) == (
            "reward", "reward_std", "frac_reward_zero_std", "rewards/accuracy_reward/mean",
        )  # fmt: skip
        (group,) = reader.groups(run.key, 2)
        assert group.prompt_text == "user: 1 + 1?"
        assert [(item.text, item.reward, item.advantage) for item in group.rollouts] == [
            ("two", 1.0, 0.5),
            ("=3", 0.0, -0.5),
        ]
        assert [item.value for item in group.rollouts[0].rewards] == [1.0, None]
        assert [hit.text for hit in search(reader, "two")] == ["two", "two"]


def test_what_is_no_run_is_refused_with_its_name(tmp_path: Path) -> None:
    store = ExperimentStore(tmp_path / "s.db")
    text = tmp_path / "text.parquet"
    text.write_text("no Parquet")
    for file, words in (
        (tmp_path / "nowhere.db", "there is no file"),
        (tmp_path / "s.db", "is the current store"),
        (text, "is not Parquet"),
        (completions(tmp_path / "other.parquet", [{"a": 1}]), "lacks the columns step, prompt"),
    ):
        with pytest.raises(ImportRefusedError, match=words):
            import_files(store, [file])
    store.close()
