"""Loads a policy: the model, its adapter, and what it can do."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from grpo_engine.config.settings import ModelConfig
from grpo_engine.errors import ModelError
from grpo_engine.policy import adapters, attention, compute, gated_delta
from grpo_engine.policy.caches import prefix_caches
from grpo_engine.policy.checkpointing import checkpoint_layers
from grpo_engine.policy.policy import Critic, Policy, Trained
from grpo_engine.policy.source import fingerprint, first_line, load_parts
from grpo_engine.policy.structure import TOLERANCE, UNKNOWN, split_model
from grpo_engine.policy.trees import flatten


def load_policy(
    config: ModelConfig, *, seed: int, critic: bool = False, frozen: bool = False
) -> Policy:
    """Load the model, attach the adapter, and test how it can be run.

    Nothing of a `frozen` one is trained, and without a saved adapter it has none.
    """
    model, tokenizer, settings, folder, notes = load_parts(config)
    gated_delta.install()
    compute.prepare(model, config)
    vocabulary = number(settings, "vocab_size") or len(tokenizer)
    dtype = main_dtype(model)
    attention.install(getattr(mx, dtype))
    probe = mx.array([[(7 * i + 3 * j + 1) % vocabulary for j in range(6)] for i in range(2)])
    adapter = {} if frozen and not config.adapter else adapters.attach(model, config, seed)
    if frozen:
        model.freeze()
    logits = probe_logits(model, probe, str(settings.get("model_type")))
    parts = split_model(model, probe, logits, TOLERANCE[dtype])
    caches = prefix_caches(parts, probe, TOLERANCE[dtype]) if parts else None
    if parts is None:
        notes.append(
            "this model cannot be split into trunk and head: logits are computed at every position"
        )
    if caches is None:
        notes.append("this model cannot share a prompt's cache: prompts run per row")
    if config.grad_checkpoint == "on":
        checkpoint_layers(model)
    if critic and parts is None:
        raise ModelError("PPO's critic needs hidden states, which this model does not give")
    head = Critic(int(parts.hidden(probe).shape[-1])) if critic and parts else None
    module: nn.Module = Trained(model, head)
    mx.eval(module.parameters())
    policy = Policy(
        config=config,
        folder=folder,
        module=module,
        tokenizer=tokenizer,
        adapter=adapter,
        end_ids=end_tokens(tokenizer, settings),
        pad_id=int(tokenizer.pad_token_id or 0),
        vocabulary=vocabulary,
        context_length=context_length(settings),
        dtype=dtype,
        parts=parts,
        prefix_caches=caches,
        head_is_trained=parts is not None and bool(parts.outer()),
        notes=tuple(notes),
        fingerprint=fingerprint(folder),
        grad_checkpoint=config.grad_checkpoint == "on",
    )
    policy.kernels = compute.kernels_for(policy)
    # Only a new LoRA equals the base model when it is switched off.
    if config.tuning != "lora" or config.adapter is not None:
        policy.reference = policy.snapshot()
    return policy


HELP = {
    "gathermm": "experts' products are in float32 on this device; set model.dtype to float32",
    "vjp": "it uses a kernel that has no gradient; train a model of another kind",
}


def probe_logits(model: nn.Module, probe: mx.array, kind: str) -> mx.array:
    """The model's logits of a few tokens; refuses one that mlx-lm cannot run or differentiate."""
    try:
        logits: mx.array = model(probe)
        mx.eval(logits)
        if flatten(model.trainable_parameters()):  # the gradient is not computed
            nn.value_and_grad(model, lambda: model(probe).astype(mx.float32).sum())()
    except (*UNKNOWN, ArithmeticError) as error:
        message = first_line(error)
        helps = (text for word, text in HELP.items() if word in message.lower())
        remedy = next(helps, "this is a fault of mlx-lm's; try a later version, or another model")
        raise ModelError(
            f"mlx-lm's model {kind} does not train here ({message}): {remedy}", "model.path"
        ) from error
    return logits


def main_dtype(model: nn.Module) -> str:
    sizes: Counter[str] = Counter()
    for array in flatten(model.parameters()).values():
        if mx.issubdtype(array.dtype, mx.floating):
            sizes[str(array.dtype).rpartition(".")[2]] += int(array.size)
    return sizes.most_common(1)[0][0]


def end_tokens(tokenizer: Any, settings: Mapping[str, Any]) -> frozenset[int]:
    """The tokens that end a completion, from tokenizer and configuration."""
    listed = settings.get("eos_token_id")
    ids = set(tokenizer.eos_token_ids)
    ids |= set(listed) if isinstance(listed, list) else ({listed} if listed is not None else set())
    if not ids:
        raise ModelError("the tokenizer has no end token, so answers could not end; add one")
    return frozenset(int(i) for i in ids)


def context_length(settings: Mapping[str, Any]) -> int:
    """The model's maximum number of positions; a large number if unknown."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    return number(settings, *names) or 1 << 20


def number(settings: Mapping[str, Any], *names: str) -> int:
    """The first of these settings of a model that is there, or its largest layer's; else 0."""
    text = settings.get("text_config")
    text = text if isinstance(text, dict) else {}
    value = next(filter(None, (settings.get(n) or text.get(n) for n in names)), 0)
    return int(max(filter(None, value)) if isinstance(value, list) else value)
