"""Numbers that can be checked by hand; the arithmetic is above each."""

import math

import mlx.core as mx
import pytest

from grpo_engine.config.recipes import Recipe, recipe
from grpo_engine.maths.advantage import advantages
from grpo_engine.maths.anchor import k1, k2, k3
from grpo_engine.maths.loss import Loss, policy_loss
from tests.engine.maths.helpers import number, numbers

FOUR = mx.array([0, 0, 0, 0])
ONE_TOKEN = mx.ones((4, 1))


def column(*probabilities: float) -> mx.array:
    """Log-probabilities of one-token completions. [B,1]"""
    return mx.log(mx.array(probabilities))[:, None]


def loss_of(
    new: list[float],
    old: list[float] | None,
    worth: list[float],
    how: str | Recipe,
    ref: float = 0.5,
) -> Loss:
    """The loss of one-token completions with these probabilities."""
    rows = len(new)
    return policy_loss(
        column(*new),
        None if old is None else column(*old),
        column(*[ref] * rows),
        mx.array(worth),
        mx.ones((rows, 1)),
        how,
        group_ids=mx.zeros(rows),
    )


def terms_of(new: list[float], old: list[float], worth: list[float]) -> list[float]:
    """J of each token, clipped at ±.2."""
    how = recipe("grpo", beta=0.0)
    return numbers(loss_of(new, old, worth, how).terms.objective[:, 0])


# Rewards 1, 0, 1, .9: mean 2.9/4 = .725; deviations .275 -.725 .275 .175;
# squares .075625 .525625 .075625 .030625, sum .7075; sample std √(.7075/3) = .4856.
REWARDS = [1.0, 0.0, 1.0, 0.9]
OLD, NEW, REF = [0.25, 0.30, 0.20, 0.25], [0.30, 0.21, 0.28, 0.21], [0.28, 0.15, 0.26, 0.22]


def test_sequence_ratios_and_terms_of_the_group_of_four() -> None:
    # ratios .30/.25 = 1.2, .21/.30 = .7, .28/.20 = 1.4, .21/.25 = .84
    # terms: 1.2*.566 = .680 (at the bound); A < 0: min(.7*-1.493, .8*-1.493) = -1.194;
    # min(1.4, 1.2)*.566 = .680; .84*.360 = .303
    worth = advantages([[r] for r in REWARDS], FOUR, recipe("grpo", signal_eps=0.0)).values
    how = recipe("grpo", ratio="sequence_sum", beta=0.0)
    terms = loss_of(NEW, OLD, numbers(worth), how).terms
    assert terms.ratio[:, 0].tolist() == pytest.approx([1.2, 0.7, 1.4, 0.84], abs=1e-6)
    assert terms.objective[:, 0].tolist() == pytest.approx([0.680, -1.194, 0.680, 0.303], abs=6e-4)


def test_kl_and_objective_of_the_group_of_four() -> None:
    # k3 = ref/new - log(ref/new) - 1: .28/.30 -> .0023, .15/.21 -> .0508, .26/.28 -> .0027,
    # .22/.21 -> .0011; mean .0142; mean term (.680 - 1.194 + .680 + .303)/4 = .117
    # objective .117 - .05*.0142 = .116
    worth = advantages([[r] for r in REWARDS], FOUR, recipe("grpo", signal_eps=0.0)).values
    found = policy_loss(
        column(*NEW),
        column(*OLD),
        column(*REF),
        worth,
        ONE_TOKEN,
        recipe("grpo", beta=0.05),
        group_ids=FOUR,
    )
    assert found.terms.kl is not None
    assert found.terms.kl[:, 0].tolist() == pytest.approx(
        [0.0023, 0.0508, 0.0027, 0.0011], abs=6e-5
    )
    assert -found.value.item() == pytest.approx(0.116, abs=6e-4)


