"""Where each token ends in an answer's text, for viewers that split the text by token."""

from collections.abc import Sequence

from grpo_engine.rollouts.row import token_ends

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
