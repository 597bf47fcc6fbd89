"""Values are compared, hashed and printed as dataclasses are, without code for each class."""

from dataclasses import FrozenInstanceError, dataclass, field, replace

import pytest

from grpo_engine.frozen import frozen


@frozen
class Point:
    x: float
    y: float = 0.0
    label: str = field(default="", compare=False, repr=False)


@frozen
class Labelled(Point):
    size: int = 1


@frozen
class Nothing:
    """A value without fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    x: float
    y: float = 0.0


def test_values_are_equal_if_class_and_fields_are() -> None:
    nan = float("nan")
    assert Point(x=1.0, y=2.0) == Point(x=1.0, y=2.0, label="not compared")
    assert Point(x=1.0) != Point(x=1.0, y=2.0)
    assert Point(x=1.0) != Labelled(x=1.0)
    assert Labelled(x=1.0) != Labelled(x=1.0, size=2)
    assert Point(x=nan) == Point(x=nan)  # one object, as in a tuple
    assert Nothing() == Nothing()


def test_equal_values_have_one_hash() -> None:
    assert len({Point(x=1.0), replace(Point(x=3.0), x=1.0), Point(x=2.0), Nothing()}) == 3
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        hash(Point(x=[]))  # type: ignore[arg-type]  # a list is what is tested


def test_a_value_prints_as_a_dataclass_does() -> None:
    assert repr(Labelled(x=1.0)) == repr(Plain(x=1.0)).replace("Plain", "Labelled").replace(
        ")", ", size=1)"
    )


def test_a_value_cannot_be_changed_nor_made_by_position() -> None:
    value = Point(x=1.0)
    with pytest.raises(FrozenInstanceError):
        value.x = 2.0  # type: ignore[misc]  # what is tested
    with pytest.raises(TypeError):
        Point(1.0)  # type: ignore[call-arg]  # what is tested


def test_a_class_has_no_compiled_comparison_of_its_own() -> None:
    for method in ("__eq__", "__hash__", "__repr__"):
        assert getattr(Point, method) is getattr(Nothing, method)
    assert Point.__doc__ == "Point"  # the signature takes as long as the rest
