"""Chooses what computes a policy: MLX's graph, or compiled kernels that give its numbers."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from grpo_engine.config.settings import ModelConfig
from grpo_engine.cpu import blas
from grpo_engine.cpu.kernels import Kernels
from grpo_engine.cpu.weights import transpose
from grpo_engine.errors import ModelError
from grpo_engine.platform.faults import raise_fault
from grpo_engine.policy import lora
from grpo_engine.policy.batch import TokenRow, make_batch
from grpo_engine.policy.caches import PrefixCache
from grpo_engine.policy.forward import token_scores
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.source import on_cpu
from grpo_engine.policy.structure import TOLERANCE, UNKNOWN, agrees
from grpo_engine.policy.trees import flatten

GRADIENT_TOLERANCE = 1e-3


def prepare(model: nn.Module, config: ModelConfig) -> None:
    """Store frozen weights as the kernels read them, before anything refers to them."""
    if (
        config.compute not in ("graph", "rows")
        and config.tuning == "lora"
        and _obstacle(config) is None
    ):
        transpose(model)


def kernels_for(policy: Policy) -> Kernels | None:
    """The kernels, if `model.compute` allows them and they serve this policy."""
    config = policy.config
    if config.compute in ("graph", "rows"):
        return None
    kernels, reason = None, _obstacle(config)
    if reason is None and policy.dtype != "float32":
        reason = f"they compute float32, and the model is in {policy.dtype}"
    if reason is None:
        kernels, reason = _working(policy), "they do not compute this kind of model"
    if kernels is None and config.compute == "kernels":
        raise ModelError(
            f"model.compute is kernels, but {reason}; set it to auto or graph", "model.compute"
        )
    return kernels


def _obstacle(config: ModelConfig) -> str | None:
    """What keeps the kernels from serving any model with these settings."""
    if not on_cpu():
        return "MLX computes on a GPU here"
    if blas.products() is None:
        return "they are not available here, as grpo-tui doctor explains"
    if config.tuning == "dora":
        return "they do not compute model.tuning dora"
    return None


def _working(policy: Policy) -> Kernels | None:
    """Kernels that were compared with the graph, with adapters that are not zero."""
    caches = policy.prefix_caches
    if policy.parts is None or caches is None:
        return None
    if not all(isinstance(cache, PrefixCache) and cache.window is None for cache in caches):
        return None
    if any(getattr(layer, "use_sliding", False) for layer in policy.model.layers):
        return None  # mistral3's caches do not say so
    trunk = policy.parts.trunk
    head = policy.parts.owner.get("lm_head", trunk.get("embed_tokens"))
    if head is None:
        return None
    trains = policy.config.tuning == "lora" and policy.shares_prompts
    kernels = Kernels(trunk=trunk, head=head, trains=trains)
    weights = policy.snapshot()
    changed = {
        name: mx.full(array.shape, 0.01)
        for name, array in weights.items()
        if name.endswith("lora_b")
    }
    try:
        with policy.using(weights | changed):
            policy.module.eval()
            if not _decodes(policy, kernels):
                return None
            kernels.trains = trains and _trains(policy, kernels)
    except UNKNOWN as error:
        raise_fault(error)
        return None  # an unknown kind of model
    kernels.peak_memory = 0
    return kernels


def _decodes(policy: Policy, kernels: Kernels) -> bool:
    """Whether a prompt and decode steps after it give the graph's logits."""
    # Many special tokens, the first ids, make some models amplify rounding a hundredfold.
    tokens = np.random.default_rng(0).integers(policy.vocabulary, size=(2, 5)).tolist()
    rows = kernels.rows()
    rows.add([rows.empty()] * 2)
    rows.extend([tuple(row[:2]) for row in tokens])
    logits = [rows.step(step) for step in zip(*(row[2:] for row in tokens), strict=True)]
    with lora.applied_together(policy.model):
        expected = policy.model(mx.array(tokens))[:, -1]
    return agrees(mx.array(logits[-1]), expected, TOLERANCE[policy.dtype])


def _trains(policy: Policy, kernels: Kernels) -> bool:
    """Whether passes give the graph's log-probabilities and gradients."""
    by_graph = _gradient(policy)
    policy.kernels = kernels
    try:
        by_kernels = _gradient(policy)
    finally:
        policy.kernels = None
    tolerances = (TOLERANCE[policy.dtype], GRADIENT_TOLERANCE)
    return all(map(agrees, by_kernels, by_graph, tolerances))


def _gradient(policy: Policy) -> tuple[mx.array, mx.array]:
    """Log-probabilities of a few tokens, and the gradient of their sum."""
    ids = tuple(7 * i % policy.vocabulary for i in range(1, 8))
    batch = make_batch([TokenRow(ids[:3], ids[3:])], [0])

    def loss() -> tuple[mx.array, mx.array]:
        logprobs = token_scores(policy, batch, temperature=1.0).logprobs
        return logprobs.sum(), logprobs

    (_, logprobs), gradient = nn.value_and_grad(policy.module, loss)()
    return logprobs, mx.concatenate([array.reshape(-1) for array in flatten(gradient).values()])
