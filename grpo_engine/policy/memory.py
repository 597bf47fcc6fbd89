"""Estimates the memory of a step before it runs, and plans passes that fit.

The arrays that layers keep are counted in the model's own graph (`activations.py`). How they add up
was measured with one operation at a time: on a CPU MLX runs up to ten ahead of the memory that they
free. `benchmarks/plan.py` compares both.
"""

import math
import sys
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import mlx.core as mx

from grpo_engine.cpu.passes import head_tokens
from grpo_engine.cpu.rows import GROWTH as KERNEL_GROWTH
from grpo_engine.frozen import frozen
from grpo_engine.policy.activations import Activations, Moment, trace
from grpo_engine.policy.attention import chunk_length
from grpo_engine.policy.checkpointing import checkpoint_layers
from grpo_engine.policy.gated_delta import CHUNK, SECTION
from grpo_engine.policy.load import number
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.quantized import bits_of
from grpo_engine.policy.source import on_cpu
from grpo_engine.policy.trees import flatten

GRADIENTS = 2  # copies of the trained weights: the accumulated gradient and the one being added
LOGITS = 4  # arrays of a head chunk: logits, exponentials, slope, product
# Copies in memory during sampling: arrays of the prefill in a layer, and logits of all rows.
PREFILL, SAMPLED_LOGITS = 0.5, 4
GRAPH_GROWTH = 256  # positions by which mlx-lm's batch caches grow
# On a CPU larger micro-batches are no faster: SmolLM2-135M trains on 64 completions of 64 tokens
# as fast with 8 at a time as with 16 or 32, which take more memory, and slower with 4.
MICRO_NUMBERS = 2**19  # in a hidden state of all completions of a micro-batch
PROMPT_SHARE = 1 / 8  # of a micro-batch's tokens, at most: every micro-batch runs its prompts again
MIN_TOKENS = 512  # of a pass; fewer take as long
KEPT_WORK, RECOMPUTED_WORK = 3, 4  # forwards; a backward is two
# Logits per product of the head: a CPU wants them in its cache, a GPU large products.
CPU_LOGITS, GPU_LOGITS = 3 * 2**20, 2**25
HEAD_SHARE = 1 / 8  # of the memory that weights and optimiser leave, at most
HEAD_TILE = 16  # positions of which a chunk is a multiple

UNKNOWN_ARRAYS = Activations([Moment(0, 0)], [Moment(0, 0)], keys=0, scores=0, known=False)

# Names of sizes in the configurations of models.
HIDDEN_NAMES = ("hidden_size", "d_model", "n_embd", "model_dim", "hidden_dim", "block_dim", "dim")
HEAD_NAMES = ("num_attention_heads", "n_heads", "n_head", "num_heads")
KV_HEAD_NAMES = ("num_key_value_heads", "num_attention_groups", "num_kv_heads", "n_kv_heads")
INNER_NAMES = ("intermediate_size", "n_inner", "ffn_hidden_size", "block_ff_dim")
EXPERT_NAMES = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k")


class Lengths(NamedTuple):
    """Most tokens of a prompt, and of its completion with the replies in it."""

    prompt: int
    completion: int


class MemoryPlan(NamedTuple):
    """How sampling and backward passes use memory: the same on every rank.

    It changes only between steps, when a backward pass took more memory than was estimated.
    """

    micro_rows: int  # rows per forward and backward
    grad_checkpoint: bool  # whether the backward pass recomputes layers
    head_chunk: int  # positions per product of the head
    max_rows: int  # rows decoded at a time

    def __str__(self) -> str:
        layers = "recomputed" if self.grad_checkpoint else "kept"
        return (
            f"{self.max_rows} answers sampled at a time, {self.micro_rows} per backward pass, "
            f"layers {layers}, logits of {self.head_chunk} tokens at a time"
        )

    def under(self, policy: Policy) -> Policy:
        """A description of the policy under this plan, to estimate its memory."""
        return replace(policy, grad_checkpoint=self.grad_checkpoint, head_chunk=self.head_chunk)

    def apply(self, policy: Policy) -> None:
        """Let the policy run under this plan."""
        policy.head_chunk = self.head_chunk
        if policy.teacher is not None:
            policy.teacher.head_chunk = self.head_chunk
        if self.grad_checkpoint and not policy.grad_checkpoint:
            checkpoint_layers(policy.model)
            policy.grad_checkpoint = True


