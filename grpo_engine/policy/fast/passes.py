"""Layers and head of a Llama-like model over whole sequences by compiled code, `passes.c`.

MLX sees one function of the adapters, which returns hidden states and, later, their gradients.
"""

import ctypes
from typing import Any, Final

import mlx.core as mx
import numpy as np
from mlx_lm.tuner.lora import LoRALinear

from grpo_engine.platform.layers import ADDRESS, LayerSlopes, Packed, Scored, Slopes
from grpo_engine.policy.batch import TokenBatch, Tokens, make_batch
from grpo_engine.policy.fast.compiled import LINEARS, CompiledHead, CompiledModel
from grpo_engine.policy.head import HeadScores, with_slope
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.structure import agrees

HEAD_NUMBERS: Final = 1 << 24  # logits in memory at a time; fewer read the weights more often


def head_tokens(count: int, vocabulary: int) -> int:
    """How many of `count` tokens the head takes at a time, in even parts."""
    return -(-count // -(-count * vocabulary // HEAD_NUMBERS)) if count else 0


def computes(policy: Policy, tolerance: float) -> bool:
    """Whether compiled passes agree with the model and give all gradients that it has."""
    if not policy.compiled_steps or policy.config.tuning != "lora" or policy.grad_checkpoint:
        return False
    assert policy.parts is not None
    ids = tuple(7 * i % policy.vocabulary for i in range(1, 8))
    batch = make_batch([Tokens(ids[:3], ids[3:])], [0])
    try:
        found, _ = hidden(policy, batch, gradient=False)
        return len(policy.snapshot()) == 2 * len(_adapted(policy)) and agrees(
            found, policy.parts.hidden(mx.array([ids[:-1]]))[0, 2:], tolerance
        )
    except (TypeError, ValueError, AttributeError, LookupError):
        return False


def hidden(policy: Policy, batch: TokenBatch, *, gradient: bool) -> tuple[mx.array, mx.array]:
    """Hidden states at the sampled tokens, [N, D], and the same without a gradient."""
    one = _Pass(policy, batch, keeps=gradient)
    known = one.states()
    constant = one.sampled(known)
    if not gradient:
        return constant, constant
    states: Any = mx.custom_function(lambda *_: known)
    states.vjp(lambda _, given, __: one.slopes(given))
    adapters = (array for _, _, layer in _adapted(policy) for array in (layer.lora_a, layer.lora_b))
    return one.sampled(states(*adapters)), constant


class ScoringHead(CompiledHead):
    """The head over many tokens, some at a time."""

    def scores(
        self, states: mx.array, constant: mx.array, tokens: mx.array, temperature: float, *,
        entropy: bool, gradient: bool,
    ) -> HeadScores:  # fmt: skip
        """Scores of the tokens after these states; a gradient goes through log-probabilities.

        d logprob / d logits is (onehot(token) - softmax(logits / T)) / T.
        """
        known = np.ascontiguousarray(np.asarray(constant))
        wanted, count = np.asarray(tokens).astype(np.int32), len(known)
        sums = np.empty((3, count), np.float32)
        slopes = np.empty_like(known) if gradient else None
        most = head_tokens(count, self.vocabulary)
        logits = np.empty((most, self.vocabulary), np.float32)
        self._library.score_tokens(Scored(
            head=ctypes.pointer(self.linear), tokens=count, width=self.width,
            vocabulary=self.vocabulary, most=most, temperature=temperature,
            states=known.ctypes.data, wanted=wanted.ctypes.data, sums=sums.ctypes.data,
            slopes=slopes.ctypes.data if slopes is not None else None, logits=logits.ctypes.data,
        ))  # fmt: skip
        chosen, totals, weighed = sums
        logprobs = mx.array(chosen - np.log(totals))
        if slopes is not None:
            slopes /= -np.float32(temperature) * totals[:, None]
            logprobs = with_slope(logprobs, states, mx.array(slopes))
        level = mx.array(np.log(totals) - weighed / totals) if entropy else None
        return HeadScores(logprobs, level)


def _adapted(policy: Policy) -> list[tuple[int, str, Any]]:
    """Number of the layer, name in the code, and module, of all linear layers with LoRA."""
    return [
        (number, name, layer[part][linear])
        for number, layer in enumerate(policy.model.layers)
        for name, part, linear in LINEARS
        if isinstance(layer[part][linear], LoRALinear)
    ]


class _Pass(CompiledModel):
    """One batch through the layers: prompts, then answers, one after another without padding."""

    def __init__(self, policy: Policy, batch: TokenBatch, *, keeps: bool) -> None:
        super().__init__(policy)
        self._policy, self._keeps = policy, keeps
        self._first = min((number for number, _, _ in _adapted(policy)), default=0)
        prompts = np.array([len(prompt) - 1 for prompt in batch.prompts])
        rows = np.array([len(ids) for ids in batch.completions])
        lengths = np.concatenate([prompts, rows])
        starts = np.cumsum(lengths) - lengths
        mine = np.concatenate([np.arange(len(prompts)), batch.prompt_of])  # each one's prompt
        before = np.where(np.arange(len(lengths)) < len(prompts), 0, prompts[mine])
        self._tokens = np.asarray(batch.packed())[0]
        self._own, self._prompt, self._end = (
            np.repeat(one, lengths).astype(np.int32)
            for one in (starts, starts[mine], starts[mine] + before)
        )
        places = np.arange(len(self._tokens)) - self._own + np.repeat(before, lengths)
        self._turns_here = self.turns(places)
        self._packed = Packed(
            len(places), *(array.ctypes.data for array in
                           (self._prompt, self._end, self._own, self._turns_here)),
        )  # fmt: skip
        self._start = int(prompts.sum())
        self._count = batch.flat.size
        self._places: mx.array | None = None  # of the sampled tokens, if others are among them
        flat = np.asarray(batch.flat)
        if len(flat) < rows.sum():
            first = starts[len(prompts) :] - self._start
            self._places = mx.array(first[flat // batch.width] + flat % batch.width)

    def sampled(self, states: mx.array) -> mx.array:
        """The states of all tokens -> those of the sampled ones."""
        answers = mx.split(states, [self._start])[1]
        return answers if self._places is None else answers[self._places]

    def states(self) -> mx.array:
        """Hidden states of all tokens, [T, D]."""
        states = self.embedded(self._tokens)
        each = self._library.kept_size(self._model, self._layers, len(states))
        count = self._model.layers - self._first if self._keeps else 1
        # one array for each layer: memory of such sizes is used again, larger arrays are mapped
        self._memory = [np.empty(each, np.float32) for _ in range(count)]
        self._memory += [np.empty(states.size, np.float32)] if self._keeps else []
        spare = self._spare()
        self._library.forward_pass(
            self._model, self._layers, self._packed, self._norm, self._first, states.ctypes.data,
            self._addresses(), spare.ctypes.data,
        )  # fmt: skip
        logits = 4 * self._policy.vocabulary * head_tokens(self._count, self._policy.vocabulary)
        used = max(spare.nbytes, logits) + sum(array.nbytes for array in self._memory)
        self._policy.pass_bytes = max(self._policy.pass_bytes, used)
        return mx.array(states)

    def slopes(self, given: mx.array) -> tuple[mx.array, ...]:
        """Gradients of LoRA's A and B, in the order of `_adapted`."""
        slope = np.array(given, np.float32)
        adapted = _adapted(self._policy)
        found = [
            [np.empty((one.lora_a.shape[1], width), np.float32)
             for width in (one.lora_a.shape[0], one.lora_b.shape[1])]
            for _, _, one in adapted
        ]  # fmt: skip
        slopes = (LayerSlopes * self._model.layers)()
        for (number, name, _), (narrow, wide) in zip(adapted, found, strict=True):
            setattr(slopes[number], name, Slopes(narrow.ctypes.data, wide.ctypes.data))
        spare = self._spare()
        self._library.backward_pass(
            self._model, self._layers, self._packed, self._norm, self._first, slope.ctypes.data,
            slopes, self._addresses(), spare.ctypes.data,
        )  # fmt: skip
        self._memory = []
        return tuple(
            mx.array(array)
            for (_, _, one), (narrow, wide) in zip(adapted, found, strict=True)
            for array in (narrow.T, one.scale * wide)
        )

    def _addresses(self) -> Any:
        """The addresses of the memory of each layer, and of the last states if they are kept."""
        places = (ADDRESS * (self._model.layers - self._first + 1))()
        for number, array in enumerate(self._memory):
            places[number] = array.ctypes.data
        return places

    def _spare(self) -> np.ndarray:
        """Memory that both passes may write to."""
        return np.empty(self._library.pass_scratch(self._model, len(self._tokens)), np.float32)
