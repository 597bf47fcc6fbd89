"""The token codec: every number comes back as it was in 32 bits."""

import math
from pathlib import Path

import numpy as np
import pytest

from grpo_tui.experiments.db.tokens import decode, encode, read_blobs, write_blobs
from grpo_tui.experiments.values import RecordedTokens, TokenView


def row(**numbers: tuple[float, ...]) -> RecordedTokens:
    empty: dict[str, tuple[float, ...]] = dict.fromkeys(
        ("ends", "sampler", "old", "reference", "passes", "after", "entropy", "advantages"), ()
    )
    return RecordedTokens(index=0, ids=(1, 2), **{**empty, **numbers})  # type: ignore[arg-type]


@pytest.mark.parametrize("odd", [-math.inf, math.nan, -1e30, 0.1])
def test_numbers_that_are_not_finite_or_far_away_are_kept(odd: float) -> None:
    found = decode(encode((), [row(old=(-1.0, -2.0), after=(odd, -2.0))])).rows
    assert repr(found[0].after[0]) == repr(float(np.float32(odd)))
    assert found[0].after[1] == -2.0


def test_a_blob_of_a_newer_codec_says_so() -> None:
    with pytest.raises(ValueError, match="codec 9"):
        decode(b"", codec=9)


def test_a_deleted_token_file_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "run" / "tokens.db"
    write_blobs(path, [(1, encode((), [row()]))])
    for file in path.parent.iterdir():
        file.unlink()
    write_blobs(path, [(2, encode((5,), [row()]))])
    assert read_blobs(path, [1]) == {}
    assert read_blobs(path, [1, 2]) == {2: TokenView(prompt_ids=(5,), rows=(row(),))}
