"""Layers and head over whole sequences by compiled code, `passes.c`, forwards and backwards.

Axes: P prompts, B rows, N sampled tokens, D hidden width, V vocabulary.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from grpo_engine.cpu.structs import (
    ADDRESS,
    BatchStruct,
    HeadPass,
    LayerGradients,
    LoraGradients,
    PassStruct,
)
from grpo_engine.cpu.weights import HeadWeights, TrunkWeights, adapted

HEAD_LOGITS: Final = 1 << 24  # in memory at a time; with fewer, weights are read more often


def head_tokens(count: int, vocabulary: int) -> int:
    """Tokens of a chunk of the head, if `count` are divided evenly."""
    return -(-count // -(-count * vocabulary // HEAD_LOGITS)) if count else 0


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """Prompts and the completions that follow them."""

    prompts: Sequence[tuple[int, ...]]  # [P]
    completions: Sequence[tuple[int, ...]]  # [B]
    prompt_of: Sequence[int]  # [B] index into `prompts`
    sampled: tuple[np.ndarray, np.ndarray]  # [N] row and position of the tokens to score

    def packed(self) -> np.ndarray:
        """Prompts without their last token, then completions after that token, without padding."""
        segments = [prompt[:-1] for prompt in self.prompts]
        for prompt, ids in zip(self.prompt_of, self.completions, strict=True):
            segments.append((self.prompts[prompt][-1], *ids)[: len(ids)])
        return np.array([token for segment in segments for token in segment], np.int32)


class TrunkPass:
    """The layers over one batch of sequences; `saves` activations for a gradient."""

    def __init__(self, trunk: nn.Module, sequences: Sequences, *, saves: bool) -> None:
        self._weights, self._saves = TrunkWeights(trunk), saves
        self._adapted = list(adapted(trunk))
        self._first_layer = min((index for index, _, _ in self._adapted), default=0)
        prompts = np.array([len(prompt) - 1 for prompt in sequences.prompts])
        rows = np.array([len(ids) for ids in sequences.completions])
        lengths = np.concatenate([prompts, rows])
        starts = np.cumsum(lengths) - lengths
        prompt_of = np.concatenate([np.arange(len(prompts)), sequences.prompt_of])
        prefixes = np.where(np.arange(len(lengths)) < len(prompts), 0, prompts[prompt_of])
        self._tokens = sequences.packed()
        spans = np.repeat([starts[prompt_of], prefixes, starts, -starts], lengths, axis=1)
        spans[3] += np.arange(1, len(self._tokens) + 1)
        self._batch = self._weights.batch(len(self._tokens), spans)
        row, position = sequences.sampled
        self._indices = starts[len(prompts) :][row] + position

    @property
    def adapters(self) -> list[mx.array]:
        """The arrays that `gradient` is of: A and B of each adapted projection."""
        return [array for _, _, linear in self._adapted for array in (linear.lora_a, linear.lora_b)]

    def forward(self) -> np.ndarray:
        """Hidden states at the sampled tokens, [N, D]."""
        weights = self._weights
        states = weights.embedded(self._tokens)
        self._saved = []
        if self._saves:
            size = weights.library.saved_size(weights.model, weights.layers, len(states))
            count = weights.model.layers - self._first_layer
            # One array per layer: the allocator reuses such sizes, and maps larger ones anew.
            self._saved = [np.empty(size, np.float32) for _ in range(count)]
            self._saved.append(np.empty(states.size, np.float32))
        self.workspace_bytes = run_pass(
            weights.library.forward_pass,
            weights,
            self._batch,
            states,
            first_layer=self._first_layer,
            saved=self._saved_addresses() if self._saves else None,
        )
        self.saved_bytes = sum(array.nbytes for array in self._saved)
        sampled: np.ndarray = states[self._indices]
        return sampled

    def gradient(self, cotangent: np.ndarray) -> list[mx.array]:
        """Gradients of the adapters from that of the sampled tokens' states."""
        weights = self._weights
        states = np.zeros((len(self._tokens), weights.model.hidden_size), np.float32)
        states[self._indices] = cotangent
        arrays = [
            [
                np.empty((linear.lora_a.shape[1], size), np.float32)
                for size in (linear.lora_a.shape[0], linear.lora_b.shape[1])
            ]
            for _, _, linear in self._adapted
        ]
        gradients = (LayerGradients * weights.model.layers)()
        for (index, name, _), (lora_a, lora_b) in zip(self._adapted, arrays, strict=True):
            setattr(gradients[index], name, LoraGradients(lora_a.ctypes.data, lora_b.ctypes.data))
        run_pass(
            weights.library.backward_pass,
            weights,
            self._batch,
            states,
            first_layer=self._first_layer,
            saved=self._saved_addresses(),
            gradients=gradients,
        )
        self._saved = []
        return [
            mx.array(array)
            for (_, _, linear), (lora_a, lora_b) in zip(self._adapted, arrays, strict=True)
            for array in (lora_a.T, linear.scale * lora_b)
        ]

    def _saved_addresses(self) -> Any:
        return (ADDRESS * len(self._saved))(*(array.ctypes.data for array in self._saved))


