"""Values are read from rows by name, with the types of their fields."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.experiments import values as v
from grpo_tui.experiments.db.numbers import known, nan_names
from grpo_tui.experiments.db.tables import declared
from grpo_tui.experiments.db.texts import escape
from grpo_tui.experiments.read import facts, metrics, rollouts, runs, waiting
from grpo_tui.experiments.read.shapes import Shape

NUMBER = st.none() | st.floats()
TEXT = st.text() | st.text(st.sampled_from("\\x0\0d\ud800"))
SHAPES = {
    id(shape): shape
    for module in (facts, metrics, rollouts, runs, waiting)
    for shape in vars(module).values()
    if isinstance(shape, Shape)
}


def columns(table: str) -> dict[str, Any]:
    """The columns of a table and the types of their values."""
    (row,) = (row for row in declared() if row.__tablename__ == table)
    found = {name.rstrip("_"): field.annotation for name, field in row.model_fields.items()}
    return found | {"id": int}  # in a row that is not stored yet it is None


FIELDS = list(rollouts.ROLLOUT.columns(columns("rollout")))


def rollout(text: str, reward: float | None, kl: float | None) -> tuple[Any, ...]:
    """A row as the recorder stores it, in the order of the shape's columns."""
    row = {
        "key": 7, "group": 3, "index": 2, "text": escape(text), "reward": known(reward),
        "advantage": 0.5, "tokens": 9, "finish": "stop", "kl": known(kl), "clip_fraction": None,
        "spans": "", "nonfinite": nan_names(reward=reward, kl=kl),
    }  # fmt: skip
    return tuple(row[name] for name in FIELDS)


@given(st.lists(st.tuples(TEXT, NUMBER, NUMBER)))
def test_rows_are_read_as_the_values_that_were_stored(
    given: list[tuple[str, float | None, float | None]],
) -> None:
    rows = [rollout(*item) for item in given]
    made = rollouts.ROLLOUT.make(rollouts.ROLLOUT.read(rows, FIELDS))
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
           for name in shape.columns(columns("evaluation"))]  # fmt: skip
    (made,) = shape.make(shape.read([row], list(shape.columns(columns("evaluation")))))
    assert math.isnan(made.seconds)
    assert math.isnan(made.metrics["reward"])
    assert made.metrics["kl"] == 0.5
    assert made.rows == ()


def test_0_and_1_are_read_as_false_and_true() -> None:
    kinds = columns("rollout_group")
    names = rollouts.GROUP.columns(kinds)
    row = ["" if kinds[name] is str else 1 for name in names.values()]
    row[list(names).index("sampling")] = "{}"
    (made,) = rollouts.GROUP.make(rollouts.GROUP.read([row], list(names)))
    assert made.has_tokens is True
    assert made.refill == 1


def test_a_field_that_has_neither_a_column_nor_a_default_is_an_error() -> None:
    with pytest.raises(KeyError, match="sweep"):
        waiting.ITEM.make({"key": [1]})


def test_columns_that_follow_are_given_by_their_names() -> None:
    row = (*rollout("text", 1.0, None), "extra")
    assert rollouts.ROLLOUT.read([row, row], FIELDS, ["more"])["more"] == ("extra", "extra")


def test_a_column_that_an_older_file_lacks_is_read_as_the_default() -> None:
    names = [name for name in FIELDS if name != "spans"]
    row = rollout("text", 1.0, None)
    (made,) = rollouts.ROLLOUT.make(rollouts.ROLLOUT.read(
        [[value for name, value in zip(FIELDS, row, strict=True) if name in names]], names
    ))  # fmt: skip
    assert made.spans == ()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=lambda shape: shape.view.__name__)
def test_fields_are_of_the_types_of_their_columns(shape: Shape[Any]) -> None:
    kinds = columns(shape.table)
    names = shape.columns(kinds)
    for field in fields(shape.view):
        if field.name not in names or (shape.view, field.name) in OWN:
            continue
        kind = kinds[names[field.name]]
        wanted = {
            "str": kind is str,
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
