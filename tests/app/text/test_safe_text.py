"""What all untrusted text goes through: nothing obeyed or hidden, widths right."""

import ast
import io
import re
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import grpo_tui.app
from grpo_tui.app import exit_codes
from grpo_tui.app.cli.output import print_fields, print_table, print_text
from grpo_tui.app.cli.startup import protect
from grpo_tui.app.text.safe_text import (
    SafeStream,
    cell_len,
    clip,
    clip_distinct,
    clip_middle,
    clip_start,
    excerpt,
    pad,
    safe,
    safe_by_character,
    without_acting,
    wrap,
)
from grpo_tui.app.text.stderr import print_stderr
from tests.app.script import HOSTILE

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=200)
HIDDEN_TEXT = st.text(st.characters(categories=("Cc", "Cf", "Cs", "Zl", "Zp")), max_size=20)
ACTING = {"Cc", "Cf", "Cs", "Zl", "Zp"}
BIDIRECTIONAL = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def streamed(text: str) -> str:
    out = io.StringIO()
    SafeStream(out).write(text)
    return out.getvalue()


def printed(call: Callable[[str], object]) -> Callable[[str], str]:
    """What a call prints, the line end of each line apart."""

    def output(text: str) -> str:
        out = io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", out)
            call(text)
        return out.getvalue().replace("\n", "")

    return output


WAYS_OUT: dict[str, Callable[[str], str]] = {
    "safe": safe,
    "clip": lambda text: clip(text, 30),
    "clip_middle": lambda text: clip_middle(text, 30),
    "clip_start": lambda text: clip_start(text, 30),
    "pad": lambda text: pad(text, 30),
    "excerpt": lambda text: "".join(excerpt(text, 3, 6, 30)),
    "wrap": lambda text: "".join(wrap(text, 30, 5)),
    "field": lambda text: safe_by_character(text).replace("\t", ""),
    "Textual": lambda text: re.sub(r"[\t\n\r]", "", without_acting(text)),
    "stream": lambda text: re.sub(
        r"\x1b\[[0-9;]*[mKA]|\x1b\[\?25[hl]|[\t\n\r\x08]", "", streamed(text)
    ),
    "print_text": printed(print_text),
    "print_table": printed(lambda text: print_table([{text: text}])),
    "print_fields": printed(lambda text: print_fields({"name": text, text: 1})),
    "print_stderr": printed(print_stderr),
    "report": printed(lambda text: exit_codes.report(ValueError(text), sys.stderr)),
}


@pytest.mark.parametrize("way", WAYS_OUT)
@given(ANY_TEXT | HIDDEN_TEXT | st.sampled_from(HOSTILE[:-1]))
def test_no_character_leaves_that_a_terminal_could_obey(way: str, text: str) -> None:
    for char in WAYS_OUT[way](text):
        assert unicodedata.category(char) not in ACTING, ascii(char)
        assert unicodedata.bidirectional(char) not in BIDIRECTIONAL, ascii(char)


def test_a_guarded_stream_obeys_colours_and_progress_bars_only() -> None:
    bar = "\x1b[2K\r\x1b[1A\x1b[?25l\x1b[1;32m━━\x1b[0m 5/9\x08\n"
    assert streamed(bar) == bar
    assert streamed("\x1b]0;title\x07 \x1b[2J \u202e") == "␛]0;title␇ ␛[2J \\u202e"


def test_a_field_keeps_indices_and_a_widget_the_width() -> None:
    assert safe_by_character("a\x1b\u202e\n\ud800b") == "a␛\ufffd␊\ufffdb"
    assert without_acting("a\x1b[m\u200b日\ud800") == "a[m日\ufffd"


AROUND_THE_GUARD = {
    "__stdout__", "__stderr__", "buffer", "echo", "secho", "os.write", "/dev/tty", "_driver.write"
}  # fmt: skip
# the terminal after a native crash; the sequences of Textual's own driver
TERMINAL_CODE = {"guardian.py", "tui/textual_private/themed_app.py"}


def test_the_terminal_is_written_to_only_through_what_is_guarded() -> None:
    """Standard streams are guarded before anything is loaded that prints."""
    root = Path(grpo_tui.app.__file__).parent
    around = {
        f"{path.relative_to(root)}: {name}"
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in AROUND_THE_GUARD
        if (isinstance(node, ast.Attribute) and ast.unparse(node).endswith(f".{name}"))
        or (isinstance(node, ast.Attribute) and ast.unparse(node) == name)
        or (isinstance(node, ast.Constant) and node.value == name)
    }
    assert {line.partition(":")[0] for line in around} == TERMINAL_CODE


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_both_streams_of_a_terminal_are_guarded_and_a_pipe_is_left_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for terminal in (True, False):
        out = io.StringIO()
        monkeypatch.setattr(out, "isatty", lambda answer=terminal: answer)
        monkeypatch.setattr(sys, name, out)
        protect()
        assert isinstance(getattr(sys, name), SafeStream) == terminal


@given(ANY_TEXT, st.integers(1, 40))
def test_cut_text_fits_and_says_that_it_was_cut(text: str, width: int) -> None:
    for cut, mark in ((clip(text, width), -1), (clip_start(text, width), 0)):
        assert cell_len(cut) <= width
        assert cut == safe(text) or cut[mark] == "…"


