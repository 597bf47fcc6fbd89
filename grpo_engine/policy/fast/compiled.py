"""A Llama-like model's weights, as compiled code reads them; raises ValueError for other models."""

from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models import rope_utils
from mlx_lm.tuner.lora import LoRALinear

from grpo_engine.cpu import blas
from grpo_engine.cpu.structs import Layer, Linear, Model, declare
from grpo_engine.policy.head import LOG2_E
from grpo_engine.policy.policy import Policy

FIXED: Final = (nn.RoPE, rope_utils.Llama3RoPE, rope_utils.YarnRoPE, rope_utils.SuScaledRoPE)
"""Rotations that depend on a token's position alone, not on the length of its sequence."""
GROWTH: Final = 512  # positions by which the table of rotations grows
CHECKED: Final = 3  # positions at which the rotations of all layers are compared
LINEARS: Final = (
    ("queries", "self_attn", "q_proj"), ("keys", "self_attn", "k_proj"),
    ("values", "self_attn", "v_proj"), ("out", "self_attn", "o_proj"),
    ("gate", "mlp", "gate_proj"), ("up", "mlp", "up_proj"), ("down", "mlp", "down_proj"),
)  # fmt: skip


class Compiled:
    """Weights of a policy as they are at the moment."""

    def __init__(self) -> None:
        products = blas.products()
        if products is None:
            raise ValueError("no compiled code")
        self._library = declare(products.library)
        self._kept: list[np.ndarray] = []  # arrays whose addresses the code was given

    def _linear(self, layer: Any, given: int, wanted: int) -> Linear:
        base = layer.get("linear", layer)
        bias = base.get("bias")
        made = Linear(
            weight=self._address(_floats(mx.contiguous(base.weight.T)), given, wanted),
            bias=None if bias is None else self._address(_floats(bias), wanted),
        )
        if base is not layer:
            if not isinstance(layer, LoRALinear) or (layer.dropout._p_1 < 1 and layer.training):
                raise ValueError("an adapter of another kind")
            if getattr(layer, "is_off", False):
                return made
            made.rank = layer.lora_a.shape[1]
            made.narrow = self._address(_floats(layer.lora_a).T, made.rank, given)
            made.wide = self._address(
                np.float32(layer.scale) * _floats(layer.lora_b), made.rank, wanted
            )
        return made

    def _address(self, array: np.ndarray, *shape: int) -> int:
        floats = np.ascontiguousarray(array)
        if floats.shape != shape:
            raise ValueError("layers of other shapes")
        self._kept.append(floats)
        return floats.ctypes.data


class CompiledHead(Compiled):
    """The head of a policy: logits of normalised states."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        assert policy.parts is not None
        head = policy.parts.owner.get("lm_head", policy.parts.trunk.embed_tokens)
        self.width, self.vocabulary = sizes(head)
        self.linear = self._linear(head, self.width, self.vocabulary)
        if self.linear.rank:
            raise ValueError("a head that is adapted")


class CompiledModel(Compiled):
    """The layers of a policy."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        if policy.parts is None or any(policy.windows or ()):
            raise ValueError("a model that the code does not fit")
        trunk: Any = policy.parts.trunk
        first = trunk.layers[0].self_attn
        self._embedding = np.asarray(_floats(trunk.embed_tokens.weight))
        self._rope, self._width = first.rope, sizes(first.k_proj)[1] // first.n_kv_heads
        self._turns = _turns(self._rope, self._width, GROWTH)
        self._epsilon = trunk.norm.eps
        self._shape = (first.n_heads, first.n_kv_heads, first.scale)
        self._model = Model(
            layers=len(trunk.layers), width=self._embedding.shape[1],
            inner=sizes(trunk.layers[0].mlp.gate_proj)[1], heads=self._shape[0],
            kinds=self._shape[1], each=self._width, turned=self._turns.shape[1],
            epsilon=self._epsilon, scale=self._shape[2] * LOG2_E, rank=0,
        )  # fmt: skip
        self._layers = (Layer * len(trunk.layers))(*map(self._layer, trunk.layers))
        self._norm = self._scales(trunk.norm, self._model.width)

    def embedded(self, tokens: np.ndarray) -> np.ndarray:
        """The states of tokens before the first layer, [N, D]."""
        return np.ascontiguousarray(self._embedding[tokens])

    def turns(self, places: np.ndarray) -> np.ndarray:
        """Cosines and sines of the rotations at these positions, [N, turned]."""
        while places.max() >= len(self._turns):
            self._turns = _turns(self._rope, self._width, len(self._turns) + GROWTH)
        found: np.ndarray = self._turns[places]
        return found

    def _layer(self, layer: Any) -> Layer:
        block, model = layer.self_attn, self._model
        turns = _turns(block.rope, self._width, CHECKED)
        given = (block.n_heads, block.n_kv_heads, block.scale)
        if not np.array_equal(turns, self._turns[:CHECKED]) or given != self._shape:
            raise ValueError("layers of different kinds")
        heads, kinds = model.heads * model.each, model.kinds * model.each
        sizes = {
            "queries": (model.width, heads), "keys": (model.width, kinds),
            "values": (model.width, kinds), "out": (heads, model.width),
            "gate": (model.width, model.inner), "up": (model.width, model.inner),
            "down": (model.inner, model.width),
        }  # fmt: skip
        found = Layer(
            norm=self._scales(layer.input_layernorm, model.width),
            norm_after=self._scales(layer.post_attention_layernorm, model.width),
            **{name: self._linear(layer[part][linear], *sizes[name])
               for name, part, linear in LINEARS},
        )  # fmt: skip
        ranks = (getattr(found, name).rank for name, _, _ in LINEARS)
        model.rank = max(model.rank, *ranks)
        if "q_norm" in block:
            found.norm_queries = self._scales(block.q_norm, model.each)
            found.norm_keys = self._scales(block.k_norm, model.each)
        return found

    def _scales(self, norm: nn.Module, width: int) -> int:
        if type(norm) is not nn.RMSNorm or norm.eps != self._epsilon:
            raise ValueError("norms of another kind")
        return self._address(_floats(norm.weight), width)


def _floats(array: mx.array) -> np.ndarray:
    if array.dtype != mx.float32:
        raise ValueError("weights of another type")
    return np.asarray(array)


def sizes(layer: Any) -> tuple[int, int]:
    """Width of what a product is given, and of what it returns."""
    wanted, given = layer.get("linear", layer).weight.shape
    return given, wanted


def _turns(rope: Any, width: int, count: int) -> np.ndarray:
    """Cosines and sines of the first positions, [count, dimensions that are rotated]."""
    if type(rope) not in FIXED:
        raise ValueError("rotations of another kind")
    turned = rope.dim if isinstance(rope, rope_utils.SuScaledRoPE) else rope.dims
    one = mx.arange(width) < turned // 2
    found = rope(mx.broadcast_to(one.astype(mx.float32), (1, 1, count, width)), offset=0)
    return np.ascontiguousarray(found[0, 0, :, :turned])