@frozen
class MemoryEstimate:
    """Bytes by purpose; the peak is the larger of sampling and updating."""

    weights: int  # of the model, its adapter, and a reference with weights of its own
    optimizer: int  # gradients, moments, and float32 copies of 16-bit weights
    sampling: int  # caches and logits of all rows
    update: int  # activations of one micro-batch; scoring by the teacher takes less
    teacher: int = 0  # its weights
    known: bool = True  # False: sampling and update lack the arrays of the layers

    def __str__(self) -> str:
        if not self.known:
            return "the memory of a step is not known, for this model's layers cannot be traced"
        return f"a step needs about {self.peak / 1e9:.2f} GB"

    @property
    def peak(self) -> int:
        """The most bytes in use at any time."""
        return self.resident + max(self.sampling, self.update)

    @property
    def decoding(self) -> int:
        """Bytes of everything but an update's activations."""
        return self.resident + self.sampling

    @property
    def training(self) -> int:
        """Bytes of everything but sampling."""
        return self.resident + self.update

    @property
    def resident(self) -> int:
        """Bytes that are always in use."""
        return self.weights + self.teacher + self.optimizer


class Tokens(NamedTuple):
    """The tokens of a forward, the keys that they attend to, and pairs of the two."""

    tokens: int
    keys: int
    pairs: int
    kept_pairs: int  # pairs with scores that MLX's attention keeps
    chunk: int = 0  # pairs of a chunk of attention, which keeps no scores
    rows: int = 1

    @classmethod
    def of(cls, heads: int, rows: int, new: int, before: int = 0) -> "Tokens":
        """Rows of new tokens that also attend to those before them."""
        length = before + new
        chunk = chunk_length(rows, heads, length)
        pairs = rows * length * min(new, chunk)
        kept = (pairs, 0) if new <= chunk else (0, pairs)
        return cls(rows * new, rows * length, rows * length * new, *kept, rows)

    def after(self, prompts: "Tokens") -> "Tokens":
        """These and the prompts before them."""
        sums = Tokens(*map(sum, zip(self, prompts, strict=True)))
        chunk, rows = max(self.chunk, prompts.chunk), max(self.rows, prompts.rows)
        return sums._replace(chunk=chunk, rows=rows)