def test_rewards_one_one_nought_one_nought_with_the_population_deviation() -> None:
    # mean .6, variance .6*.4 = .24, std .490: .4/.490 = .816, -.6/.490 = -1.22
    how = recipe("grpo", std="population", signal_eps=0.0)
    found = advantages([[1.0], [1.0], [0.0], [1.0], [0.0]], [0] * 5, how)
    assert found.group_std[0].item() == pytest.approx(0.490, abs=5e-4)
    expected = [0.816, 0.816, -1.225, 0.816, -1.225]
    assert found.values.tolist() == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(
    ("old", "worth", "new", "expected"),
    [
        # .008/.010 = .8, 1, 1.2, then 10 and 50 held at 1.2
        (0.010, 1.0, [0.008, 0.010, 0.012, 0.100, 0.500], [0.8, 1, 1.2, 1.2, 1.2]),
        # .8/.9 = .889, 1, 1.056, 1/.9 = 1.111: never reaches 1.2
        (0.900, 1.0, [0.8, 0.9, 0.95, 1.0], [0.889, 1, 1.056, 1.111]),
        # -1, -.8/.9 = -.889, -.72/.9 = -.8, then held at -.8
        (0.900, -1.0, [0.9, 0.8, 0.72, 0.5, 0.1], [-1, -0.889, -0.8, -0.8, -0.8]),
    ],
)
def test_rare_tokens_reach_the_bound_at_once_and_likely_ones_never(
    old: float, worth: float, new: list[float], expected: list[float]
) -> None:
    found = terms_of(new, [old] * len(new), [worth] * len(new))
    assert found == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(
    ("log_ref", "kl_term", "total"),
    [
        # clip term: dJ/dπ = A/π_old = .01/.5 = .0200
        # KL term: -β·d(k3)/dπ = -β(1/π - ref/π²) = -.02*(1/.6 - ref/.36)
        (math.log(0.5), -0.0056, 0.0144),  # -.02*(1.6667 - 1.3889)
        (math.log(0.1), -0.0278, -0.0078),  # -.02*(1.6667 - .2778)
        (-50 * math.log(10), -0.0333, -0.0133),  # -.02*1.6667
    ],
)
def test_the_gradient_just_inside_the_bound(log_ref: float, kl_term: float, total: float) -> None:
    def objective(p: mx.array, worth: float) -> mx.array:
        how = recipe("grpo", beta=0.02)
        ref, old = mx.array([[log_ref]]), column(0.5)
        one = mx.ones((1, 1))
        found = policy_loss(mx.log(p), old, ref, mx.array([worth]), one, how, group_ids=FOUR[:1])
        return -found.value

    inside = mx.array([[0.6 - 1e-6]])  # 1e-6 below the bound 1.2*.5
    slope = mx.grad(objective)
    assert slope(inside, 0.01).item() == pytest.approx(total, abs=6e-5)
    assert slope(inside, 0.0).item() == pytest.approx(kl_term, abs=6e-5)
    assert slope(inside, 0.01).item() - slope(inside, 0.0).item() == pytest.approx(0.02, abs=1e-6)


def test_the_coefficient_on_the_score_at_the_old_policy() -> None:
    # A + β(ref/π - 1) with A = .7, β = .3, ref .2, π .5: .7 + .3*(.4 - 1) = .52
    def objective(new: mx.array) -> mx.array:
        how, one = recipe("grpo", beta=0.3), mx.ones((1, 1))
        worth = mx.array([0.7])
        return -policy_loss(new, None, column(0.2), worth, one, how, group_ids=FOUR[:1]).value

    assert mx.grad(objective)(column(0.5)).item() == pytest.approx(0.52, abs=1e-6)


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [
        # u = ref/π, x = log(π/ref) = -log u; k3 = u - log u - 1 at .5, 1, 2:
        # .5 + .6931 - 1 = .1931; 0; 2 - .6931 - 1 = .3069
        (k3, [0.1931, 0, 0.3069]),
        (k1, [0.6931, 0, -0.6931]),
        (k2, [0.2402, 0, 0.2402]),  # .6931²/2
    ],
)
def test_estimates_of_kl_at_half_one_and_two(estimate: object, expected: list[float]) -> None:
    assert callable(estimate)
    found = estimate(-mx.log(mx.array([0.5, 1.0, 2.0])))
    assert found.tolist() == pytest.approx(expected, abs=5e-5)


def test_equal_lengths_hide_what_unequal_lengths_show() -> None:
    # group of four, A = 1, 1, -1, -1 (zero-sum), lengths 5 60 12 40, ratio 1:
    # per_sequence: each completion counts A_i, sum 0.
    # per_token: (5 + 60 - 12 - 40)/117 = .111 -> loss -.111
    lengths = mx.array([5, 60, 12, 40])
    mask = mx.arange(60)[None, :] < lengths[:, None]
    new, worth = -mx.ones((4, 60)), mx.array([1.0, 1.0, -1.0, -1.0])

    def value(how: str | Recipe) -> float:
        return number(policy_loss(new, None, None, worth, mask, how, group_ids=FOUR).value)

    assert value(recipe("grpo", beta=0.0)) == pytest.approx(0, abs=1e-6)
    assert value("dapo") == pytest.approx(-13 / 117, abs=1e-6)
