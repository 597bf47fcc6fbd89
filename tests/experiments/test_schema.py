"""Files whose schema is not a store's are refused by name of what differs."""

from pathlib import Path

import pytest

from grpo_tui.experiments.errors import StoreUnusableError
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.store import ExperimentStore
from tests.experiments.made import record_run, sql

ENDLESS = "(WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c)"
CHANGED = {
    "the view run is not ours": (
        "ALTER TABLE run RENAME TO run_",
        f"CREATE VIEW run AS SELECT run_.* FROM run_, {ENDLESS}",
    ),
    "the virtual table alert is not ours": (
        "DROP TABLE alert",
        "CREATE VIRTUAL TABLE alert USING fts5(run_id)",
    ),
    "the trigger t is not ours": (
        "CREATE TRIGGER t AFTER UPDATE ON run BEGIN DELETE FROM event; END",
    ),
    "the trigger endless is not ours": (
        f"CREATE TRIGGER endless BEFORE DELETE ON step BEGIN SELECT count(*) FROM {ENDLESS}; END",
    ),
    "the computed column step.more is not ours": (
        "ALTER TABLE step ADD COLUMN more GENERATED ALWAYS AS (hex(zeroblob(500000000)))",
    ),
    "the column that may be NULL metric_key.name is not ours": (
        "DROP TABLE metric_key",
        "CREATE TABLE metric_key (id INTEGER PRIMARY KEY, name TEXT UNIQUE)",
    ),
    "the table event is missing": ("DROP TABLE event",),
    "the column run.note is missing": ("DROP INDEX run_list", "ALTER TABLE run DROP COLUMN note"),
    "the key column run_tag.run_id is missing": (
        "DROP TABLE run_tag",
        "CREATE TABLE run_tag (name TEXT PRIMARY KEY, tag TEXT)",
    ),
    "the unique index over step.attempt, run_id, step is missing": ("DROP INDEX step_run",),
    "the index one is not ours": (
        "CREATE UNIQUE INDEX one ON rollout (run_id, finish) WHERE id < 0",
    ),
    "the index slow is not ours": ("CREATE INDEX slow ON step (hex(zeroblob(step)))",),
    "the check in run_tag is not ours": (
        "DROP TABLE run_tag",
        "CREATE TABLE run_tag (run_id INTEGER, tag TEXT CHECK (tag = ''), "
        "PRIMARY KEY (run_id, tag)) WITHOUT ROWID",
    ),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    record_run(tmp_path / "s.db", name="theirs")
    return tmp_path / "s.db"


@pytest.mark.timeout(30)
@pytest.mark.parametrize("difference", CHANGED)
def test_a_store_of_another_schema_is_refused_by_what_differs(path: Path, difference: str) -> None:
    sql(path, *CHANGED[difference])
    for opened in (StoreReader, ExperimentStore):
        with pytest.raises(StoreUnusableError, match="is not a store of grpo-tui") as refusal:
            opened(path)
        assert difference in str(refusal.value)


def test_the_schema_of_a_file_calls_no_function_that_is_not_harmless(path: Path) -> None:
    with ExperimentStore(path) as store, store.transaction() as conn:
        assert conn.exec_driver_sql("PRAGMA trusted_schema").scalar() == 0
