"""How much, not how fast: target probabilities in the prefix tree, and the push towards them."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.config.recipes import recipe
from grpo_engine.errors import MathsError
from grpo_engine.maths.metrics import metrics
from grpo_engine.maths.trust import Targets, targets_of
from tests.engine.maths import oracle
from tests.engine.maths.helpers import assert_close, gradient_of, loss_of, number, numbers


def tree(seed: int, forced: float = 0.0) -> dict[str, Any]:
    """Completions over three tokens whose probabilities depend only on the prefix.

    A share `forced` of the tokens was not sampled and is off the mask.
    """
    rng = np.random.default_rng(seed)
    rows, columns = 8, 4
    tokens = rng.integers(0, 3, (rows, columns))
    chances: dict[tuple[int, ...], Any] = {}
    old = np.zeros((rows, columns))
    for i, t in np.ndindex(rows, columns):
        prefix = (i // 4, *tokens[i, :t].tolist())
        p = chances.setdefault(prefix, rng.dirichlet(np.ones(4)))  # the fourth is never sampled
        old[i, t] = np.log(p[tokens[i, t]])
    return {
        "old": old,
        "signs": rng.choice([-1.0, 0.0, 1.0], rows),
        "mask": (np.arange(columns)[None, :] < rng.integers(0, columns + 1, rows)[:, None])
        & (rng.random((rows, columns)) > forced),
        "token_ids": tokens,
        "group_ids": np.arange(rows) // 4,
    }


def targets(made: dict[str, Any]) -> Targets:
    names = ("old", "signs", "mask", "token_ids", "group_ids")
    return targets_of(*(mx.array(made[name]) for name in names))


def first_tokens(p: list[float], signs: list[float], tokens: list[int] | None = None) -> Targets:
    """Targets of one-token completions in one group."""
    made = {
        "old": np.log(np.array(p))[:, None],
        "signs": np.array(signs),
        "mask": np.ones((len(p), 1), dtype=bool),
        "token_ids": np.array(tokens or range(len(p)))[:, None],
        "group_ids": np.zeros(len(p)),
    }
    return targets(made)


def test_three_good_and_one_bad_token_at_a_quarter() -> None:
    # bad: (1/4)² = .0625; room 1 - .0625 - .75 = .1875; √.25 - .25 = .25, three of them .75
    # s = .1875/.75 = .25: .25 + .25·.25 = .3125
    found = first_tokens([0.25] * 4, [1, 1, 1, -1])
    assert numbers(found.probability_BT[:, 0]) == pytest.approx([0.3125] * 3 + [0.0625], abs=1e-6)
    assert numbers(found.low_BT[:, 0]) == pytest.approx([0.25] * 4, abs=1e-6)
    assert numbers(found.high_BT[:, 0]) == pytest.approx([1.25] * 3 + [0.25], abs=1e-6)


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.3]))
def test_targets_are_those_of_the_independent_walk(seed: int, forced: float) -> None:
    made = tree(seed, forced)
    found, inside = targets(made), made["mask"]
    sign, probability, low, high = oracle.targets(made)
    for mine, other in zip(found[:3], (sign, probability, low), strict=True):
        assert_close(np.array(mine)[inside], other[inside], rtol=1e-4)
    pushed = inside & (sign != 0)
    assert_close(np.array(found.high_BT)[pushed], high[pushed], rtol=1e-4)


def batch_of(p_new: list[float], p_old: list[float], signs: list[float]) -> dict[str, Any]:
    rows = len(p_new)
    return {
        "new": mx.log(mx.array(p_new))[:, None],
        "old": mx.log(mx.array(p_old))[:, None],
        "ref": None,
        "advantages": mx.array(signs),
        "mask": mx.ones((rows, 1)),
        "token_ids": mx.arange(rows)[:, None],
        "group_ids": mx.zeros(rows),
    }


def test_the_push_stops_at_the_target_and_counts_each_way() -> None:
    # targets .3125 (good, as above) and .0625 (bad); ratios 1.2, 1.24, 1.6, .5
    # J: 1.2 and 1.24 free, 1.6 held at 1.25, bad: -max(.5, .25) = -.5; loss -(3.69 - .5) = -3.19
    batch = batch_of([0.3, 0.31, 0.4, 0.125], [0.25] * 4, [1, 1, 1, -1])
    found = loss_of(batch, "how-much")
    assert number(found.value) == pytest.approx(-3.19, abs=1e-5)
    assert numbers(found.terms.side[:, 0]) == [0, 0, 1, 0]
    assert numbers(gradient_of(batch, "how-much")[:, 0]) == pytest.approx([-1.2, -1.24, 0, 0.5])
    # .31 is within 2 % of .3125 (.0063); .4 is beyond; none went the wrong way
    measured = {name: number(a / b) for name, (a, b) in metrics(found.terms, "how-much").items()}
    assert measured["target/reached"] == 0.25
    assert measured["target/overshot"] == 0.25
    assert measured["target/wrong_way"] == 0
    assert measured["at_bound"] == 0.25
    assert found.terms.target is not None
    assert numbers(found.terms.target[:, 0]) == pytest.approx([0.3125] * 3 + [0.0625], abs=1e-6)


def test_what_moved_the_wrong_way_is_counted_and_what_is_left_alone_is_not() -> None:
    # good .25 -> .2 and bad .25 -> .3 moved away, bad .25 -> .02 overshot .0625; one has sign 0
    batch = batch_of([0.2, 0.3, 0.02, 0.9], [0.25] * 4, [1, -1, -1, 0])
    found = loss_of(batch, "how-much")
    measured = metrics(found.terms, "how-much")
    counts = [numbers(mx.stack(list(measured[f"target/{n}"]))) for n in ("overshot", "wrong_way")]
    assert counts == [[1, 3], [2, 3]]
    assert number(measured["target/reached"][0]) == 0
    assert numbers(found.terms.advantage[:, 0]) == [1, -1, -1, 0]
    assert numbers(gradient_of(batch, "how-much")[:, 0])[2:] == [0, 0]


def test_the_tolerance_is_relative_to_the_target() -> None:
    # target of one good token at .04: .2; .19 is 5 % away
    for tolerance, reached in ((0.04, 0), (0.06, 1)):
        how = recipe("how-much", target_tolerance=tolerance)
        found = loss_of(batch_of([0.19], [0.04], [1]), how)
        assert number(metrics(found.terms, how)["target/reached"][0]) == reached


@pytest.mark.parametrize("missing", ["token_ids", "group_ids"])
def test_targets_need_tokens_and_groups(missing: str) -> None:
    batch = batch_of([0.3], [0.25], [1])
    with pytest.raises(MathsError, match="give token_ids and group_ids"):
        loss_of(batch, "how-much", **{missing: None})
