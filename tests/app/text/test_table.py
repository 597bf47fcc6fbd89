"""Tables of text: aligned, cut to a width, whole without one."""

from typing import Any

from grpo_tui.app.text.table import table_lines


def test_numbers_and_named_columns_are_at_the_right_and_the_widest_are_cut() -> None:
    rows: list[dict[str, Any]] = [
        {"name": "a name of a run", "n": 1.23456, "x": "1.0", "both": (True, "b")},
        {"name": "b", "n": None, "x": "10"},
    ]
    assert table_lines(rows, 30, ["x"]) == [
        "name            n    x  both",
        "a name of…  1.235  1.0  yes, b",
        "b                   10",
    ]
    assert table_lines([{"name": "a name of a run", "other": "another long one"}], 12) == [
        "name      other",
        "a name …  another…",
    ]
    assert table_lines([{"name": "a name of a run"}])[1] == "a name of a run"
