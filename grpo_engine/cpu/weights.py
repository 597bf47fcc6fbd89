"""A Llama-like model's weights, as compiled code reads them; raises ValueError for other models."""

from collections.abc import Iterator
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models import rope_utils
from mlx_lm.tuner.lora import LoRALinear

from grpo_engine.cpu import blas
from grpo_engine.cpu.structs import PROJECTIONS, BatchStruct, Layer, Linear, Model, declare

FIXED: Final = (nn.RoPE, rope_utils.Llama3RoPE, rope_utils.YarnRoPE, rope_utils.SuScaledRoPE)
"""Rotations that depend on a token's position alone, not on the length of its sequence."""
GROWTH: Final = 512  # positions by which the table of cosines and sines grows
LOG2_E: Final = np.float32(np.log2(np.e))
BLOCKS: Final = {
    name: "mlp" if name in ("gate_proj", "up_proj", "down_proj") else "self_attn"
    for name in PROJECTIONS
}
"""The block of a layer that each projection belongs to."""


def transpose(model: nn.Module) -> None:
    """Store the float32 weights of products as [in, out], which saves a copy of each."""
    tied = getattr(getattr(model, "args", None), "tie_word_embeddings", False)
    kinds = (nn.Linear, nn.Embedding) if tied else (nn.Linear,)
    for layer in model.modules():
        if type(layer) in kinds and layer.weight.dtype == mx.float32:
            layer.weight = mx.contiguous(layer.weight.T).T
            mx.eval(layer.weight)  # One after another: two copies of a model may not fit.


def adapted(trunk: nn.Module) -> Iterator[tuple[int, str, Any]]:
    """Index of the layer, name and module of all projections with LoRA."""
    for index, layer in enumerate(trunk.layers):
        for name in PROJECTIONS:
            linear = layer[BLOCKS[name]][name]
            if isinstance(linear, LoRALinear):
                yield index, name, linear


class _Weights:
    """Structures, and the arrays that they point to."""

    def __init__(self) -> None:
        kernels = blas.products()
        if kernels is None:
            raise ValueError("no compiled code")
        self.library = declare(kernels)
        self.arrays: list[np.ndarray] = []

    def _linear(self, layer: Any, input_size: int, output_size: int) -> Linear:
        base = layer.get("linear", layer)
        bias = base.get("bias")
        weight = mx.contiguous(base.weight.T)  # counted by MLX if it is a copy
        linear = Linear(
            weight=self._address(_floats(weight), input_size, output_size),
            bias=None if bias is None else self._address(_floats(bias), output_size),
            input_size=input_size,
            output_size=output_size,
        )
        if base is layer:
            return linear
        if not isinstance(layer, LoRALinear) or (layer.dropout._p_1 < 1 and layer.training):
            raise ValueError("an adapter of another type")
        linear.rank = layer.lora_a.shape[1]
        linear.lora_a = self._address(_floats(layer.lora_a).T, linear.rank, input_size)
        linear.lora_b = self._address(
            np.float32(layer.scale) * _floats(layer.lora_b), linear.rank, output_size
        )
        return linear

    def _address(self, array: np.ndarray, *shape: int) -> int:
        floats = np.ascontiguousarray(array)
        if floats.shape != shape:
            raise ValueError("layers of other shapes")
        self.arrays.append(floats)
        return floats.ctypes.data