def run_pass(
    function: Callable[[PassStruct], None],
    weights: TrunkWeights,
    batch: BatchStruct,
    states: np.ndarray,
    *,
    first_layer: int = 0,
    saved: Any = None,
    gradients: Any = None,
) -> int:
    """Run all layers and the final norm on `states`, in place; return the bytes of workspace."""
    address = ctypes.addressof
    arguments = PassStruct(
        model=address(weights.model),
        layers=address(weights.layers),
        batch=address(batch),
        norm=weights.norm,
        states=states.ctypes.data,
        first_layer=first_layer,
        saved=saved and address(saved),
        gradients=gradients and address(gradients),
    )
    workspace = np.empty(weights.library.pass_workspace(arguments), np.float32)
    arguments.workspace = workspace.ctypes.data
    function(arguments)
    return workspace.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class PassScores:
    """Log-probabilities and entropies of tokens, [N]."""

    logprobs: np.ndarray
    entropies: np.ndarray
    gradients: np.ndarray | None  # [N, D] d logprob / d states


def score(
    head: nn.Module,
    states_ND: np.ndarray,
    targets_N: np.ndarray,
    temperature: float,
    *,
    gradient: bool,
) -> PassScores:
    """Scores of the tokens after these states, a chunk at a time.

    d logprob / d logits is (onehot(token) - softmax(logits / T)) / T.
    """
    weights, count = HeadWeights(head), len(states_ND)
    states_ND, targets_N = np.ascontiguousarray(states_ND), targets_N.astype(np.int32)
    sums = np.empty((3, count), np.float32)
    gradients_ND = np.empty_like(states_ND) if gradient else None
    _run_head(
        weights,
        states_ND,
        head_tokens(count, weights.linear.output_size),
        temperature=temperature,
        targets=targets_N.ctypes.data,
        sums=sums.ctypes.data,
        gradients=None if gradients_ND is None else gradients_ND.ctypes.data,
    )
    target_logits_N, exp_sums_N, weighted_sums_N = sums
    if gradients_ND is not None:
        gradients_ND /= -np.float32(temperature) * exp_sums_N[:, None]
    log_sums_N = np.log(exp_sums_N)
    entropies_N = log_sums_N - weighted_sums_N / exp_sums_N
    return PassScores(target_logits_N - log_sums_N, entropies_N, gradients_ND)


def next_logits(weights: HeadWeights, states_ND: np.ndarray) -> np.ndarray:
    """Logits of the tokens after these states, [N, V]."""
    return _run_head(weights, states_ND, len(states_ND))


def _run_head(
    weights: HeadWeights, states_ND: np.ndarray, chunk_size: int, **fields: Any
) -> np.ndarray:
    """Run the head on so many states at a time; return the logits of the last ones."""
    logits = np.empty((chunk_size, weights.linear.output_size), np.float32)
    weights.library.head_pass(
        HeadPass(
            head=ctypes.pointer(weights.linear),
            tokens=len(states_ND),
            chunk_size=chunk_size,
            states=states_ND.ctypes.data,
            logits=logits.ctypes.data,
            **fields,
        )
    )
    return logits
