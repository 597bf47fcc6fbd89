"""Values are read from rows by name, with the types of their columns."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, Table, create_engine, insert, select
from sqlmodel import SQLModel

from grpo_engine import events as ev
from grpo_tui.experiments.db import tables as t
from grpo_tui.experiments.errors import StoreUnusableError
from grpo_tui.experiments.reader import StoreReader
from tests.experiments.made import record_run, sql

ROLLOUT = {
    "run_id": 1,
    "group_id": 3,
    "idx": 2,
    "advantage": 0.5,
    "tokens": 9,
    "finish": "stop",
    "clip_fraction": None,
    "spans": (),
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    engine = create_engine("sqlite://")
    SQLModel.metadata.create_all(engine)
    return engine


def stored(engine: Engine, table: Table, *columns: Any, **row: Any) -> Any:
    """What is read of a row that was written."""
    with engine.connect() as conn:
        conn.execute(insert(table), row)
        return conn.execute(select(*(columns or table.c))).one()


@pytest.mark.parametrize("value", [None, 0, "null", [1, "é\0\ud800"], {"b": 1, "a": None}])
def test_a_setting_of_any_kind_is_read_as_it_was_stored(engine: Engine, value: Any) -> None:
    column = t.RUN_PARAM.c.value
    assert stored(engine, t.RUN_PARAM, column, run_id=1, path="a.b", value=value) == (value,)


def test_spans_are_read_as_they_were_stored(engine: Engine) -> None:
    spans = (
        ev.Span(start=0, length=3, kind="model", turn=0),
        ev.Span(start=3, length=1, kind="environment", turn=0, reward=0.5, info={"a": "\0"}),
    )
    columns = ROLLOUT | {"id": 8, "text": "", "nonfinite": "", "spans": spans}
    assert stored(engine, t.ROLLOUT, t.ROLLOUT.c.spans, **columns) == (spans,)


def test_a_field_whose_column_the_file_lacks_has_its_default_or_is_an_error(
    path: Path,
) -> None:
    run = record_run(path, steps=1)
    sql(path, "ALTER TABLE attempt DROP COLUMN cause", "PRAGMA user_version = 1")
    with StoreReader(path) as reader:
        key = reader.resolve(run).key
        assert [attempt.cause for attempt in reader.attempts(key)] == [""]
        sql(path, "ALTER TABLE attempt DROP COLUMN host")
        with pytest.raises(StoreUnusableError, match="no column for host"):
            reader.attempts(key)
