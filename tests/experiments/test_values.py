"""Settings are read as they were stored, and files may lack columns."""

from pathlib import Path

import pytest

from grpo_tui.experiments.errors import StoreUnusableError
from grpo_tui.experiments.reader import StoreReader
from tests.experiments.made import config, record_run, recorded, sql


def test_a_setting_of_any_kind_is_read_as_it_was_stored(path: Path) -> None:
    values = [None, 0, "null", [1, "é\0\ud800"], {"b": 1, "a": None}]
    tree = config(task={f"v{number}": value for number, value in enumerate(values)})
    run = recorded(path, tree=tree).key
    with StoreReader(path) as reader:
        stored = reader.settings(run)
    assert [stored[f"task.v{number}"] for number in range(len(values))] == values


def test_a_field_whose_column_the_file_lacks_has_its_default_or_is_an_error(path: Path) -> None:
    run = record_run(path, steps=1)
    sql(path, "ALTER TABLE attempt DROP COLUMN cause", "PRAGMA user_version = 1")
    with StoreReader(path) as reader:
        key = reader.resolve(run).key
        assert [attempt.cause for attempt in reader.attempts(key)] == [""]
        sql(path, "ALTER TABLE attempt DROP COLUMN host")
        with pytest.raises(StoreUnusableError, match="no column for host"):
            reader.attempts(key)