@given(ANY_TEXT, ANY_TEXT, ANY_TEXT, st.integers(1, 60))
def test_an_excerpt_shows_the_part_and_as_much_around_it_as_fits(
    before: str, part: str, after: str, width: int
) -> None:
    shown = excerpt(before + part + after, len(before), len(before + part), width)
    assert cell_len("".join(shown)) <= width
    assert shown[1] == clip(part, width)
    assert shown[0] == "" or shown[0] == safe(before) or shown[0][0] == "…"
    assert shown[2] == "" or shown[2] == safe(after) or shown[2][-1] == "…"


@given(ANY_TEXT, st.integers(2, 30), st.integers(1, 5), st.booleans())
def test_wrapped_lines_fit_and_say_that_they_were_cut(
    text: str, width: int, most: int, from_end: bool
) -> None:
    lines = wrap(text, width, most, from_end=from_end)
    assert len(lines) <= most
    assert all(cell_len(line) <= width for line in lines)
    full = wrap(text, width, 10_000)
    if len(full) > most:
        assert (lines[0][0] if from_end else lines[-1][-1]) == "…"
    else:
        assert lines == full


@given(ANY_TEXT, st.integers(1, 40), st.sampled_from("<>^"))
def test_padded_text_is_as_wide_as_asked_for(text: str, width: int, align: str) -> None:
    assert cell_len(pad(text, width, align)) in (width, width - 1)
    assert cell_len(pad("abc", width, align)) == width


def test_escapes_are_shown_not_obeyed() -> None:
    assert safe("\x1b[31mred\x07\x00\x7f") == "␛[31mred␇␀␡"


def test_bidirectional_overrides_and_invisible_characters_are_spelled_out() -> None:
    assert safe("a\u202eb\u200bc\ufeff") == "a\\u202eb\\u200bc\\ufeff"


def test_lone_surrogates_are_spelled_out() -> None:
    assert safe("\ud83d!") == "\\ud83d!"


def test_joined_emoji_and_flags_are_taken_apart() -> None:
    assert safe("👨\u200d👩 👍🏽 🇩🇪 ❤\ufe0f") == "👨⁀👩 👍⁀🏽 ＤＥ ❤"


def test_a_pile_of_marks_is_kept_to_two() -> None:
    assert safe("e" + "\u0301" * 9) == "e\u0301\u0301"


def test_wide_signs_are_cut_between_cells() -> None:
    assert clip("日本語", 5) == "日本…"
    assert cell_len(clip("日本語", 4)) == 3
    assert pad("日本語", 5) == "日本…"


def test_markup_is_only_text() -> None:
    assert safe("[bold]x[/] \\[y]") == "[bold]x[/] \\[y]"


def test_line_ends_and_tabs_are_shown_as_asked() -> None:
    assert safe("a\r\nb\tc") == "a⏎b    c"
    assert wrap("a\nb", 5, 3) == ["a", "b"]


def test_no_line_breaks_beside_a_sign_of_equality_or_before_a_unit() -> None:
    for width in range(24, 60):
        for said in ("p = .010", "p < .001", ".13 GB"):
            lines = wrap(f"better on 512 problems; {said}, a t test", width, 9)
            assert any(said in line for line in lines)
    assert wrap("aaa = bbb = ccc", 9, 9) == ["aaa = bbb", "= ccc"]  # where there is no other way


def test_an_output_that_lacks_a_character_gets_its_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="latin-1"))
    print_text("caf\u00e9 \x1b\u2013")
    print_table([{"a": "\u65e5"}])
    sys.stdout.flush()
    assert out.getvalue() == b"caf\xe9 \\u241b\\u2013\na\n\\u65e5\n"


@pytest.mark.parametrize(
    ("names", "width", "labels"),
    [
        (["beta 0.04 (2 seeds)", "beta 0.4 (2 seeds)"], 19, None),  # as they are
        (["beta 0.04 (2 seeds)", "beta 0.4 (2 seeds)"], 9, ["beta 0.04", "beta 0.4"]),
        (["beta 0.0003", "beta 0.00003"], 8, ["0.0003", "0.00003"]),
        # the values that differ, of settings of which one is the same
        (
            ["beta 0.0003, loss a, rate 1", "beta 0.3, loss a, rate 2"],
            9,
            ["0.0003, 1", "0.3, 2"],
        ),
        (["calm-otter", "calm-ibis"], 6, ["…otter", "…-ibis"]),
        (["a long one", "a longer"], 5, ["… one", "…nger"]),
        (["abcdxefghi", "abcdyefghi"], 5, ["1 ab…", "2 ab…"]),
        (["wide-newt", "wide-newt"], 5, ["wi…wt", "wi…wt"]),  # one thing twice
    ],
)
def test_names_are_cut_where_they_are_alike(
    names: list[str], width: int, labels: list[str] | None
) -> None:
    assert clip_distinct(names, width) == (labels or names)


def test_a_cut_value_has_its_mark_where_it_was_cut() -> None:
    values = ['["right", "format_all"]', '["right", "format_all", "own"]']
    assert clip_distinct(values, 14, by_words=False) == ['…"format_all"]', '…_all", "own"]']


SIMILAR = st.lists(st.text("ab, 0…\u200b", max_size=12), min_size=1, max_size=8)


@given(names=SIMILAR, width=st.integers(1, 12))
def test_names_that_differ_differ_in_any_width_or_are_left_out(
    names: list[str], width: int
) -> None:
    labels = clip_distinct(names, width)
    assert len(labels) == len(names)
    assert all(cell_len(label) <= width for label in labels)
    if any(labels):
        pairs = {*zip(map(safe, names), labels, strict=True)}
        assert len({label for _, label in pairs}) == len({name for name, _ in pairs})
        assert len(pairs) == len({name for name, _ in pairs})
