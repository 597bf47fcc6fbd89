"""The token codec: every number comes back as it was in 32 bits."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.experiments.db.tokens import decode, encode, read_blobs, write_blobs
from grpo_tui.experiments.values import RecordedTokens, TokenView

LOGP = st.floats(-30, 0, width=32)


@st.composite
def token_rows(draw: st.DrawFn, index: int = 0) -> RecordedTokens:
    length = draw(st.integers(0, 6))

    def values(source: st.SearchStrategy[float]) -> tuple[float, ...]:
        return tuple(draw(st.lists(source, min_size=length, max_size=length)))

    def maybe(source: st.SearchStrategy[float]) -> tuple[float, ...]:
        return values(source) if draw(st.booleans()) else ()

    return RecordedTokens(
        index=index,
        ids=tuple(int(x) for x in values(st.integers(0, 200_000).map(float))),
        ends=tuple(np.cumsum([int(x) for x in maybe(st.integers(0, 9).map(float))]).tolist()),
        old=maybe(LOGP),
        sampler=maybe(LOGP),
        sampled=maybe(LOGP),
        reference=maybe(LOGP),
        after=maybe(LOGP),
        passes=tuple(values(LOGP) for _ in range(draw(st.integers(0, 2)))),
        entropy=maybe(st.floats(0, 12, width=32)),
        advantages=maybe(st.floats(-3, 3, width=32)),
    )


@given(st.lists(token_rows(), max_size=4), st.lists(st.integers(0, 200_000), max_size=5))
def test_a_group_comes_back_exactly(rows: list[RecordedTokens], prompt: list[int]) -> None:
    assert decode(encode(prompt, rows)) == TokenView(prompt_ids=tuple(prompt), rows=tuple(rows))


def row(**numbers: tuple[float, ...]) -> RecordedTokens:
    empty: dict[str, tuple[float, ...]] = dict.fromkeys(
        ("ends", "sampler", "old", "reference", "passes", "after", "entropy", "advantages"), ()
    )
    return RecordedTokens(index=0, ids=(1, 2), **{**empty, **numbers})  # type: ignore[arg-type]


@pytest.mark.parametrize("odd", [-math.inf, math.nan, -1e30])
def test_numbers_that_are_not_finite_or_far_away_are_kept(odd: float) -> None:
    found = decode(encode((), [row(old=(-1.0, -2.0), after=(odd, -2.0))])).rows
    assert repr(found[0].after[0]) == repr(float(np.float32(odd)))
    assert found[0].after[1] == -2.0


def test_a_blob_of_a_newer_codec_says_so() -> None:
    with pytest.raises(ValueError, match="codec 9"):
        decode(b"", codec=9)


def test_a_deleted_token_file_is_made_again(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "run" / "tokens.db"
    write_blobs(path, [(1, encode((), [row()]))])
    for file in path.parent.iterdir():
        file.unlink()
    write_blobs(path, [(2, encode((5,), [row()]))])
    assert read_blobs(path, [1]) == {}
    assert read_blobs(path, [1, 2]) == {2: TokenView(prompt_ids=(5,), rows=(row(),))}
