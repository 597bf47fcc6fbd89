"""A decode step of a Llama-like model by compiled code, `platform/layers.c`.

`CompiledStep` reads the weights that the sampler uses. Whether the model is one whose layers that
code computes is found out by comparing logits when it is loaded.
"""

from collections.abc import Sequence
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models import rope_utils

from grpo_engine.platform import blas
from grpo_engine.platform.layers import Layer, Linear, Model, Step, declare
from grpo_engine.policy.adapters import adds_while_sampling, may_compile
from grpo_engine.policy.head import LOG2_E
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.structure import agrees

FIXED: Final = (nn.RoPE, rope_utils.Llama3RoPE, rope_utils.YarnRoPE, rope_utils.SuScaledRoPE)
"""Rotations that depend on a token's position alone, not on the length of its sequence."""
GROWTH: Final = 512  # positions by which the table of rotations grows
CHECKED: Final = 3  # positions at which the rotations of all layers are compared
LINEARS: Final = (
    ("queries", "self_attn", "q_proj"), ("keys", "self_attn", "k_proj"),
    ("values", "self_attn", "v_proj"), ("out", "self_attn", "o_proj"),
    ("gate", "mlp", "gate_proj"), ("up", "mlp", "up_proj"), ("down", "mlp", "down_proj"),
)  # fmt: skip


Storage = Sequence[Sequence[np.ndarray]]
"""For each layer keys and values, [rows, kinds, room, each], and, if all rows share a prompt, the
prompt's keys and values, [1, kinds, prompt, each]."""


def computes(policy: Policy, tolerance: float) -> bool:
    """Whether compiled steps agree with the model, with adapters that are not zero."""
    if blas.products() is None or not may_compile(policy.fast):
        return False
    tokens = np.array([[7 * i % policy.vocabulary, 3 * i % policy.vocabulary] for i in range(1, 6)])
    own = policy.snapshot()
    moved = {name: mx.full(a.shape, 0.01) for name, a in own.items() if name.endswith("lora_b")}
    was, policy.compiled = policy.compiled, True
    try:
        with policy.for_sampling({**own, **moved}):
            step = CompiledStep(policy)
            step.use(step.storage(rows=2, room=len(tokens)))
            whole = policy.model(mx.array(tokens.T))[:, -1]
            found = [step.logits(row, (0, 0), end) for end, row in enumerate(tokens.tolist())]
        return agrees(mx.array(found[-1]), whole, tolerance)
    except (TypeError, ValueError, AttributeError, RuntimeError, LookupError, AssertionError):
        return False  # an unknown kind of model: MLX computes its steps
    finally:
        policy.compiled = was


