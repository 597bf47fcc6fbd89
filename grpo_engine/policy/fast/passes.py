"""Layers and head of a Llama-like model over whole sequences by compiled code, `passes.c`.

MLX sees one function of the adapters, which returns hidden states and, later, their gradients.
"""

import ctypes
from typing import Any, Final

import mlx.core as mx
import numpy as np
from mlx_lm.tuner.lora import LoRALinear

from grpo_engine.cpu.structs import (
    ADDRESS,
    PROJECTIONS,
    HeadPass,
    LayerGradients,
    LoraGradients,
    Packed,
)
from grpo_engine.policy.batch import TokenBatch, Tokens, make_batch
from grpo_engine.policy.fast.compiled import BLOCKS, CompiledHead, CompiledModel
from grpo_engine.policy.head import HeadScores, with_slope
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.structure import agrees

HEAD_LOGITS: Final = 1 << 24  # logits in memory at a time; with fewer, weights are read more often


def head_tokens(count: int, vocabulary: int) -> int:
    """How many of `count` tokens the head takes at a time, in even chunks."""
    return -(-count // -(-count * vocabulary // HEAD_LOGITS)) if count else 0


def computes(policy: Policy, tolerance: float) -> bool:
    """Whether compiled passes agree with the model and give all gradients that it has."""
    if not policy.compiled_steps or policy.config.tuning != "lora" or policy.config.grad_checkpoint:
        return False
    assert policy.parts is not None
    ids = tuple(7 * i % policy.vocabulary for i in range(1, 8))
    batch = make_batch([Tokens(ids[:3], ids[3:])], [0])
    try:
        states, _ = hidden(policy, batch, gradient=False)
        return len(policy.snapshot()) == 2 * len(_adapted(policy)) and agrees(
            states, policy.parts.hidden(mx.array([ids[:-1]]))[0, 2:], tolerance
        )
    except (TypeError, ValueError, AttributeError, LookupError):
        return False


def hidden(policy: Policy, batch: TokenBatch, *, gradient: bool) -> tuple[mx.array, mx.array]:
    """Hidden states at the sampled tokens, [N, D], and the same without a gradient."""
    batch_pass = _Pass(policy, batch, saves=gradient)
    outputs = batch_pass.states()
    constant = batch_pass.sampled(outputs)
    if not gradient:
        return constant, constant
    states: Any = mx.custom_function(lambda *_: outputs)
    states.vjp(lambda _, cotangent, __: batch_pass.gradients(cotangent))
    adapters = (array for _, _, layer in _adapted(policy) for array in (layer.lora_a, layer.lora_b))
    return batch_pass.sampled(states(*adapters)), constant


class ScoringHead(CompiledHead):
    """The head over many tokens, a chunk at a time."""

    def scores(
        self, states: mx.array, constant: mx.array, tokens: mx.array, temperature: float, *,
        entropy: bool, gradient: bool,
    ) -> HeadScores:  # fmt: skip
        """Scores of the tokens after these states; a gradient goes through log-probabilities.

        d logprob / d logits is (onehot(token) - softmax(logits / T)) / T.
        """
        inputs = np.ascontiguousarray(np.asarray(constant))
        targets, count = np.asarray(tokens).astype(np.int32), len(inputs)
        sums = np.empty((3, count), np.float32)
        gradients = np.empty_like(inputs) if gradient else None
        chunk_size = head_tokens(count, self.vocabulary)
        logits = np.empty((chunk_size, self.vocabulary), np.float32)
        self._library.head_pass(HeadPass(
            head=ctypes.pointer(self.linear), tokens=count, hidden_size=self.hidden_size,
            vocabulary=self.vocabulary, chunk_size=chunk_size, temperature=temperature,
            states=inputs.ctypes.data, targets=targets.ctypes.data, sums=sums.ctypes.data,
            gradients=None if gradients is None else gradients.ctypes.data,
            logits=logits.ctypes.data,
        ))  # fmt: skip
        target_logits, exp_sums, weighted_sums = sums
        logprobs = mx.array(target_logits - np.log(exp_sums))
        if gradients is not None:
            gradients /= -np.float32(temperature) * exp_sums[:, None]
            logprobs = with_slope(logprobs, states, mx.array(gradients))
        entropies = mx.array(np.log(exp_sums) - weighted_sums / exp_sums) if entropy else None
        return HeadScores(logprobs, entropies)


def _adapted(policy: Policy) -> list[tuple[int, str, Any]]:
    """Index of the layer, name and module of all projections with LoRA."""
    return [
        (index, name, layer[BLOCKS[name]][name])
        for index, layer in enumerate(policy.model.layers)
        for name in PROJECTIONS
        if isinstance(layer[BLOCKS[name]][name], LoRALinear)
    ]


class _Pass(CompiledModel):
    """One batch through the layers: prompts, then completions, packed without padding."""

    def __init__(self, policy: Policy, batch: TokenBatch, *, saves: bool) -> None:
        super().__init__(policy)
        self._policy, self._saves = policy, saves
        self._first_layer = min((index for index, _, _ in _adapted(policy)), default=0)
        prompts = np.array([len(prompt) - 1 for prompt in batch.prompts])
        rows = np.array([len(ids) for ids in batch.completions])
        lengths = np.concatenate([prompts, rows])
        starts = np.cumsum(lengths) - lengths
        prompt_of = np.concatenate([np.arange(len(prompts)), batch.prompt_of])
        prefixes = np.where(np.arange(len(lengths)) < len(prompts), 0, prompts[prompt_of])
        self._tokens = np.asarray(batch.packed())[0]
        segment_starts, prompt_starts, prompt_ends = (
            np.repeat(values, lengths).astype(np.int32)
            for values in (starts, starts[prompt_of], starts[prompt_of] + prefixes)
        )
        positions = np.arange(len(self._tokens)) - segment_starts + np.repeat(prefixes, lengths)
        arrays = (prompt_starts, prompt_ends, segment_starts, self.cos_sin(positions))
        self._arrays += arrays
        self._packed = Packed(len(positions), *(array.ctypes.data for array in arrays))
        self._start = int(prompts.sum())
        self._count = batch.flat.size
        self._indices: mx.array | None = None  # of the sampled tokens, if there are others
        flat = np.asarray(batch.flat)
        if len(flat) < rows.sum():
            first = starts[len(prompts) :] - self._start
            self._indices = mx.array(first[flat // batch.width] + flat % batch.width)

    def sampled(self, states: mx.array) -> mx.array:
        """The states of all tokens -> those of the sampled ones."""
        completions = mx.split(states, [self._start])[1]
        return completions if self._indices is None else completions[self._indices]

    def states(self) -> mx.array:
        """Hidden states of all tokens, [T, D]."""
        states = self.embedded(self._tokens)
        size = self._library.saved_size(self._model, self._layers, len(states))
        count = self._model.layers - self._first_layer if self._saves else 1
        # one array for each layer: memory of such sizes is used again, larger arrays are mapped
        self._saved = [np.empty(size, np.float32) for _ in range(count)]
        self._saved += [np.empty(states.size, np.float32)] if self._saves else []
        workspace = self._workspace()
        self._library.forward_pass(
            self._model, self._layers, self._packed, self._norm, self._first_layer,
            states.ctypes.data, self._saved_addresses(), workspace.ctypes.data,
        )  # fmt: skip
        logits = 4 * self._policy.vocabulary * head_tokens(self._count, self._policy.vocabulary)
        used = max(workspace.nbytes, logits) + sum(array.nbytes for array in self._saved)
        self._policy.pass_bytes = max(self._policy.pass_bytes, used)
        return mx.array(states)

    def gradients(self, cotangent: mx.array) -> tuple[mx.array, ...]:
        """Gradients of LoRA's A and B, in the order of `_adapted`."""
        states = np.array(cotangent, np.float32)
        adapted = _adapted(self._policy)
        arrays = [
            [np.empty((linear.lora_a.shape[1], size), np.float32)
             for size in (linear.lora_a.shape[0], linear.lora_b.shape[1])]
            for _, _, linear in adapted
        ]  # fmt: skip
        gradients = (LayerGradients * self._model.layers)()
        for (index, name, _), (lora_a, lora_b) in zip(adapted, arrays, strict=True):
            setattr(gradients[index], name, LoraGradients(lora_a.ctypes.data, lora_b.ctypes.data))
        workspace = self._workspace()
        self._library.backward_pass(
            self._model, self._layers, self._packed, self._norm, self._first_layer,
            states.ctypes.data, gradients, self._saved_addresses(), workspace.ctypes.data,
        )  # fmt: skip
        self._saved = []
        return tuple(
            mx.array(array)
            for (_, _, linear), (lora_a, lora_b) in zip(adapted, arrays, strict=True)
            for array in (lora_a.T, linear.scale * lora_b)
        )

    def _saved_addresses(self) -> Any:
        """Addresses of each layer's activations, and of the final states if they are saved."""
        addresses = (ADDRESS * (self._model.layers - self._first_layer + 1))()
        for index, array in enumerate(self._saved):
            addresses[index] = array.ctypes.data
        return addresses

    def _workspace(self) -> np.ndarray:
        return np.empty(self._library.pass_workspace(self._model, len(self._tokens)), np.float32)
