"""Where each token ends in an answer's text, for viewers that split the text by token."""

from collections.abc import Sequence
from pathlib import Path

from grpo_engine import events as ev
from grpo_engine.rollouts.row import token_ends
from tests.engine.runs import events_of, settings, write_world

PIECES = {1: "17", 2: " + ", 3: "", 4: "日"}


def decode(ids: Sequence[int]) -> str:
    return "".join(PIECES[token] for token in ids)


def spaced(ids: Sequence[int]) -> str:
    """Decode like SentencePiece: words separated by spaces, none before the first."""
    return " ".join(PIECES[token] for token in ids)


def halves(ids: Sequence[int]) -> str:
    """Decode bytes; half a character becomes a replacement character."""
    return bytes(ids).decode(errors="replace")


def test_tokens_end_where_their_pieces_end() -> None:
    assert token_ends([1, 2, 3, 4], decode([1, 2, 3, 4]), decode) == (2, 5, 5, 6)


def test_spaces_between_words_belong_to_the_later_word() -> None:
    assert token_ends([1, 4, 1], "17 日 17", spaced) == (2, 4, 7)


def test_the_bytes_of_one_character_end_with_its_last() -> None:
    ids = list("é!".encode())
    assert token_ends(ids, "é!", halves) == (0, 1, 2)


def test_every_answer_of_a_run_says_where_its_tokens_end(tmp_path: Path) -> None:
    events = events_of(settings(write_world(tmp_path / "world"), steps=1), tmp_path / "run")
    answers = [one for e in events if isinstance(e, ev.GroupScored) for one in e.group.rollouts]
    assert answers
    for one in answers:
        assert len(one.ends) == len(one.ids)
        assert one.ends[-1] == len(one.text)
        assert list(one.ends) == sorted(one.ends)
