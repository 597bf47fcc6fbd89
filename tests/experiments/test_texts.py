"""Any text survives the store's escaping and the CSV guard."""

import io
import json
import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.experiments.db.texts import escape, unescape, visible
from grpo_tui.experiments.export.csv import cell, guard, write_csv
from grpo_tui.experiments.export.json import json_text, without_controls
from tests.experiments.csv_reader import read_csv, unguard

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=40) | st.from_regex(
    r"(\\|x00|x1b|x9b|u202e|ud8[0-9a-f]{2}|\x00|\x1b|\x9b|\u202e|\u2066|[=+@'-]|\t|\r\n|\"|,|,){1,8}",
    fullmatch=True,
)


@given(ANY_TEXT)
def test_escape_is_undone_exactly_and_leaves_storable_text(text: str) -> None:
    stored = escape(text)
    assert "\x00" not in stored
    stored.encode("utf-8")
    assert unescape(stored) == text


def test_escapes_read_as_the_design_says_and_ordinary_backslashes_stay() -> None:
    assert escape("a\x00b") == "a\\x00b"
    assert escape("\ud800") == "\\ud800"
    assert escape("\\x00") == "\\\\x00"
    assert escape("\\frac{1}{2}") == "\\frac{1}{2}"


@pytest.mark.parametrize(
    "text", ["=1", "@1", "\t1", "\r1", "'1", "-1+2", "+a", "-", "-5 ", "--5", "-٥"]
)
def test_a_cell_that_a_spreadsheet_would_run_gets_one_quote(text: str) -> None:
    assert guard(text) == "'" + text
    assert unguard(guard(text)) == text


@pytest.mark.parametrize("text", ["-5", "+7", "-.5", "+3.", "-1e-3", "1e-3", "-1.5E+10"])
def test_a_text_that_is_a_number_stays_that_number(text: str) -> None:
    assert cell(text) == text


@given(st.lists(st.tuples(ANY_TEXT, ANY_TEXT), max_size=5), st.booleans())
def test_any_text_survives_csv(rows: list[tuple[str, str]], raw: bool) -> None:
    out = io.StringIO(newline="")
    write_csv(out, ["a", "b"], [{"a": a, "b": b} for a, b in rows], raw=raw)
    encoded = out.getvalue().encode("utf-8").decode("utf-8")
    found = list(read_csv(io.StringIO(encoded, newline=""), raw=raw))
    expected = rows if raw else [(without_controls(a), without_controls(b)) for a, b in rows]
    assert [(row["a"], row["b"]) for row in found] == expected


@given(ANY_TEXT)
def test_no_csv_cell_acts_on_a_terminal_or_reorders_text(text: str) -> None:
    written = cell(text)
    acting = [c for c in written if unicodedata.category(c) == "Cc" and c not in "\t\n\r"]
    assert not acting
    assert not set(written) & set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2069")


def test_a_title_sequence_is_visible_in_csv_and_raw_keeps_it() -> None:
    attack = "\x1b]52;c;aGk=\x07 \u202eabc \\x1b"
    assert cell(attack) == r"\u001b]52;c;aGk=\u0007 \u202eabc \x1b"
    assert cell(attack, raw=True) == attack


def test_what_a_terminal_would_obey_is_made_visible_on_one_line() -> None:
    assert visible("plain") == "plain"
    assert visible("caf\u00e9 \u65e5\u672c \U0001f44d") == "caf\u00e9 \u65e5\u672c \U0001f44d"
    hostile = "a\x1b[2J\nb\u202e\x9b\ud800\tc\u2028d"
    assert visible(hostile) == "a\\x1b[2J\u21b5b\\u202e\\x9b\\ud800 c\\u2028d"


def test_json_escapes_what_a_terminal_would_obey_and_nothing_else() -> None:
    value = {
        "a": "\x1b\x7f\x9b\u202e\ud800",
        "b": "caf\u00e9 \u65e5\u672c",
        "c": (1, math.inf, math.nan),
    }
    text = json_text(value)
    assert text == (
        '{"a": "\\u001b\\u007f\\u009b\\u202e\\ud800", "b": "caf\u00e9 \u65e5\u672c", '
        '"c": [1, "Infinity", "NaN"]}'
    )
    assert json.loads(text)["a"] == value["a"]
