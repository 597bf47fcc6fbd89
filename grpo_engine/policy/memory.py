"""How much memory a step will need, before it is taken: counts of arrays, not measurements."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_engine.policy.load import Policy
from grpo_engine.policy.trees import flatten

# hidden-sized and feed-forward-sized arrays that a layer keeps for its backward pass, per token
HIDDEN_ARRAYS, INNER_ARRAYS = 12, 4
# arrays of the size of the attention scores, and of the logits, that are alive at a time
SCORE_ARRAYS, LOGIT_ARRAYS = 3, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes by purpose; the peak is the larger of sampling and updating."""

    weights: int
    optimizer: int  # gradients and moments
    sampling: int  # key-value cache and logits of all rows
    update: int  # activations of one micro-batch

    @property
    def peak(self) -> int:
        """The most that is held at any time."""
        return self.weights + self.optimizer + max(self.sampling, self.update)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What of a model's shape decides its activations."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_width: int  # key and value numbers of a token in a layer
    vocabulary: int
    bytes: int  # of a number

    @classmethod
    def of(cls, policy: Policy) -> "Sizes":
        """Read the model's own settings, by their usual names."""
        found = getattr(policy.model, "args", None)
        known: Mapping[str, Any] = vars(found) if found is not None else {}
        hidden = int(known.get("hidden_size") or known.get("dim") or 1024)
        heads = int(known.get("num_attention_heads") or max(1, hidden // 64))
        kv_heads = int(known.get("num_key_value_heads") or heads)
        head = int(known.get("head_dim") or hidden // heads)
        return cls(
            hidden=hidden,
            inner=int(known.get("intermediate_size") or 4 * hidden),
            layers=int(known.get("num_hidden_layers") or len(policy.model.layers)),
            heads=heads,
            kv_width=2 * kv_heads * head,
            vocabulary=policy.vocabulary,
            bytes=4 if policy.dtype == "float32" else 2,
        )


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
    """Estimate a step that decodes `rows` and updates on `micro_rows` at a time."""
    sizes = Sizes.of(policy)
    weights = sum(array.nbytes for array in flatten(policy.module.parameters()).values())
    trained = sum(array.nbytes for array in flatten(policy.module.trainable_parameters()).values())
    cached = rows * (prompt_tokens + new_tokens) * sizes.layers * sizes.kv_width * sizes.bytes
    logits = rows * sizes.vocabulary * 4 * LOGIT_ARRAYS
    prefill = prompts * prompt_tokens * _token_bytes(sizes, kept=False)
    return MemoryEstimate(
        weights=weights,
        optimizer=trained * (1 + moments),
        sampling=cached + max(logits, prefill),
        update=micro_rows * _row_bytes(policy, sizes, prompt_tokens, new_tokens),
    )


def _token_bytes(sizes: Sizes, *, kept: bool) -> int:
    """Activations of one token: of all layers where the backward pass keeps them, else of one."""
    layer = (HIDDEN_ARRAYS * sizes.hidden + INNER_ARRAYS * sizes.inner) * sizes.bytes
    return layer * (sizes.layers if kept else 1)


def _row_bytes(policy: Policy, sizes: Sizes, prompt_tokens: int, new_tokens: int) -> int:
    """What one answer keeps for its backward pass; the prompt is its own where it is not shared."""
    shared = policy.fast.shared_prefix and policy.windows is not None
    length = prompt_tokens + new_tokens
    own = new_tokens if shared else length
    checkpointed = policy.config.grad_checkpoint
    activations = own * _token_bytes(sizes, kept=not checkpointed)
    if checkpointed:
        activations += own * sizes.layers * sizes.hidden * sizes.bytes
    scores = SCORE_ARRAYS * sizes.heads * own * length * 4
    scores *= 1 if checkpointed else sizes.layers
    at_once = min(new_tokens, policy.fast.head_chunk or new_tokens)
    kept = at_once if policy.fast.fused_head else new_tokens
    return activations + scores + kept * sizes.vocabulary * 4 * LOGIT_ARRAYS


def choose_micro_rows(
    policy: Policy, *, rows: int, prompt_tokens: int, new_tokens: int, budget: int
) -> int:
    """The most rows per forward and backward that fit in `budget` bytes, at least 1."""
    fixed = estimate_memory(
        policy, rows=rows, micro_rows=0, prompt_tokens=prompt_tokens, new_tokens=new_tokens
    )
    left = budget - fixed.weights - fixed.optimizer
    row = _row_bytes(policy, Sizes.of(policy), prompt_tokens, new_tokens)
    return max(1, min(rows, left // max(1, row)))
