"""A decode step of a Llama-like model by compiled code, `platform/layers.c`.

`CompiledStep` reads the weights that the sampler uses. Whether the model is one whose layers that
code computes is found out by comparing logits when it is loaded.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from grpo_engine.cpu import blas
from grpo_engine.cpu.structs import Step
from grpo_engine.policy import lora
from grpo_engine.policy.fast.compiled import CompiledHead, CompiledModel
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.structure import agrees

Storage = Sequence[Sequence[np.ndarray]]
"""For each layer keys and values, [rows, kinds, room, each], and, if all rows share a prompt, the
prompt's keys and values, [1, kinds, prompt, each]."""


def computes(policy: Policy, tolerance: float) -> bool:
    """Whether compiled steps agree with the model, with adapters that are not zero."""
    if blas.products() is None:
        return False
    tokens = np.array([[7 * i % policy.vocabulary, 3 * i % policy.vocabulary] for i in range(1, 6)])
    own = policy.snapshot()
    moved = {name: mx.full(a.shape, 0.01) for name, a in own.items() if name.endswith("lora_b")}
    policy.module.eval()
    try:
        with (
            policy.using({**own, **moved}),
            lora.applied_together(policy.model),
        ):
            step = CompiledStep(policy)
            step.use(step.storage(rows=2, room=len(tokens)))
            whole = policy.model(mx.array(tokens.T))[:, -1]
            found = [step.logits(row, (0, 0), end) for end, row in enumerate(tokens.tolist())]
        return agrees(mx.array(found[-1]), whole, tolerance)
    except (TypeError, ValueError, AttributeError, RuntimeError, LookupError, AssertionError):
        return False  # an unknown kind of model: MLX computes its steps


class CompiledStep(CompiledModel):
    """The layers and the head of a policy that samples."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._head = CompiledHead(policy)

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
        turns = self.turns(prompt + end - first)
        step = Step(
            rows=len(tokens), room=keys[0].shape[2], end=end, prompt=prompt,
            starts=first.ctypes.data, turns=turns.ctypes.data,
        )  # fmt: skip
        states = self.embedded(np.array(tokens))
        spare = np.empty(self._library.scratch(self._model, step), np.float32)
        logits = np.empty((len(tokens), self._head.vocabulary), np.float32)
        self._library.run_layers(
            self._model, self._layers, step, states.ctypes.data, spare.ctypes.data
        )
        self._library.run_head(
            self._model, len(tokens), self._head.vocabulary, self._norm, self._head.linear,
            states.ctypes.data, logits.ctypes.data,
        )  # fmt: skip
        return logits
