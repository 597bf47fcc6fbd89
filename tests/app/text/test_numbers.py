"""Numbers that fit their columns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.app.text.numbers import change, narrow, short, with_unit
from tests.app.pictures import value_of


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (2.2e-6, "2e−6"),
        (0.0022, ".002"),
        (-0.0022, "−0"),
        (0.12, ".12"),
        (-12.34, "−12"),
        (-1234.0, "−1k"),
        (-123456789.0, "−1e8"),
        (12.34, "12.3"),
        (None, "–"),
        (0.0, "0"),
        (-1.1e16, "−e16"),
        (9.6e9, "1e10"),
        (5e-324, "0"),
    ],
)
def test_a_number_in_four_cells_has_fewer_digits_and_no_dots(
    value: float | None, shown: str
) -> None:
    assert narrow(value, 4) == shown


@given(st.floats(-1e300, 1e300), st.integers(6, 8))
def test_a_number_is_never_cut_but_has_an_exponent(value: float, room: int) -> None:
    text = narrow(value, room)
    assert len(text) <= room
    assert value_of(text) == pytest.approx(value, rel=0.5, abs=0.1)


@given(st.floats(-1e9, 1e9))
def test_a_number_that_fits_is_shown_as_elsewhere(value: float) -> None:
    assert len(narrow(value, 5)) <= 5
    assert narrow(value, 12) == short(value)


def test_a_change_has_the_unit_of_its_value() -> None:
    # 49.9 MB, as the value beside it: .0006 GB are .6 MB
    assert (with_unit(0.0499, "GB"), change(0.0499, 0.0006, "GB")) == ("49.9 MB", "▲.6")
    assert (with_unit(4.2, "GB"), change(4.2, -0.13, "GB")) == ("4.2 GB", "▼.13")
    assert (with_unit(0.701, "share"), change(0.701, 0.363, "share")) == ("70%", "▲36.3")