class HeadWeights(_Weights):
    """The head: logits of normalised states."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.linear = self._linear(head, *_sizes(head))
        if self.linear.rank:
            raise ValueError("a head that is adapted")


class TrunkWeights(_Weights):
    """The embedding, the layers and the last norm."""

    def __init__(self, trunk: Any) -> None:
        super().__init__()
        first = trunk.layers[0].self_attn
        self._embedding = np.asarray(_floats(trunk.embed_tokens.weight))
        self._rope, head_dim = first.rope, _sizes(first.k_proj)[1] // first.n_kv_heads
        self._cos_sin = _cos_sin(self._rope, head_dim, GROWTH)
        self._epsilon = trunk.norm.eps
        self.model = Model(
            layers=len(trunk.layers),
            hidden_size=self._embedding.shape[1],
            intermediate_size=_sizes(trunk.layers[0].mlp.gate_proj)[1],
            heads=first.n_heads,
            kv_heads=first.n_kv_heads,
            head_dim=head_dim,
            rotary_dims=self._cos_sin.shape[1],
            epsilon=self._epsilon,
            scale=np.float32(first.scale) * LOG2_E,
            max_rank=0,
        )
        self.layers = (Layer * len(trunk.layers))(*map(self._layer, trunk.layers))
        self.norm = self._norm_weight(trunk.norm, self.model.hidden_size)

    def embedded(self, tokens: np.ndarray) -> np.ndarray:
        """The states of tokens before the first layer, [N, D]."""
        return np.ascontiguousarray(self._embedding[tokens])

    def batch(self, positions: int, spans: np.ndarray) -> BatchStruct:
        """Tokens that attend to a prompt and a segment: their starts and lengths, [4, N]."""
        spans = np.ascontiguousarray(spans, np.int32)
        lengths = spans[1] + spans[3]
        longest = int(lengths.max())
        while longest > len(self._cos_sin):
            count = len(self._cos_sin) + GROWTH
            self._cos_sin = _cos_sin(self._rope, self.model.head_dim, count)
        cos_sin = self._cos_sin[lengths - 1]
        addresses = [*(row.ctypes.data for row in spans), cos_sin.ctypes.data]
        batch = BatchStruct(len(lengths), positions, longest, *addresses)
        batch.arrays = (spans, cos_sin)  # keeps the memory behind the addresses
        return batch

    def _layer(self, layer: Any) -> Layer:
        block, model = layer.self_attn, self.model
        if type(block.rope) is not type(self._rope):
            raise ValueError("rotations that differ")
        hidden, intermediate = model.hidden_size, model.intermediate_size
        q_size, kv_size = model.heads * model.head_dim, model.kv_heads * model.head_dim
        shapes = {
            "q_proj": (hidden, q_size),
            "k_proj": (hidden, kv_size),
            "v_proj": (hidden, kv_size),
            "o_proj": (q_size, hidden),
            "gate_proj": (hidden, intermediate),
            "up_proj": (hidden, intermediate),
            "down_proj": (intermediate, hidden),
        }
        weights = Layer(
            input_norm=self._norm_weight(layer.input_layernorm, hidden),
            post_attention_norm=self._norm_weight(layer.post_attention_layernorm, hidden),
            **{
                name: self._linear(layer[BLOCKS[name]][name], *shape)
                for name, shape in shapes.items()
            },
        )
        model.max_rank = max(model.max_rank, *(getattr(weights, name).rank for name in shapes))
        if "q_norm" in block:
            weights.q_norm = self._norm_weight(block.q_norm, model.head_dim)
            weights.k_norm = self._norm_weight(block.k_norm, model.head_dim)
        return weights

    def _norm_weight(self, norm: nn.Module, size: int) -> int:
        if type(norm) is not nn.RMSNorm or norm.eps != self._epsilon:
            raise ValueError("norms of another type")
        return self._address(_floats(norm.weight), size)


def _floats(array: mx.array) -> np.ndarray:
    if array.dtype != mx.float32:
        raise ValueError("weights of another type")
    return np.asarray(array)


def _sizes(layer: Any) -> tuple[int, int]:
    """Input and output size of a linear layer."""
    output_size, input_size = layer.get("linear", layer).weight.shape
    return input_size, output_size


def _cos_sin(rope: Any, head_dim: int, count: int) -> np.ndarray:
    """Cosines, then sines, of the first positions, [count, rotary_dims]."""
    if type(rope) not in FIXED:
        raise ValueError("rotations of another type")
    dims = rope.dim if isinstance(rope, rope_utils.SuScaledRoPE) else rope.dims
    unit = (mx.arange(head_dim) < dims // 2).astype(mx.float32)
    rotated = rope(mx.broadcast_to(unit, (1, 1, count, head_dim)), offset=0)
    return np.ascontiguousarray(rotated[0, 0, :, :dims])
