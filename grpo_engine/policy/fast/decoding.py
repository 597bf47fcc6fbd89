"""A decode step of a Llama-like model by compiled code, `cpu/decode.c`.

`CompiledStep` reads the weights that the sampler uses. Whether the model is one whose layers that
code computes is found out by comparing logits when it is loaded.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from grpo_engine.cpu import blas
from grpo_engine.cpu.structs import Step
from grpo_engine.policy.adapters import as_sampler, may_compile
from grpo_engine.policy.fast.compiled import CompiledHead, CompiledModel
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.structure import agrees

Storage = Sequence[Sequence[np.ndarray]]
"""For each layer keys and values, [rows, kv_heads, capacity, head_dim], and, if all rows share a
prompt, the prompt's keys and values, [1, kv_heads, prompt_length, head_dim]."""


def computes(policy: Policy, tolerance: float) -> bool:
    """Whether compiled steps agree with the model, with adapters that are not zero."""
    if blas.products() is None or not may_compile(policy.fast):
        return False
    tokens = np.array([[7 * i % policy.vocabulary, 3 * i % policy.vocabulary] for i in range(1, 6)])
    adapters = policy.snapshot()
    lora_b = {name: mx.full(a.shape, 0.01) for name, a in adapters.items() if "lora_b" in name}
    policy.module.eval()
    try:
        with (
            policy.using({**adapters, **lora_b}),
            as_sampler(policy.model, policy.fast, compiled=True),
        ):
            step = CompiledStep(policy)
            step.use(step.storage(rows=2, capacity=len(tokens)))
            expected = policy.model(mx.array(tokens.T))[:, -1]
            logits = [step.logits(row, (0, 0), index) for index, row in enumerate(tokens.tolist())]
        return agrees(mx.array(logits[-1]), expected, tolerance)
    except (TypeError, ValueError, AttributeError, RuntimeError, LookupError, AssertionError):
        return False  # an unknown kind of model: MLX computes its steps


class CompiledStep(CompiledModel):
    """The layers and the head of a policy that samples."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._head = CompiledHead(policy)

    def storage(self, rows: int, capacity: int) -> Storage:
        """Empty keys and values."""
        shape = (rows, self._model.kv_heads, capacity, self._head_dim)
        return [[np.zeros(shape, np.float32) for _ in range(2)] for _ in self._layers]

    def use(self, storage: Storage) -> None:
        """Read and write these keys and values from now on."""
        for layer, arrays in zip(self._layers, storage, strict=True):
            names = ("key_cache", "value_cache", "prompt_keys", "prompt_values")
            for name, array in zip(names, arrays, strict=False):
                setattr(layer, name, array.ctypes.data)
        self._storage = storage

    def logits(self, tokens: Sequence[int], starts: Sequence[int], position: int) -> np.ndarray:
        """Run one token per row, stored at `position`; row i began at starts[i], [n, V]."""
        arrays = self._storage[0]
        prompt_length = arrays[2].shape[2] if len(arrays) > 2 else 0
        first = np.array(starts, np.int32)
        cos_sin = self.cos_sin(prompt_length + position - first)
        step = Step(
            rows=len(tokens), capacity=arrays[0].shape[2], position=position,
            prompt_length=prompt_length, starts=first.ctypes.data, cos_sin=cos_sin.ctypes.data,
        )  # fmt: skip
        states = self.embedded(np.array(tokens))
        workspace = np.empty(self._library.decode_workspace(self._model, step), np.float32)
        logits = np.empty((len(tokens), self._head.vocabulary), np.float32)
        self._library.decode_layers(
            self._model, self._layers, step, states.ctypes.data, workspace.ctypes.data
        )
        self._library.decode_head(
            self._model, len(tokens), self._head.vocabulary, self._norm, self._head.linear,
            states.ctypes.data, logits.ctypes.data,
        )  # fmt: skip
        return logits
