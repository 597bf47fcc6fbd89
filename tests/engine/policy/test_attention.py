"""The fast attention matches the plain attention, and applies only to blocks that it supports."""

import math

import mlx.core as mx
import mlx.nn as nn
import pytest

from grpo_engine.policy.fast import attention
from grpo_engine.policy.fast.attention import Seen, attend, attend_one, causal, powers
from grpo_engine.policy.fast.caches import Layout, PrefixCache
from grpo_engine.policy.head import LOG2_E
from grpo_engine.policy.switches import FastPaths
from tests.engine.conftest import MakePolicy

ROWS, HEADS, KINDS, NEW, AHEAD, WIDTH = 6, 4, 2, 3, 5, 8


def arrays(*shapes: tuple[int, ...]) -> list[mx.array]:
    return [
        mx.random.normal(shape, key=mx.random.key(place)) * 2 for place, shape in enumerate(shapes)
    ]


def test_a_shared_prompt_has_the_plain_values_and_gradients() -> None:
    own, held = (ROWS, KINDS, NEW, WIDTH), (2, KINDS, AHEAD, WIDTH)
    given = arrays((ROWS, HEADS, NEW, WIDTH), own, own, held, held, (ROWS, NEW, HEADS * WIDTH))
    *inputs, weight = given
    layout = Layout((5, 5, 5, 3, 3, 3), AHEAD, (0, 0, 0, 1, 1, 1))
    assert layout.group == 3

    def plain(q: mx.array, k: mx.array, v: mx.array, pk: mx.array, pv: mx.array) -> mx.array:
        cache = PrefixCache(layout=layout)
        cache.keys, cache.values, cache.shared = pk, pv, True
        keys, values = cache.update_and_fetch(k, v)
        out = mx.fast.scaled_dot_product_attention(
            q, keys, values, scale=0.3, mask=layout.mask(NEW, None)
        )
        return (out.swapaxes(1, 2).reshape(ROWS, NEW, -1) * weight).sum()

    def quick(q: mx.array, k: mx.array, v: mx.array, pk: mx.array, pv: mx.array) -> mx.array:
        seen = Seen(k, v, causal(NEW, NEW))
        return (attend(q * 0.3 * LOG2_E, seen, Seen(pk, pv, layout.bias(3))) * weight).sum()

    places = list(range(5))
    expected, slopes = mx.value_and_grad(plain, argnums=places)(*inputs)
    found, own_slopes = mx.value_and_grad(quick, argnums=places)(*inputs)
    assert found.item() == pytest.approx(expected.item(), abs=1e-4)
    for mine, theirs in zip(own_slopes, slopes, strict=True):
        assert mx.allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padded", [False, True])
def test_one_new_token_per_row_attends_as_many_do(padded: bool) -> None:
    own = (ROWS, KINDS, AHEAD, WIDTH)
    q, k, v = arrays((ROWS, HEADS, 1, WIDTH), own, own)
    seen = mx.arange(AHEAD)[None] >= mx.array([0, 4, 2, 0, 1, 3])[:, None]
    mask = seen[:, None, None] if padded else None
    bias = mx.where(seen, 0.0, -mx.inf)[:, None, None] if padded else None
    plain = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=mask)
    found = attend_one(q * 0.3 * LOG2_E, Seen(k, v, bias))
    assert mx.allclose(found, plain.swapaxes(1, 2).reshape(ROWS, 1, -1), atol=1e-5)


def test_powers_of_two_are_right_far_below_zero_and_have_their_slope() -> None:
    x = mx.array([-math.inf, -1e9, -121.0, -3.0, -0.5, 0.0])
    (value,), (slope,) = mx.vjp(powers, [x], [mx.ones(6)])
    expected = mx.array([0.0, 0.0, 0.0, 0.125, 2**-0.5, 1.0])
    assert mx.allclose(value, expected, atol=1e-18)
    assert mx.allclose(slope, expected * math.log(2), atol=1e-18)


@pytest.mark.parametrize(
    ("prompt_of", "group"),
    [((0, 0, 0), 3), ((0, 1, 2), 1), ((0, 0, 1, 1), 2), ((0, 0, 1), 1), ((0, 1, 0, 1), 1)],
)
def test_rows_are_stacked_where_prompts_have_as_many_in_order(
    prompt_of: tuple[int, ...], group: int
) -> None:
    assert Layout((4,) * len(prompt_of), 4, prompt_of).group == group


@pytest.mark.skipif(mx.default_device() != mx.cpu, reason="the quick attention is for the CPU")
def test_attention_of_a_model_is_quick_only_while_the_switch_is_on(
    make_policy: MakePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy()
    seen: list[int] = []

    def counted(*args: Seen) -> mx.array:
        seen.append(1)
        return attend(*args)  # type: ignore[arg-type]  # as many as came

    monkeypatch.setattr(attention, "attend", counted)
    assert policy.parts is not None
    layers = len(policy.model.layers)
    mx.eval(policy.parts.hidden(mx.array([[1, 2, 3]]), [PrefixCache() for _ in range(layers)]))
    assert len(seen) == layers
    policy.fast = FastPaths.plain()
    mx.eval(policy.parts.hidden(mx.array([[1, 2, 3]]), [PrefixCache() for _ in range(layers)]))
    assert len(seen) == layers


def test_a_block_with_another_softmax_stays_as_it_is(make_policy: MakePolicy) -> None:
    policy = make_policy()
    layer = policy.model.layers[0]
    plain = type(layer.self_attn).__mro__[1]

    class Capped(plain):  # type: ignore[misc,valid-type]  # a class found at run time
        def __call__(self, x: mx.array, *args: object, **rest: object) -> mx.array:
            out: mx.array = nn.tanh(plain.__call__(self, x, *args, **rest) * 50)
            return out

    layer.self_attn.__class__ = Capped
    attention.install(policy)
    assert type(layer.self_attn) is Capped


def test_a_window_that_only_the_mask_knows_is_kept(make_policy: MakePolicy) -> None:
    policy = make_policy()
    block = policy.model.layers[0].self_attn
    x = mx.random.normal((1, 6, 32), key=mx.random.key(2))
    mask = PrefixCache().make_mask(6, window_size=2)
    given = block(x, mask, PrefixCache())
    policy.fast = FastPaths.plain()
    assert mx.allclose(given, block(x, mask, PrefixCache()), atol=1e-6)
    assert not mx.allclose(given, block(x, "causal", PrefixCache()), atol=1e-3)


def test_hidden_keys_make_no_subnormal_numbers() -> None:
    """Their weights vanish in a sum of 1 (2^-60 < 2^-24), yet remain normal (2^-126 and more) as
    products with small gradients: 2^-60 * 1e-19 = 8.7e-38 > 1.2e-38."""
    weights = powers(mx.array([0.0, -1000.0, -mx.inf]))
    assert weights.sum().item() == 1
    assert mx.all(weights * 1e-19 > 2.0**-126)
