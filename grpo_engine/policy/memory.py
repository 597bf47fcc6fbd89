"""Estimates the memory of a step before it runs.

Array sizes come from the model's widths. How many of each kind are alive at the peak was fitted to
measured peaks of llama models of several shapes (LoRA, DoRA, full; prompts shared or not; layers
kept or recomputed); the estimate is within about 20 %.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_engine.cpu.passes import head_tokens
from grpo_engine.cpu.rows import GROWTH as KERNEL_GROWTH
from grpo_engine.policy.adapters import ADAPTED
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.source import on_cpu
from grpo_engine.policy.trees import flatten

# arrays alive in a backward pass, per layer and token, by width: hidden state, feed-forward,
# adapter outputs (and DoRA's extra), and attention weights per head and key
HIDDEN, INNER, ADAPTER, DORA, SCORES = 7.0, 4.2, 0.4, 1.0, 1.2
# with recomputed layers: layers alive, hidden states kept between them, their caches
LAYERS_AGAIN, BETWEEN, CACHES_AGAIN = 2.0, 2.0, 1.0
GRADIENTS = 2.0  # copies of the trained weights: the accumulated gradient and the one being added
LOGITS = 6.0  # arrays of a head chunk: logits, shifted, exponentials, probabilities, slope, product
# while sampling: layers of the prefill, caches of prompts and of rows, logits of all rows
PREFILL, PROMPT_CACHES, ROW_CACHES, DRAWN = 0.5, 2.0, 1.2, 4.0
GRAPH_GROWTH = 256  # positions by which mlx-lm's batch caches grow
# On a CPU larger micro-batches are no faster: SmolLM2-135M is trained on 64 answers of 64 tokens
# as fast with 8 a time as with 16 or 32, which take more memory, and slower with 4.
ENOUGH = 2**19  # numbers in a hidden state of the answers of a micro-batch
PROMPT_SHARE = 1 / 8  # of a micro-batch's tokens, at most: each runs its prompts again


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes by purpose; the peak is the larger of sampling and updating."""

    weights: int  # the model, its adapter, and the reference if it has its own weights
    optimizer: int  # gradients, moments, and float32 copies of 16-bit weights
    sampling: int  # caches and logits of all rows
    update: int  # activations of one micro-batch

    @property
    def peak(self) -> int:
        """The most bytes in use at any time."""
        return self.weights + self.optimizer + max(self.sampling, self.update)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The dimensions of a model that decide the size of its activations."""

    hidden: int
    inner: int
    layers: int
    heads: int
    queries: int  # width of a token's queries in a layer
    kv_width: int  # and of its keys and values
    adapted: float  # output width of adapted linear layers, mean over the model's layers
    vocabulary: int
    bytes: int  # per number

    @classmethod
    def of(cls, policy: Policy) -> "Sizes":
        """Read the model's configuration, by the usual names."""
        found = getattr(policy.model, "args", None)
        known: Mapping[str, Any] = vars(found) if found is not None else {}
        known = {**(known.get("text_config") or {}), **known}
        hidden = int(known.get("hidden_size") or known.get("dim") or 1024)
        heads = int(known.get("num_attention_heads") or max(1, hidden // 64))
        kv_heads = int(known.get("num_key_value_heads") or heads)
        head = int(known.get("head_dim") or hidden // heads)
        inner = int(known.get("intermediate_size") or 4 * hidden)
        if experts := known.get("num_experts_per_tok"):
            inner = int(experts) * int(known.get("moe_intermediate_size") or inner)
        layers = len(policy.model.layers)
        return cls(
            hidden=hidden,
            inner=inner,
            layers=layers,
            heads=heads,
            queries=heads * head,
            kv_width=2 * kv_heads * head,
            adapted=_adapted_width(policy) / layers,
            vocabulary=policy.vocabulary,
            bytes=4 if policy.dtype == "float32" else 2,
        )

    def layer_bytes(self, tokens: int, pairs: int, *, adapter: float = 0.0) -> float:
        """Bytes of one layer's arrays for `tokens` tokens and `pairs` of query and key."""
        each = HIDDEN * self.hidden + INNER * self.inner + adapter * self.adapted
        return tokens * each * self.bytes + SCORES * pairs * self.heads * 4

    def pass_bytes(self, tokens: int, layers: int) -> int:
        """Bytes of compiled passes: what `layers` keep, and what both passes need in any layer."""
        kept = 2 * self.hidden + 2 * self.queries + self.kv_width + 2 * self.inner
        spare = 3 * self.hidden + 2 * self.queries + 2 * self.kv_width + 3 * self.inner
        return 4 * tokens * (layers * kept + spare)


def _adapted_width(policy: Policy) -> int:
    """Total output width of all adapted layers."""
    wide = 0
    for module in policy.model.modules():
        if isinstance(module, ADAPTED) and "lora_b" in module:
            wide += int(module.lora_b.shape[-1])
    return wide


def estimate_memory(
    policy: Policy,
    *,
    rows: int,
    micro_rows: int,
    prompt_tokens: int,
    new_tokens: int,
    moments: int = 2,
    prompts: int = 1,
) -> MemoryEstimate:
    """Estimate a step that decodes `rows` rows and updates on `micro_rows` at a time."""
    sizes = Sizes.of(policy)
    weights = _bytes(flatten(policy.module.parameters())) + _bytes(policy.reference or {})
    trained = flatten(policy.module.trainable_parameters()).values()
    copies = 4 * sum(int(array.size) for array in trained if array.itemsize < 4)
    own = 4 * sum(int(array.size) for array in trained)  # gradients and moments are in float32
    together = min(prompts, max(1, -(-micro_rows * prompts // max(1, rows))))
    return MemoryEstimate(
        weights=weights,
        optimizer=int(own * (GRADIENTS + moments)) + copies,
        sampling=_sampling(policy, sizes, rows, prompts, prompt_tokens, new_tokens),
        update=_update(policy, sizes, micro_rows, together, prompt_tokens, new_tokens),
    )


def _bytes(weights: Mapping[str, Any]) -> int:
    return sum(int(array.nbytes) for array in weights.values())


def _sampling(
    policy: Policy, sizes: Sizes, rows: int, prompts: int, prompt_tokens: int, new_tokens: int
) -> int:
    """Bytes of caches, the prefill, and the logits of all rows."""
    token = sizes.layers * sizes.kv_width * sizes.bytes
    room = math.ceil((prompt_tokens + new_tokens) / GRAPH_GROWTH) * GRAPH_GROWTH
    copies = 0
    if policy.kernels is not None:
        copies = _weights_copied(policy)
        room = prompt_tokens + math.ceil(new_tokens / KERNEL_GROWTH) * KERNEL_GROWTH
    caches = ROW_CACHES * rows * room * token
    caches += PROMPT_CACHES * prompts * prompt_tokens * token
    prefill = sizes.layer_bytes(prompts * prompt_tokens, prompts * prompt_tokens**2)
    logits = DRAWN * max(rows, prompts) * sizes.vocabulary * 4
    return int(copies + caches + PREFILL * prefill + logits)


def _weights_copied(policy: Policy) -> int:
    """Bytes of the trained weights that kernels copy to decode with them."""
    trained = policy.model.trainable_parameters() if policy.config.tuning == "full" else {}
    return sum(int(array.nbytes) for array in flatten(trained).values() if array.ndim == 2)


def _update(
    policy: Policy, sizes: Sizes, rows: int, prompts: int, prompt_tokens: int, new_tokens: int
) -> int:
    """Bytes that a micro-batch keeps for its backward pass; a shared prompt counts once."""
    length = prompt_tokens + new_tokens
    tokens, pairs = rows * length, rows * length**2
    if policy.shares_prompts:
        tokens = rows * new_tokens + prompts * prompt_tokens
        pairs = rows * new_tokens * length + prompts * prompt_tokens**2
    adapter = ADAPTER + (DORA if policy.config.tuning == "dora" else 0)
    layer = sizes.layer_bytes(tokens, pairs, adapter=adapter)
    kept = layer * _trained_layers(policy, sizes.layers)
    if policy.kernels is not None and policy.kernels.trains:
        logits = 4 * head_tokens(rows * new_tokens, sizes.vocabulary) * sizes.vocabulary
        return sizes.pass_bytes(tokens, _trained_layers(policy, sizes.layers)) + logits
    if policy.config.grad_checkpoint:
        between = tokens * sizes.hidden * sizes.bytes * sizes.layers
        caches = rows * length * sizes.kv_width * sizes.bytes * sizes.layers
        kept = LAYERS_AGAIN * layer + BETWEEN * between + CACHES_AGAIN * caches
    scored = rows * (new_tokens if policy.parts is not None else length)
    chunk = min(scored, policy.head_chunk)
    return int(kept + LOGITS * chunk * sizes.vocabulary * 4)


def _trained_layers(policy: Policy, layers: int) -> int:
    """Layers that keep arrays for the backward pass: the first trained one and all after it."""
    last = int(policy.adapter.get("num_layers", -1))
    return min(layers, last) if last > 0 and policy.config.tuning != "full" else layers


def _rows_that_help(policy: Policy, prompt_tokens: int, new_tokens: int) -> int:
    """The rows of a micro-batch beyond which a step only takes more memory."""
    if not on_cpu():
        return sys.maxsize
    tokens = max(ENOUGH / Sizes.of(policy).hidden, prompt_tokens / PROMPT_SHARE)
    return max(1, math.ceil(tokens / new_tokens))


def choose_micro_rows(
    policy: Policy, *, rows: int, prompt_tokens: int, new_tokens: int, budget: int, prompts: int = 1
) -> int:
    """The most rows per forward and backward that fit in `budget` bytes and help, at least 1."""
    low, high = 1, min(rows, _rows_that_help(policy, prompt_tokens, new_tokens))
    while low < high:
        tried = (low + high + 1) // 2
        found = estimate_memory(
            policy, rows=rows, micro_rows=tried, prompt_tokens=prompt_tokens,
            new_tokens=new_tokens, prompts=prompts,
        )  # fmt: skip
        if found.weights + found.optimizer + found.update <= budget:
            low = tried
        else:
            high = tried - 1
    return low
