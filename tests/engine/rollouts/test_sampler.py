"""The sampler draws from the distribution that it reports."""

import math

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from grpo_engine.cpu import draw as numpy_draw
from grpo_engine.cpu.kernels import Kernels
from grpo_engine.rollouts.noise import row_key, token_keys, uniforms
from grpo_engine.rollouts.sampler import draw
from grpo_engine.rollouts.types import Sampling

# Probabilities .5 .2 .15 .1 .05 at temperature 1.
LOGITS = mx.log(mx.array([[0.5, 0.2, 0.15, 0.1, 0.05]]))
KERNELS = Kernels(trunk=nn.Module(), head=nn.Module(), trains=False)
BOTH = [KERNELS, None]


def kept_by(
    sampling: Sampling, logits: mx.array = LOGITS, *, kernels: Kernels | None = KERNELS
) -> dict[int, float]:
    """Every token drawn in many tries, with its reported probability."""
    rows = 4000
    keys = token_keys(
        [row_key(seed=0, step=0, prompt="", attempt=0, index=i) for i in range(rows)], [0] * rows
    )
    drawn = draw(mx.broadcast_to(logits, (rows, logits.shape[1])), sampling, keys, kernels=kernels)
    tokens, said = np.array(drawn.tokens), np.exp(np.array(drawn.logprobs))
    for token in set(tokens.tolist()):
        share, told = np.mean(tokens == token), said[tokens == token][0]
        assert abs(share - told) < 4 * math.sqrt(told * (1 - told) / rows) + 1e-9
    return {int(token): float(said[tokens == token][0]) for token in np.unique(tokens)}


@pytest.mark.parametrize("kernels", BOTH, ids=["kernels", "graph"])
@pytest.mark.parametrize("among", [5, 5000])
def test_shares_of_drawn_tokens_are_their_probabilities(
    among: int, kernels: Kernels | None
) -> None:
    others = mx.full((1, among - 5), -mx.inf)
    shares = kept_by(Sampling(), mx.concatenate([others, LOGITS], axis=1), kernels=kernels)
    expected = {0: 0.5, 1: 0.2, 2: 0.15, 3: 0.1, 4: 0.05}
    assert shares == pytest.approx({among - 5 + token: p for token, p in expected.items()})


def test_runs_of_earlier_versions_draw_with_their_own_noise() -> None:
    keys = token_keys([row_key(seed=1, step=1, prompt="p", attempt=0, index=0)] * 20, range(20))
    logits = mx.broadcast_to(LOGITS, (20, 5))
    race = mx.softmax(logits, axis=1) / -mx.log2(uniforms(keys, 5))
    assert draw(logits, Sampling(noise=2), keys).tokens.tolist() == race.argmax(axis=1).tolist()


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("spread", [0, 0.3, 3, 9, 40])
@pytest.mark.parametrize("temperature", [1, 0.6])
def test_looking_at_few_tokens_draws_what_looking_at_all_does(
    dtype: mx.Dtype, spread: float, temperature: float
) -> None:
    logits = (spread * mx.random.normal((150, 5000), key=mx.random.key(3))).astype(dtype)
    logits[::3, 7] = 20.0 + 2 * spread  # one token is nearly certain: few others can win
    keys = token_keys([11 << 33] * 150, range(150))
    sampling = Sampling(temperature=temperature)
    few, all_ = (draw(logits, sampling, keys, kernels=kernels) for kernels in BOTH)
    assert few.tokens.tolist() == all_.tokens.tolist()
    assert mx.allclose(few.logprobs, all_.logprobs, atol=2e-4)
    assert mx.array_equal(few.logprobs, few.raw_logprobs)


def test_log_probabilities_are_exact_over_a_large_vocabulary() -> None:
    logits = 2 * mx.random.normal((2, 49152), key=mx.random.key(1))
    exact = np.array(logits).astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    for kernels in BOTH:
        drawn = draw(logits, Sampling(), token_keys([1, 2], [0, 0]), kernels=kernels)
        expected = exact[[0, 1], np.array(drawn.tokens)]
        assert np.array(drawn.logprobs) == pytest.approx(expected, abs=4e-6)


@pytest.mark.parametrize("least", [numpy_draw.MIN_WEIGHT, 2.0])  # 2: the first look finds nothing
def test_a_token_that_wins_with_a_tiny_weight_is_found(
    monkeypatch: pytest.MonkeyPatch, least: float
) -> None:
    # One token has weight 1 and 5,000 have 2^-12 each: these win 5000 / 9096 = 55 % of all races.
    monkeypatch.setattr(numpy_draw, "MIN_WEIGHT", least)
    logits = mx.full((2000, 5001), -12 * math.log(2))
    logits[:, 0] = 0
    keys = token_keys(range(2000), range(2000))
    few, all_ = (draw(logits, Sampling(), keys, kernels=kernels).tokens for kernels in BOTH)
    assert mx.array_equal(few, all_)
    assert mx.mean(few > 0).item() == pytest.approx(5000 / 9096, abs=0.04)


def test_temperature_sharpens() -> None:
    # .25 .04 .0225 .01 .0025 divided by their sum .325
    expected = {0: 0.25 / 0.325, 1: 0.04 / 0.325, 2: 0.0225 / 0.325, 3: 0.01 / 0.325}
    found = kept_by(Sampling(temperature=0.5))
    assert {token: found[token] for token in expected} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(top_k=2), (0, 1)),  # the two likeliest
        (Sampling(top_p=0.6), (0, 1)),  # .5 < .6 <= .7
        (Sampling(top_p=0.5), (0,)),  # .5 is enough
        (Sampling(min_p=0.25), (0, 1, 2)),  # at least .125
        (Sampling(top_k=4, top_p=0.75), (0, 1, 2)),  # of the top 4 (.95): .5 .7 < .7125 <= .85
    ],
)
def test_cuts_keep_the_likeliest_and_say_their_new_probabilities(
    sampling: Sampling, kept: tuple[int, ...]
) -> None:
    probabilities = [0.5, 0.2, 0.15, 0.1, 0.05]
    total = sum(probabilities[token] for token in kept)
    expected = {token: probabilities[token] / total for token in kept}
    assert kept_by(sampling) == pytest.approx(expected, rel=1e-4)


def test_a_repetition_penalty_makes_seen_tokens_less_likely() -> None:
    logits = mx.array([[2.0, -1.0, 1.0]])
    seen = mx.array([[True, True, False]])
    drawn = draw(
        logits, Sampling(repetition_penalty=2.0, temperature=0), token_keys([0], [0]), seen_BV=seen
    )
    # 2 / 2 = 1, -1 * 2 = -2, 1: the first of two equal ones is taken.
    assert drawn.tokens.item() == 0
    total = math.exp(1) + math.exp(-2) + math.exp(1)
    assert float(drawn.logprobs[0]) == pytest.approx(1 - math.log(total), abs=1e-6)
    raw = 2 - math.log(math.exp(2) + math.exp(-1) + math.exp(1))
    assert float(drawn.raw_logprobs[0]) == pytest.approx(raw, abs=1e-6)


def test_row_keys_are_those_of_a_fixed_rule() -> None:
    # The first 8 bytes of blake2b over "seed 0 step 0 attempt 0 index 0 prompt", zero-separated.
    assert row_key(seed=1, step=2, prompt="p", attempt=3, index=4) == 0xFFC9407BEA235A55
    again = row_key(seed=1, step=2, prompt="p", attempt=3, index=4, occurrence=5)
    assert again == 0x089785C8FEAF7BB0
