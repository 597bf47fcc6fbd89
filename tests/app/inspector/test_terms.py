"""Terms of made-up groups by hand: masks, entropies, values, denominators, and what is missing."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from grpo_engine.config.recipes import recipe
from grpo_engine.events import UpdateTotals
from grpo_tui.app.inspector.losses import TokenLoss, loss_mask, not_recorded, token_losses
from grpo_tui.experiments.values import RecordedTokens

HALF, QUARTER = math.log(0.5), math.log(0.25)
ONE = UpdateTotals(rows=2, tokens=10, batch_tokens=5, micro_batches=2)
OTHER = UpdateTotals(rows=4, tokens=20, minibatch=1, batch_tokens=8, micro_batches=3)
GRPO = recipe("grpo", beta=0.0)


def row(index: int = 0, **changes: Any) -> RecordedTokens:
    base: dict[str, Any] = {
        "ids": (5, 6),
        "sampler": (HALF, HALF),
        "old": (HALF, HALF),
        "reference": (HALF, HALF),
        "passes": ((HALF, HALF),),
        "advantages": (1.0, 1.0),
        "updates": (ONE,),
    }
    return RecordedTokens(index=index, **(base | changes))


def terms(how: Any, *rows: RecordedTokens) -> tuple[Sequence[TokenLoss], ...]:
    return token_losses(rows, how, max_length=16, step=1)


def pushes(how: Any, *rows: RecordedTokens) -> list[list[float]]:
    return [[one.contribution for one in answer] for answer in terms(how, *rows)]


# At ratio 1 a token's objective is its advantage: 1 for the first answer, -2 for the second.
@pytest.mark.parametrize(
    ("weight", "first", "second"),
    [
        ("per_sequence", 1 / 2 / 2, -2 / 3 / 4),
        ("per_completion", 1 / 2, -2 / 4),
        ("per_token", 1 / 10, -2 / 20),
        ("per_batch_token", 1 / 5 / 2, -2 / 8 / 3),
        ("constant", 1 / 16 / 2, -2 / 16 / 4),
        ("sum", 1.0, -2.0),
    ],
)
def test_each_answer_is_divided_by_the_totals_of_its_own_update(
    weight: str, first: float, second: float
) -> None:
    three: dict[str, Any] = dict.fromkeys(("sampler", "old", "reference"), (HALF,) * 3)
    longer = row(
        1, ids=(5, 6, 7), passes=((HALF,) * 3,), advantages=(-2.0,) * 3, updates=(OTHER,), **three
    )
    got = pushes(recipe("grpo", beta=0.0, weight=weight), row(), longer)
    assert got[0] == pytest.approx([first] * 2, rel=1e-6)
    assert got[1] == pytest.approx([second] * 3, rel=1e-6)


def test_a_masked_token_has_no_part_and_does_not_count_in_its_answers_length() -> None:
    # 1 / 1 token / 2 answers; without the mask 1 / 2 / 2
    ((left_out, kept),) = terms(GRPO, row(mask=(0, 1)))
    assert (left_out.in_loss, left_out.updated, left_out.contribution) == (False, False, 0.0)
    assert (kept.in_loss, kept.updated) == (True, True)
    assert kept.contribution == pytest.approx(0.5, rel=1e-6)


def test_only_tokens_at_or_above_the_updates_entropy_floor_are_pushed() -> None:
    top = replace(ONE, entropy_floor=0.5, updated_tokens=4)
    how = recipe("grpo", beta=0.0, entropy_top_quantile=0.2)
    ((below, at_it),) = terms(how, row(entropies=((0.49, 0.5),), updates=(top,)))
    assert (below.updated, at_it.updated) == (False, True)
    assert (below.contribution, at_it.contribution) == pytest.approx((0.0, 0.25))
    assert (below.entropy, at_it.entropy) == pytest.approx((0.49, 0.5))
    # the first pass's entropies serve for a run that recorded no others, and for the lab
    ((below, at_it),) = terms(how, row(entropy=(0.6, 0.4), updates=(top,)))
    assert (below.updated, at_it.updated) == (True, False)
    # without any, all tokens are pushed
    assert [t.updated for t in terms(how, row(updates=(top,)))[0]] == [True, True]


def test_the_anchor_reads_the_reference_if_it_was_recorded() -> None:
    # k3 = ref/new - log(ref/new) - 1 at 2: 2 - .6931 - 1 = .3069; (1 - .5 x .3069)/4 = .2116
    how = recipe("grpo", beta=0.5)
    held = row(old=(QUARTER, QUARTER), passes=((QUARTER, QUARTER),))
    ((first, _),) = terms(how, held)
    assert (first.anchor, first.kl) == pytest.approx((0.30685, 0.30685), rel=1e-4)
    assert first.contribution == pytest.approx(0.211644, rel=1e-5)
    ((bare, _),) = terms(how, replace(held, reference=()))
    assert (bare.anchor, bare.kl) == (0.0, None)
    assert bare.contribution == pytest.approx(0.25)
    # in the reward the distance is not part of the term, recorded or not
    paid = recipe("rloo", ratio="token")
    for one in (held, replace(held, reference=())):
        assert terms(paid, one)[0][0].contribution == pytest.approx(0.25)


def test_without_the_samplers_numbers_there_is_no_correction() -> None:
    drawn = row(old=(QUARTER, HALF), passes=((QUARTER, HALF),), advantages=(-1.0, -1.0))
    capped = recipe("grpo", beta=0.0, importance_cap=2.0)
    assert terms(capped, drawn)[0][0].importance == pytest.approx(0.5)
    assert terms(capped, replace(drawn, sampler=()))[0][0].importance == 1.0
    # log(.5/.25)/2 = .35 nats per token from the sampler, over .1: both tokens are left out
    near = recipe("grpo", beta=0.0, off_policy_mask=0.1)
    assert [t.on_policy for t in terms(near, drawn)[0]] == [False, False]
    assert [t.on_policy for t in terms(near, replace(drawn, sampler=()))[0]] == [True, True]
    moved = replace(drawn, passes=((QUARTER - 3, HALF - 3),), sampler=())
    assert [t.on_policy for t in terms(near, moved)[0]] == [True, True]
    cut = replace(drawn, sampled=(QUARTER, HALF))
    assert terms(capped, cut)[0][0].importance == pytest.approx(1.0)


def test_a_target_is_shared_by_the_answers_with_the_same_prefix() -> None:
    # one good and one bad first token at p = .5: t = .5² = .25 for the bad one; the good one has
    # s = min(1, (1 - .25 - .5)/(.7071 - .5)) = 1: t = .7071
    good = row(advantages=(1.0, 1.0))
    bad = row(1, ids=(9, 6), advantages=(-1.0, -1.0))
    up, down = terms(recipe("how-much"), good, bad)
    # at ratio 1 each may move to its target: .7071 / .5 up, .25 / .5 down
    assert (up[0].high, down[0].low) == pytest.approx((1.41421, 0.5), rel=1e-4)
    assert (up[0].advantage, down[0].advantage) == (1.0, -1.0)
    same = row(1, advantages=(-1.0, -1.0))
    up, down = terms(recipe("how-much"), good, same)
    assert [t.advantage for t in (*up, *down)] == [0.0] * 4


def test_every_number_of_a_term_is_the_engines() -> None:
    # ratio .25/.5 = .5 < .8 with A = -1: J = -.8, at the lower bound; 1/4 of it is the term
    far = row(passes=((QUARTER, HALF - 61),), advantages=(-1.0, 1.0))
    ((low, clamped),) = terms(GRPO, far)
    assert low.ratio == pytest.approx(0.5)
    assert (low.low, low.high, low.objective) == pytest.approx((0.8, 1.2, -0.8))
    assert (low.side, low.importance, low.on_policy) == ("low", 1.0, True)
    assert low.contribution == pytest.approx(-0.2)
    assert clamped.side == "free"
    ceiling = recipe("grpo", beta=0.0, delta=1.5)
    up = row(old=(QUARTER, QUARTER), advantages=(-1.0, 1.0))
    ((at_ceiling, high),) = terms(ceiling, up)
    assert (at_ceiling.side, high.side) == ("ceiling", "high")


def test_an_answer_has_the_numbers_of_its_own_last_pass() -> None:
    later = replace(ONE, rows=5)
    twice = row(passes=((HALF, HALF), (QUARTER, HALF)), updates=(ONE, later))
    once = row(1, updates=(OTHER,))
    second = pushes(GRPO, twice, once)
    # A = 1 at ratio .5: .5 / 2 / 5, and 1 / 2 / 5
    assert second[0] == pytest.approx([0.05, 0.1])
    assert second[1] == pytest.approx([1 / 8, 1 / 8])
    before = row(passes=())
    assert terms(GRPO, before)[0][0].ratio == 1.0


def test_a_group_without_tokens_has_no_terms() -> None:
    empty = row(ids=(), sampler=(), old=(), passes=(), reference=(), advantages=())
    assert terms(GRPO, empty, empty) == ((), ())
    assert terms(GRPO) == ()
    assert loss_mask(empty) == ()


OLDER = replace(row(), updates=())
UPDATES = "was recorded before its updates were"


@pytest.mark.parametrize(
    ("one", "how", "words"),
    [
        (row(), recipe("bnpo", minibatches=2, entropy_bonus=0.1), ""),
        (row(), recipe("ppo"), ""),
        (OLDER, GRPO, UPDATES),
        (OLDER, recipe("grpo", minibatches=2), UPDATES),
        (
            replace(row(), reference=()),
            recipe("grpo"),
            "did not record the reference's log-probabilities",
        ),
        (replace(row(), reference=()), recipe("rloo"), ""),
        (replace(row(), reference=()), GRPO, ""),
        (
            replace(row(), sampler=()),
            recipe("grpo", importance_cap=2.0),
            "did not record the sampler's log-probabilities",
        ),
        (replace(row(), sampler=()), GRPO, ""),
    ],
)
def test_what_a_run_did_not_record_is_said(one: RecordedTokens, how: Any, words: str) -> None:
    whole = f"its share of the loss is not known: this run {words}" if words else ""
    assert not_recorded((row(), replace(one, index=1)), how) == whole
    assert not_recorded((one,), how) == whole
