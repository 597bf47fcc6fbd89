"""The token codec: exact ids and old, small differences, and values that do not fit."""

import math
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.events import UpdateTotals
from grpo_tui.experiments.db.tokens import CLOSE, TokenFile, decode, encode, read_blobs
from grpo_tui.experiments.values import TokenRow

LOGP = st.floats(-30, 0, width=32)


@st.composite
def token_rows(draw: st.DrawFn, index: int = 0) -> TokenRow:
    length = draw(st.integers(0, 6))

    def values(source: st.SearchStrategy[float]) -> tuple[float, ...]:
        return tuple(draw(st.lists(source, min_size=length, max_size=length)))

    def maybe(source: st.SearchStrategy[float]) -> tuple[float, ...]:
        return values(source) if draw(st.booleans()) else ()

    return TokenRow(
        index=index, ids=tuple(int(x) for x in values(st.integers(0, 200_000).map(float))),
        ends=tuple(np.cumsum([int(x) for x in maybe(st.integers(0, 9).map(float))]).tolist()),
        old=maybe(LOGP), sampler=maybe(LOGP), sampled=maybe(LOGP), reference=maybe(LOGP),
        after=maybe(LOGP),
        passes=tuple(values(LOGP) for _ in range(draw(st.integers(0, 2)))),
        entropy=maybe(st.floats(0, 12, width=32)), advantages=maybe(st.floats(-3, 3, width=32)),
    )  # fmt: skip


def near(found: tuple[float, ...], wanted: tuple[float, ...], old: tuple[float, ...]) -> bool:
    """Within half a unit of float16 at the size of the stored value: the difference to `old`."""
    bases = old if len(old) == len(wanted) else (0.0,) * len(wanted)
    return len(found) == len(wanted) and all(
        abs(a - b) <= abs(b - base) * 2**-11 + 2**-24
        for a, b, base in zip(found, wanted, bases, strict=True)
    )


@given(st.lists(token_rows(), max_size=4), st.lists(st.integers(0, 200_000), max_size=5))
def test_a_group_comes_back_with_exact_ids_and_old(rows: list[TokenRow], prompt: list[int]) -> None:
    found_prompt, found = decode(encode(prompt, rows))
    assert found_prompt == tuple(prompt)
    for got, row in zip(found, rows, strict=True):
        assert (got.ids, got.ends, got.old) == (row.ids, row.ends, row.old)
        assert got.advantages == row.advantages
        for name in ("sampler", "sampled", "reference", "after"):
            assert near(getattr(got, name), getattr(row, name), row.old)
        assert near(got.entropy, row.entropy, ())
        assert len(got.passes) == len(row.passes)
        assert all(map(near, got.passes, row.passes, [row.old] * len(row.passes)))


def test_what_the_loss_read_comes_back_exactly_and_costs_nothing_where_there_is_none() -> None:
    old = tuple(float(np.float32(x)) for x in (-1.0, -2.0))
    far = tuple(float(np.float32(x)) for x in (-1.7, -2.34567))
    one = UpdateTotals(rows=8, tokens=40)
    other = UpdateTotals(
        rows=4, tokens=20, minibatch=1, micro_batches=3, batch_tokens=9, entropy_bonus=0.005,
        entropy_floor=float(np.float32(1.3)), updated_tokens=7,
    )  # fmt: skip
    full = TokenRow(
        index=0, ids=(1, 2), sampler=far, sampled=far, old=old, reference=far, passes=(old, far),
        mask=(1, 0), updates=(one, other), entropies=(far, old), values=(old, far),
        old_values=far, returns=old,
    )  # fmt: skip
    once = TokenRow(
        index=1, ids=(3,), sampler=old[:1], old=old[:1], passes=(far[:1],), updates=(one,),
        entropies=(far[:1],),
    )  # fmt: skip
    assert decode(encode((), [full, once]))[1] == (full, once)
    plain = row(old=old, sampler=old)
    header = zlib.decompress(encode((), [plain]))[4:].partition(b"}")[0]
    for name in (b"mask", b"updates", b"entropies", b"values", b"returns"):
        assert name not in header


@given(
    st.lists(st.tuples(LOGP, st.floats(-3, 3, width=32)), min_size=1, max_size=9),
    st.sampled_from(["sampler", "sampled", "reference", "passes"]),
)
def test_log_probabilities_in_the_loss_are_kept_to_a_millionth(
    pairs: list[tuple[float, float]], name: str
) -> None:
    old = tuple(a for a, _ in pairs)
    moved = tuple(float(np.float32(a + b)) for a, b in pairs)
    one = TokenRow(index=0, ids=(1,) * len(old), sampler=(), old=old)
    one = replace(one, **{name: (moved,) if name == "passes" else moved})  # type: ignore[arg-type]
    found = decode(encode((), [one]))[1][0]
    got = found.passes[0] if name == "passes" else getattr(found, name)
    assert max(abs(a - b) for a, b in zip(got, moved, strict=True)) <= CLOSE


def row(**numbers: tuple[float, ...]) -> TokenRow:
    empty: dict[str, tuple[float, ...]] = dict.fromkeys(
        ("ends", "sampler", "old", "reference", "passes", "after", "entropy", "advantages"), ()
    )
    return TokenRow(index=0, ids=(1, 2), **{**empty, **numbers})  # type: ignore[arg-type]


def test_a_blob_without_what_was_drawn_from_is_as_it_was_before_there_was_such_a_field() -> None:
    plain, cut = row(old=(-1.0, -2.0)), row(old=(-1.0, -2.0), sampled=(-0.5, -1.5))
    header = zlib.decompress(encode((), [plain]))[4:]
    assert b"sampled" not in header.partition(b"}")[0]
    assert decode(encode((), [plain]))[1][0].sampled == ()
    assert decode(encode((), [plain, cut]))[1][1].sampled == (-0.5, -1.5)


def test_a_pass_equal_to_old_stays_at_ratio_one_exactly() -> None:
    old = (float(np.float32(-3.3)), float(np.float32(-0.017)))
    _, found = decode(encode((), [row(old=old, passes=(old,))]))  # type: ignore[arg-type]
    assert found[0].passes[0] == old


def test_clip_state_at_a_narrow_bound_survives() -> None:
    # eps .02: log 1.02 = .0198; plain float16 near -9 has steps of .0078, differences of .00002
    old = (-9.0, -9.0)
    new = (-9.0 + 0.0197, -9.0 + 0.0199)
    _, found = decode(encode((), [row(old=old, after=new)]))
    clipped = [math.exp(a - b) > 1.02 for a, b in zip(found[0].after, old, strict=True)]
    assert clipped == [False, True]


@pytest.mark.parametrize("odd", [-math.inf, math.nan, -1e30])
def test_what_float16_cannot_hold_is_kept_as_float32(odd: float) -> None:
    _, found = decode(encode((), [row(old=(-1.0, -2.0), after=(odd, -2.0))]))
    assert repr(found[0].after[0]) == repr(float(np.float32(odd)))
    assert found[0].after[1] == -2.0


def test_a_blob_of_a_newer_codec_says_so() -> None:
    with pytest.raises(ValueError, match="codec 9"):
        decode(b"", codec=9)


def test_a_deleted_token_file_is_made_again(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "run" / "tokens.db"
    tokens = TokenFile(path)
    tokens.write([(1, encode((), [row()]))])
    for file in path.parent.iterdir():
        file.unlink()
    tokens.write([(2, encode((5,), [row()]))])
    tokens.close()
    assert read_blobs(path, [1]) == {}
    assert read_blobs(path, [1, 2]) == {2: ((5,), (row(),))}