@frozen
class Sizes:
    """The dimensions of a model that decide the size of its activations."""

    hidden: int
    inner: int
    layers: int
    heads: int
    queries: int  # width of a token's queries in a layer
    kv_width: int  # width of its keys and values together
    vocabulary: int
    bytes: int  # per number

    @classmethod
    def of(cls, policy: Policy) -> "Sizes":
        """Read the model's configuration, by the usual names."""
        args = getattr(policy.model, "args", None) or getattr(policy.model, "config", None)
        values: Mapping[str, Any] = vars(args) if args is not None else {}
        text = values.get("text_config") or {}
        values = {**(text if isinstance(text, dict) else vars(text)), **values, "text_config": None}
        hidden = number(values, *HIDDEN_NAMES) or 1024
        heads = number(values, *HEAD_NAMES) or max(1, hidden // 64)
        kv_heads = number(values, *KV_HEAD_NAMES) or heads
        head = number(values, "head_dim") or hidden // heads
        inner = number(values, *INNER_NAMES) or 4 * hidden
        if experts := number(values, *EXPERT_NAMES):
            inner = experts * (number(values, "moe_intermediate_size") or inner)
        layers = len(policy.model.layers)
        return cls(
            hidden=hidden,
            inner=inner,
            layers=layers,
            heads=heads,
            queries=heads * head,
            kv_width=2 * kv_heads * head,
            vocabulary=policy.vocabulary,
            bytes=4 if policy.dtype == "float32" else 2,
        )

    def pass_bytes(self, tokens: int, layers: int) -> int:
        """Bytes of compiled passes: those that `layers` keep, and the workspace of both passes."""
        saved = 2 * self.hidden + 2 * self.queries + self.kv_width + 2 * self.inner
        spare = 3 * self.hidden + 2 * self.queries + 2 * self.kv_width + 3 * self.inner
        return 4 * tokens * (layers * saved + spare)


def _activations(policy: Policy) -> Activations:
    """The arrays that this policy's graph keeps, traced once."""
    if not policy.traced:
        hidden = policy.parts.hidden if policy.parts else policy.model
        policy.traced.append(trace(policy.model, hidden) or UNKNOWN_ARRAYS)
    return policy.traced[0]


def is_known(policy: Policy) -> bool:
    """Whether the arrays of its layers could be counted."""
    return policy.training_kernels is not None or _activations(policy).known


def _alive(policy: Policy, sizes: Sizes, run: Tokens, *, recomputed: bool = False) -> float:
    """Most bytes of the layers' arrays in a forward and backward pass."""
    graph = _activations(policy)
    copies = graph.keys * (run.keys - run.tokens)  # a row's copies of its prompt's keys and values
    moments = graph.recomputed if recomputed else graph.kept
    kept_scores = 0 if recomputed else graph.scores
    peak = max(
        moment.token * run.tokens
        + moment.score * run.kept_pairs
        + max(0, moment.score - kept_scores) * run.chunk
        + moment.pair * run.pairs
        for moment in moments
    )
    section = graph.section * min(run.tokens, run.rows * CHUNK * SECTION) if recomputed else 0
    return peak + section + copies * sizes.bytes


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
    # Bytes of float32 copies of 16-bit weights; of the gradients, and of each moment.
    copies = 4 * sum(int(array.size) for array in trained if array.itemsize < 4)
    floats = 4 * sum(int(array.size) for array in trained)
    micro_prompts = _prompts_of(micro_rows, rows, prompts)
    return MemoryEstimate(
        weights=weights,
        optimizer=int(floats * (GRADIENTS + moments)) + copies,
        sampling=_sampling(policy, sizes, rows, prompts, prompt_tokens, new_tokens),
        update=_update(policy, sizes, micro_rows, micro_prompts, prompt_tokens, new_tokens),
        teacher=_bytes(flatten(policy.teacher.module.parameters()) if policy.teacher else {}),
        known=is_known(policy),
    )


def _bytes(weights: Mapping[str, Any]) -> int:
    return sum(int(array.nbytes) for array in weights.values())


def _prompts_of(micro_rows: int, rows: int, prompts: int) -> int:
    """The prompts of a micro-batch."""
    return min(prompts, max(1, -(-micro_rows * prompts // max(1, rows))))


def _sampling(
    policy: Policy, sizes: Sizes, rows: int, prompts: int, prompt_tokens: int, new_tokens: int
) -> int:
    """Bytes of caches, the prefill, and the logits of all rows."""
    bits = bits_of(policy.model, policy.config.cache_bits, 8 * sizes.bytes)
    # Products read a copy of the quantised layer in work.
    layers = sizes.layers + (policy.config.cache_bits > 0)
    token = layers * sizes.kv_width * bits / 8
    positions = math.ceil((prompt_tokens + new_tokens) / GRAPH_GROWTH) * GRAPH_GROWTH
    copies = 0
    if policy.kernels is not None and not policy.config.cache_bits:
        positions = prompt_tokens + math.ceil(new_tokens / KERNEL_GROWTH) * KERNEL_GROWTH
        if policy.config.tuning == "full":  # Kernels decode with copies of the trained weights.
            arrays = flatten(policy.model.trainable_parameters())
            copies = _bytes({name: array for name, array in arrays.items() if array.ndim == 2})
    caches = (rows * positions + prompts * prompt_tokens) * token
    run = Tokens.of(sizes.heads, prompts, prompt_tokens)
    prefill: float = sizes.pass_bytes(run.tokens, 0)
    if policy.kernels is None:
        prefill = PREFILL * _alive(policy, sizes, run) / sizes.layers
    logits = SAMPLED_LOGITS * max(rows, prompts) * sizes.vocabulary * 4
    return int(copies + caches + prefill + logits)


def _run(policy: Policy, rows: int, prompts: int, prompt_tokens: int, new_tokens: int) -> Tokens:
    """The tokens of a pass over some rows; a shared prompt counts once."""
    heads = Sizes.of(policy).heads
    if not policy.shares_prompts:
        return Tokens.of(heads, rows, prompt_tokens + new_tokens)
    completions = Tokens.of(heads, rows, new_tokens, prompt_tokens)
    return completions.after(Tokens.of(heads, prompts, prompt_tokens))


def _update(
    policy: Policy, sizes: Sizes, rows: int, prompts: int, prompt_tokens: int, new_tokens: int
) -> int:
    """Bytes that a micro-batch keeps for its backward pass."""
    run = _run(policy, rows, prompts, prompt_tokens, new_tokens)
    if policy.training_kernels is not None:
        logits = 4 * head_tokens(rows * new_tokens, sizes.vocabulary) * sizes.vocabulary
        return sizes.pass_bytes(run.tokens, _trained_layers(policy, sizes.layers)) + logits
    positions = rows * (prompt_tokens + new_tokens)
    if policy.parts is not None:
        positions = min(rows * new_tokens, policy.head_chunk)
    logits = LOGITS * positions * sizes.vocabulary * 4
    layers = _alive(policy, sizes, run, recomputed=policy.grad_checkpoint)
    if not policy.grad_checkpoint:
        return int(layers + logits)
    return int(max(layers, run.tokens * sizes.hidden * sizes.layers * sizes.bytes + logits))


def _trained_layers(policy: Policy, layers: int) -> int:
    """Layers that keep arrays for the backward pass: the first trained one and all after it."""
    last = int(policy.adapter.get("num_layers", -1))
    return min(layers, last) if last > 0 and policy.config.tuning != "full" else layers


def _useful_rows(policy: Policy, prompt_tokens: int, new_tokens: int) -> int:
    """The most rows of a micro-batch that make a step faster."""
    if not on_cpu():
        return sys.maxsize
    tokens = max(MICRO_NUMBERS / Sizes.of(policy).hidden, prompt_tokens / PROMPT_SHARE)
    return max(1, math.ceil(tokens / new_tokens))


def choose_plan(
    policy: Policy,
    *,
    rows: int,
    prompt_tokens: int,
    new_tokens: int,
    budget: int,
    prompts: int = 1,
    micro_rows: int = 0,
    max_rows: int = 0,
) -> MemoryPlan:
    """The fastest plan that fits in `budget` bytes.

    `micro_rows`, `max_rows` and `grad_checkpoint` may be set. Layers are recomputed where that lets
    so many more rows fit that it is faster. Where the memory of a pass is not known, it has one row
    and recomputed layers.
    """

    def estimate(plan: MemoryPlan) -> MemoryEstimate:
        return estimate_memory(
            plan.under(policy),
            rows=plan.max_rows,
            micro_rows=plan.micro_rows,
            prompts=prompts,
            prompt_tokens=prompt_tokens,
            new_tokens=new_tokens,
        )

    def slowness(plan: MemoryPlan) -> tuple[float, float]:
        """Bytes over the budget, then the work."""
        micro_prompts = _prompts_of(plan.micro_rows, rows, prompts)
        tokens = _run(policy, plan.micro_rows, micro_prompts, prompt_tokens, new_tokens).tokens
        forwards = RECOMPUTED_WORK if plan.grad_checkpoint else KEPT_WORK
        work = -(-rows // plan.micro_rows) * max(MIN_TOKENS, tokens) * forwards
        return max(0, estimate(plan).training - budget), work

    def last_fitting(plans: list[MemoryPlan], phase: str) -> MemoryPlan:
        """The last plan whose phase fits, or the first."""
        fitting = bisect_right(plans, budget, key=lambda plan: getattr(estimate(plan), phase))
        return plans[max(1, fitting) - 1]

    def row_counts(chosen: int, largest: int) -> list[int]:
        return [min(rows, chosen)] if chosen else list(range(1, min(rows, largest) + 1))

    plan = MemoryPlan(1, False, choose_head_chunk(policy, budget), 1)
    plan = last_fitting(
        [plan._replace(max_rows=count) for count in row_counts(max_rows, rows)], "decoding"
    )
    known = is_known(policy)
    useful = _useful_rows(policy, prompt_tokens, new_tokens) if known else 1
    micro = row_counts(micro_rows, useful)
    automatic = (False, True) if known else (True,)
    layers = {"on": (True,), "off": (False,)}.get(policy.config.grad_checkpoint, automatic)
    plans = [
        last_fitting(
            [plan._replace(micro_rows=count, grad_checkpoint=on) for count in micro], "training"
        )
        for on in layers
    ]
    return min(plans, key=slowness)


def choose_head_chunk(policy: Policy, budget: int) -> int:
    """Positions per product of the head, from the vocabulary and the memory that weights leave."""
    fixed = estimate_memory(policy, rows=0, micro_rows=0, prompt_tokens=0, new_tokens=0)
    fitting = HEAD_SHARE * (budget - fixed.resident) / (4 * LOGITS)
    logits = min(fitting, CPU_LOGITS if on_cpu() else GPU_LOGITS)
    return max(HEAD_TILE, int(logits / policy.vocabulary) // HEAD_TILE * HEAD_TILE)


def free_cache() -> None:
    """Between phases on a GPU, drop the freed memory that MLX keeps: the next has other sizes."""
    if not on_cpu():
        mx.clear_cache()
