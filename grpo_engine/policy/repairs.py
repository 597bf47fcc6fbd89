"""Repairs a few of mlx-lm's models, so that they train or are decoded as one batch."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import (
    gemma2,
    gemma3n,
    gpt_bigcode,
    longcat_flash_ngram,
    plamo3,
    recurrent_gemma,
)
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from grpo_engine.policy.caches import PrefixCache


class Gemma2Attention(gemma2.Attention):
    """Takes a mask for each row, [B, 1, L, T], though its queries have an axis for their groups."""

    def __call__(self, x: mx.array, mask: mx.array | None = None, cache: Any = None) -> mx.array:
        if mask is not None and mask.ndim == 4 and self.repeats > 1:
            mask = mask[:, :, None]
        out: mx.array = super().__call__(x, mask, cache)
        return out


class Gemma3nLanguageModel(gemma3n.LanguageModel):
    """Layers without keys and values read those of other layers without a cache too."""

    def __call__(
        self, inputs: Any = None, cache: Any = None, input_embeddings: Any = None
    ) -> mx.array:
        if cache is None:
            caches = self.make_cache()  # type: ignore[no-untyped-call]  # mlx-lm has no types
            cache = [PrefixCache(getattr(layer, "max_size", None)) for layer in caches]
        out: mx.array = super().__call__(inputs, cache, input_embeddings)
        return out


class GPTBigCodeModel(gpt_bigcode.GPTBigCodeModel):
    """Takes a position for each row."""

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        cache = cache or [None] * len(self.h)
        start = cache[0].offset if cache[0] else 0
        positions = mx.array(start)[..., None] + mx.arange(inputs.shape[1])
        states = self.wte(inputs) + self.wpe(positions)
        mask = create_attention_mask(states, cache[0])
        for layer, layer_cache in zip(self.h, cache, strict=True):
            states = layer(states, mask, cache=layer_cache)
        out: mx.array = self.ln_f(states)
        return out


class NgramEmbedding(longcat_flash_ngram.NgramEmbedding):
    """Keeps as many tokens for rows of any length, 0 before the first one, and no padding."""

    def __call__(self, input_ids: mx.array, cache: ArraysCache | None = None) -> mx.array:
        if cache is None:
            out: mx.array = super().__call__(input_ids)
            return out
        width, lengths = self.n - 1, cache.lengths
        if cache[0] is None:
            cache[0] = mx.zeros((input_ids.shape[0], width), dtype=mx.int64)
        context = mx.concatenate([cache[0], input_ids], axis=1)
        out = super().__call__(input_ids, cache)
        if lengths is not None:
            ends = mx.clip(lengths, 0, input_ids.shape[1])[:, None]
            cache[0] = mx.take_along_axis(context, ends + mx.arange(width), axis=1)
        cache.advance(input_ids.shape[1])
        return out


class Plamo3(plamo3.Model):
    """Caches as many tokens as its mask shows: the window and the token itself."""

    def make_cache(self) -> list[KVCache | RotatingKVCache]:
        caches: list[KVCache | RotatingKVCache] = super().make_cache()  # type: ignore[no-untyped-call]
        for cache in caches:
            if isinstance(cache, RotatingKVCache):
                cache.max_size += 1
        return caches


class RGLRU(recurrent_gemma.RGLRU):
    """Has a gradient where the decay a rounds to 1: 1 - a^2 is computed as -expm1(2 log a)."""

    def __call__(self, x: mx.array, cache: mx.array | None = None) -> tuple[mx.array, mx.array]:
        gate = self._gate(x, self.recurrent_gate_weight, self.recurrent_gate_bias)
        log_a = -8 * gate * nn.softplus(self.recurrent_param)
        scale = mx.sqrt(-mx.expm1(2 * log_a))
        if cache is None:
            scale[:, 0] = 1
        gated = x * self._gate(x, self.input_gate_weight, self.input_gate_bias)
        outputs: tuple[mx.array, mx.array] = recurrent_gemma.rnn_scan(
            gated * scale, mx.exp(log_a), cache
        )
        return outputs

    def _gate(self, x: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
        heads = mx.unflatten(x, -1, (self.num_heads, self.head_dim)).swapaxes(1, 2)
        return mx.sigmoid(((heads @ weight).swapaxes(1, 2) + bias).flatten(2))


REPAIRED: dict[type, type] = {
    kind.__mro__[1]: kind
    for kind in (
        Gemma2Attention,
        Gemma3nLanguageModel,
        GPTBigCodeModel,
        NgramEmbedding,
        Plamo3,
        RGLRU,
    )
}


def repair(model: nn.Module) -> None:
    """Replace this model's modules that have a fault."""
    if not hasattr(model, "_no_grad"):  # recurrent_gemma does not initialise it
        nn.Module.__init__(model)
    for module in model.modules():
        if kind := REPAIRED.get(type(module)):
            module.__class__ = kind