class CompiledStep:
    """The layers and the head of a policy that samples; raises if it has others."""

    def __init__(self, policy: Policy) -> None:
        products = blas.products()
        if products is None or policy.parts is None or any(policy.windows or ()):
            raise ValueError("no compiled code, or a model that it does not fit")
        self._library = declare(products.library)
        self._kept: list[np.ndarray] = []  # arrays whose addresses the code was given
        trunk: Any = policy.parts.trunk
        first = trunk.layers[0].self_attn
        self._embedding = np.asarray(_floats(trunk.embed_tokens.weight))
        self._rope, self._width = first.rope, _sizes(first.k_proj)[1] // first.n_kv_heads
        self._turns = _turns(self._rope, self._width, GROWTH)
        self._epsilon = trunk.norm.eps
        self._shape = (first.n_heads, first.n_kv_heads, first.scale)
        self._model = Model(
            layers=len(trunk.layers), width=self._embedding.shape[1],
            inner=_sizes(trunk.layers[0].mlp.gate_proj)[1], heads=self._shape[0],
            kinds=self._shape[1], each=self._width, turned=self._turns.shape[1],
            epsilon=self._epsilon, scale=self._shape[2] * LOG2_E, rank=0,
        )  # fmt: skip
        self._layers = (Layer * len(trunk.layers))(*map(self._layer, trunk.layers))
        self._norm = self._scales(trunk.norm, self._model.width)
        head = policy.parts.owner.get("lm_head", trunk.embed_tokens)
        self._vocabulary = _sizes(head)[1]
        self._head = self._linear(head, self._model.width, self._vocabulary)
        if self._head.rank:
            raise ValueError("a head that is adapted")

    def storage(self, rows: int, room: int) -> Storage:
        """Empty keys and values."""
        shape = (rows, self._model.kinds, room, self._width)
        return [[np.zeros(shape, np.float32) for _ in range(2)] for _ in self._layers]

    def use(self, storage: Storage) -> None:
        """Read and write these keys and values from now on."""
        for layer, arrays in zip(self._layers, storage, strict=True):
            names = ("stored_keys", "stored_values", "prompt_keys", "prompt_values")
            for name, array in zip(names, arrays, strict=False):
                setattr(layer, name, array.ctypes.data)
        self._storage = storage

    def logits(self, tokens: Sequence[int], starts: Sequence[int], end: int) -> np.ndarray:
        """Run one token per row, stored at position `end`; row i began at starts[i], [n, V]."""
        keys = self._storage[0]
        prompt = keys[2].shape[2] if len(keys) > 2 else 0
        first = np.array(starts, np.int32)
        places = prompt + end - first
        while places.max() >= len(self._turns):
            self._turns = _turns(self._rope, self._width, len(self._turns) + GROWTH)
        turns = self._turns[places]
        step = Step(
            rows=len(tokens), room=keys[0].shape[2], end=end, prompt=prompt,
            starts=first.ctypes.data, turns=turns.ctypes.data,
        )  # fmt: skip
        states = np.ascontiguousarray(self._embedding[np.array(tokens)])
        spare = np.empty(self._library.scratch(self._model, step), np.float32)
        logits = np.empty((len(tokens), self._vocabulary), np.float32)
        self._library.run_layers(
            self._model, self._layers, step, states.ctypes.data, spare.ctypes.data
        )
        self._library.run_head(
            self._model, len(tokens), self._vocabulary, self._norm, self._head,
            states.ctypes.data, logits.ctypes.data,
        )  # fmt: skip
        return logits

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
        if "q_norm" in block:
            found.norm_queries = self._scales(block.q_norm, model.each)
            found.norm_keys = self._scales(block.k_norm, model.each)
        return found

    def _linear(self, layer: Any, given: int, wanted: int) -> Linear:
        base = layer.get("linear", layer)
        bias = base.get("bias")
        made = Linear(
            weight=self._address(layer.get("_whole", base.weight.T), given, wanted),
            bias=None if bias is None else self._address(bias, wanted),
        )
        if "_whole" not in layer and base is not layer:
            if not adds_while_sampling(layer):
                raise ValueError("an adapter of another kind")
            made.rank = layer.lora_a.shape[1]
            made.narrow = self._address(layer.lora_a.T, made.rank, given)
            made.wide = self._address(layer.scale * layer.lora_b, made.rank, wanted)
            self._model.rank = max(self._model.rank, made.rank)
        return made

    def _scales(self, norm: nn.Module, width: int) -> int:
        if type(norm) is not nn.RMSNorm or norm.eps != self._epsilon:
            raise ValueError("norms of another kind")
        return self._address(norm.weight, width)

    def _address(self, array: mx.array, *shape: int) -> int:
        floats = np.ascontiguousarray(_floats(array))
        if floats.shape != shape:
            raise ValueError("layers of other shapes")
        self._kept.append(floats)
        return floats.ctypes.data


def _floats(array: mx.array) -> np.ndarray:
    if array.dtype != mx.float32:
        raise ValueError("weights of another type")
    return np.asarray(array)


def _sizes(layer: Any) -> tuple[int, int]:
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
