"""LoRA layers whose products are in the format of their input, from float32 masters.

mlx-lm's layer makes a float32 copy of a 16-bit input, and passes twice over the output to add the
adapter: base(x) + scale * ((x A) B). Here the product x A is narrow, in the format of x, and the
second one accumulates into the base's output.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.tuner.lora import LoRALinear


class AddedLoRA(LoRALinear):
    """base(x) + x A (scale B)."""

    def __call__(self, x: mx.array) -> mx.array:
        if self.dropout._p_1 < 1:
            plain: mx.array = super().__call__(x)  # type: ignore[no-untyped-call]  # mlx-lm has no types
            return plain
        narrow = x @ self.lora_a.astype(x.dtype)
        return mx.addmm(self.linear(x), narrow, (self.scale * self.lora_b).astype(x.dtype))


def install(model: nn.Module) -> None:
    """Replace this model's LoRA layers by `AddedLoRA`."""
    for layer in model.modules():
        if type(layer) is LoRALinear:
            layer.__class__ = AddedLoRA


class _Narrow:
    """x A of layers that may be given the same input, computed once for all of them."""

    def __init__(self, layers: Sequence[Any], dtype: mx.Dtype) -> None:
        self.a = mx.concatenate([layer.lora_a for layer in layers], axis=1).astype(dtype)
        widths = [layer.lora_a.shape[1] for layer in layers]
        self.bounds = list(accumulate(widths))[:-1]
        self.input: mx.array | None = None
        self.outputs: list[mx.array] = []

    def __call__(self, x: mx.array, index: int) -> mx.array:
        if self.input is not x:
            self.input, self.outputs = x, list(mx.split(x @ self.a, self.bounds, axis=-1))
        return self.outputs[index]


@cache
def _together(kind: type[AddedLoRA]) -> type[AddedLoRA]:
    """Subclass of a layer whose product x A is shared with its neighbours."""

    def call(self: Any, x: mx.array) -> mx.array:
        return mx.addmm(self.linear(x), self._narrow(x, self._index), self._b)

    return type(f"{kind.__name__}Together", (kind,), {"__call__": call})


@contextmanager
def applied_together(model: nn.Module) -> Iterator[None]:
    """Run frozen adapters of neighbours on the same input by one product."""
    groups: dict[tuple[str, int], list[Any]] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, AddedLoRA) and layer.dropout._p_1 == 1:
            groups.setdefault((name.rpartition(".")[0], layer.lora_a.shape[0]), []).append(layer)
    for layers in groups.values():
        dtype = _format(layers[0].linear)
        narrow = _Narrow(layers, dtype)
        for index, layer in enumerate(layers):
            layer._narrow, layer._index = narrow, index
            layer._b = (layer.scale * layer.lora_b).astype(dtype)
            kind: type[AddedLoRA] = type(layer)
            layer.__class__ = _together(kind)
    together = [layer for layers in groups.values() for layer in layers]
    try:
        mx.eval([(layer._narrow.a, layer._b) for layer in together])
        yield
    finally:
        for layer in together:
            layer.__class__ = type(layer).__mro__[1]
            del layer._narrow, layer._index, layer._b


def _format(linear: nn.Module) -> mx.Dtype:
    """The format of a layer's products; that of its scales if its weights are quantised."""
    dtype: mx.Dtype = linear["scales" if "scales" in linear else "weight"].dtype
    return dtype
