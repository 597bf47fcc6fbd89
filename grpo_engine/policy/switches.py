"""Switches for the model's optimisations."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FastPaths:
    """Which fast paths are on; each equals the plain path to float tolerance.

    `plain()` turns all of them off, for measurements and equality tests.
    """

    shared_prefix: bool = True  # run each prompt once per group when scoring
    packed: bool = True  # prompts and answers as one sequence without padding; fast_attention
    selective_head: bool = True  # head at completion positions only
    head_chunk: int = 64  # positions per head product, 0 = all at once
    fused_head: bool = True  # keep d logprob / d hidden instead of logits for the backward pass
    fast_scores: bool = True  # log-probabilities without a gradient by NumPy; CPU
    batched_prefill: bool = True  # all prompts of a batch in one forward
    batched_decode: bool = True  # all rows as one batch that drops finished rows
    compiled_decode: bool = True  # steps by our own code, where it is compiled; transposed_weights
    compiled_passes: bool = True  # scoring and update up to the loss by our own code; LoRA, packed
    fast_gate: bool = True  # silu by powers of two, where the model is loaded on the CPU
    fast_attention: bool = True  # softmax by powers of two, a shared prompt's keys read once; CPU
    merge_adapter: bool = True  # fold LoRA into float32 weights while sampling
    transposed_weights: bool = True  # weights as [in, out] while sampling; float32 on a CPU
    shared_decode: bool = True  # rows of one long prompt read its keys once; with fast_attention
    fast_draw: bool = True  # noise only for tokens that may win, e^x by NumPy; CPU
    bucket: int = 0  # completions are padded to a multiple of this, 0 = off

    @classmethod
    def plain(cls) -> "FastPaths":
        """All fast paths off."""
        return cls(
            shared_prefix=False, packed=False, selective_head=False, head_chunk=0,
            fused_head=False, fast_scores=False, batched_prefill=False, batched_decode=False,
            compiled_decode=False, compiled_passes=False,
            fast_gate=False, fast_attention=False, merge_adapter=False,
            transposed_weights=False, shared_decode=False, fast_draw=False, bucket=0,
        )  # fmt: skip
