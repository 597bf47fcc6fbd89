"""Values are read from rows by name, with the types of their fields."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import values as v
from experiments.db import stored
from experiments.db.numbers import known, nan_names
from experiments.db.statements import insert_into, select
from experiments.db.texts import Escaped, escape
from experiments.read import facts, metrics, rollouts, runs, waiting
from experiments.read.shapes import Shape

NUMBER = st.none() | st.floats()
TEXT = st.text() | st.text(st.sampled_from("\\x0\0d\ud800"))
SHAPES = {
    id(shape): shape
    for module in (facts, metrics, rollouts, runs, waiting)
    for shape in vars(module).values()
    if isinstance(shape, Shape)
}


def rollout(text: str, reward: float | None, kl: float | None) -> tuple[Any, ...]:
    """A row as the recorder stores it, in the order of the shape's columns."""
    row = stored.Rollout(
        id=7, group_id=3, run_id=1, idx=2, text=escape(text), reward=known(reward), advantage=0.5,
        tokens=9, finish="stop", kl=known(kl), nonfinite=nan_names(reward=reward, kl=kl),
    )  # fmt: skip
    return tuple(getattr(row, name) for name in rollouts.ROLLOUT.columns.values())


@given(st.lists(st.tuples(TEXT, NUMBER, NUMBER)))
def test_rows_are_read_as_the_values_that_were_stored(
    given: list[tuple[str, float | None, float | None]],
) -> None:
    rows = [rollout(*item) for item in given]
    made = rollouts.ROLLOUT.make(rollouts.ROLLOUT.read(rows))
    # repr, because NaN is not equal to itself
    assert list(map(repr, made)) == [
        repr(v.RolloutView(
            key=7, group=3, index=2, text=text, advantage=0.5, tokens=9, finish="stop",
            clip_fraction=None, reward=reward, kl=kl,
        ))
        for text, reward, kl in given
    ]  # fmt: skip


def test_null_is_nan_where_the_field_is_a_number_and_json_is_read() -> None:
    shape = metrics.EVALUATION
    row = [{"seconds": None, "metrics": '{"reward":"nan","kl":0.5}'}.get(name, 1)
           for name in shape.columns]  # fmt: skip
    (made,) = shape.make(shape.read([row]))
    assert math.isnan(made.seconds)
    assert math.isnan(made.metrics["reward"])
    assert made.metrics["kl"] == 0.5
    assert made.rows == ()


def test_0_and_1_are_read_as_false_and_true() -> None:
    kinds = stored.RolloutGroup.__annotations__
    row = ["" if kinds[name] in (str, Escaped) else 1 for name in rollouts.GROUP.columns.values()]
    row[list(rollouts.GROUP.columns).index("sampling")] = "{}"
    (made,) = rollouts.GROUP.make(rollouts.GROUP.read([row]))
    assert made.has_tokens is True
    assert made.refill == 1


def test_a_field_that_has_neither_a_column_nor_a_default_is_an_error() -> None:
    with pytest.raises(KeyError, match="sweep"):
        waiting.ITEM.make({"key": [1]})


def test_columns_that_follow_are_given_by_their_names() -> None:
    row = (*rollout("text", 1.0, None), "extra")
    assert rollouts.ROLLOUT.read([row, row], "more")["more"] == ("extra", "extra")


def test_a_column_that_an_older_file_lacks_is_read_as_its_default() -> None:
    present = [name for name in stored.Attempt._fields if name not in ("cause", "until_step")]
    sql = select(stored.Attempt, ("n", "cause", "until_step"), of="a", present=present)
    assert sql == "a.\"n\", '', NULL"


def test_statements_name_columns_that_python_or_sql_has_a_word_for() -> None:
    assert '"pass", "minibatch"' in insert_into(stored.UpdatePass)
    assert '"limit"' in select(stored.Alert)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=lambda shape: shape.view.__name__)
def test_fields_are_of_the_types_of_their_columns(shape: Shape[Any]) -> None:
    kinds = shape.row.__annotations__
    for field in fields(shape.view):
        if field.name not in shape.columns or (shape.view, field.name) in OWN:
            continue
        kind = kinds[shape.columns[field.name]]
        wanted = {
            "str": kind in (str, Escaped),
            "bool": kind is int,
            "mapping": kind is str,
            "tuple": kind is str,  # JSON
            "float": kind in (float, float | None),
        }
        origin = get_origin(field.type)
        name = ("str" if origin is Literal or field.type is str
                else "mapping" if origin is Mapping
                else getattr(field.type, "__name__", ""))  # fmt: skip
        assert wanted.get(name, kind == field.type), (field.name, kind, field.type)


OWN = {(v.QueueItemView, "lease_until")}  # 0 in the store means no lease
