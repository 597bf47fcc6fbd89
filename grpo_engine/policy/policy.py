"""A policy: a model with its trainable weights, tokenizer, reference, critic and teacher."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import get_total_parameters

from grpo_engine.config.settings import ModelConfig
from grpo_engine.cpu.kernels import Kernels
from grpo_engine.errors import ModelError
from grpo_engine.policy import adapters, lora
from grpo_engine.policy.activations import Activations
from grpo_engine.policy.caches import Prefix
from grpo_engine.policy.structure import Structure
from grpo_engine.policy.trees import flatten, nest

Weights = Mapping[str, mx.array]


class Critic(nn.Module):
    """PPO's critic: V = w·h + b of a hidden state h, initially 0."""

    def __init__(self, width: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weight = mx.zeros(width)
        self.bias = mx.zeros(1)

    def __call__(self, hidden: mx.array) -> mx.array:
        """Values of hidden states, [N, D] -> [N]."""
        value: mx.array = hidden.astype(mx.float32) @ self.weight + self.bias
        return value


class Trained(nn.Module):
    """The module to differentiate: the language model and, for PPO, the critic."""

    def __init__(self, model: nn.Module, critic: Critic | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model = model
        if critic is not None:
            self.critic = critic


@dataclass(slots=True, kw_only=True)
class Policy:
    """A loaded model; `module` holds `model` and, for PPO, `critic`."""

    config: ModelConfig
    folder: Path
    module: nn.Module  # the tree to differentiate: {"model": …} or {"model": …, "critic": …}
    tokenizer: Any  # mlx-lm's TokenizerWrapper
    end_ids: frozenset[int]
    pad_id: int
    context_length: int
    vocabulary: int
    dtype: str
    adapter: Mapping[str, Any]  # mlx-lm's adapter_config.json
    parts: Structure | None  # None: the model cannot be split
    prefix_caches: list[Prefix] | None  # empty; None: rows cannot share a prompt
    head_is_trained: bool
    head_chunk: int = 64  # positions per product of the head
    grad_checkpoint: bool = False  # whether the backward pass recomputes layers
    notes: tuple[str, ...] = ()
    fingerprint: str = ""  # of the model's files
    kernels: Kernels | None = None  # None: MLX's graph computes everything
    batching: str | None = None  # the graph's kind of batch for decoding; set when first sampled
    reference: dict[str, mx.array] | None = None  # None: the base model, adapter off
    traced: list[Activations] = field(default_factory=list)  # of its graph; empty until first read
    teacher: "Policy | None" = None  # frozen; it only scores

    @property
    def model(self) -> nn.Module:
        model: nn.Module = self.module["model"]
        return model

    @property
    def parameters(self) -> int:
        return int(get_total_parameters(self.model))

    @property
    def trainable_parameters(self) -> int:
        return sum(int(array.size) for array in self.snapshot().values())

    def value(self, hidden: mx.array | None) -> mx.array:
        """The critic's values of hidden states, [N, D] -> [N]."""
        if hidden is None or "critic" not in self.module:
            raise ModelError("values were asked for, but the policy was loaded without a critic")
        values: mx.array = self.module["critic"](hidden)
        return values

    def snapshot(self) -> dict[str, mx.array]:
        """The model's trainable weights by name (no critic); cheap, since arrays are immutable."""
        return flatten(self.model.trainable_parameters())

    def load_trainable(self, weights: Weights) -> None:
        """Restore weights that `snapshot` returned."""
        _load(self.model, weights, "the model's trainable weights")

    @contextmanager
    def using(self, weights: Weights | None) -> Iterator[None]:
        """Run with other trainable weights within the block; None changes nothing."""
        if weights is None:
            yield
            return
        current = self.snapshot()
        self.load_trainable(weights)
        try:
            yield
        finally:
            self.load_trainable(current)

    @contextmanager
    def as_reference(self) -> Iterator[None]:
        """Run as the reference policy: with `reference`'s weights, or without the adapter."""
        off = adapters.switched_off(self.model) if self.reference is None else nullcontext()
        with off, self.using(self.reference):
            yield

    @contextmanager
    def for_sampling(self, weights: Weights | None = None) -> Iterator[None]:
        """Run as the sampler, with `weights` or the policy's."""
        with self.using(weights):
            self.module.eval()
            with lora.applied_together(self.model):
                yield

    @property
    def has_weights(self) -> bool:
        """Whether the weights are in this process."""
        return True

    @property
    def gap_remedy(self) -> str:
        """What to do if the sampler's log-probabilities differ from the trainer's."""
        other = "bfloat16" if self.dtype == "float16" else "float32"
        change = f"model.compute=rows or model.dtype={other}"
        change = "model.kv_bits=off" if self.config.cache_bits else change
        return (
            f"Set {change}; if it stays, the model's code keeps state that the engine does not know"
        )

    @property
    def peak_memory(self) -> int:
        """MLX's peak plus that of the kernels, which may be of another time."""
        kernels = self.kernels.peak_memory if self.kernels is not None else 0
        return int(mx.get_peak_memory()) + kernels

    def forget_peak_memory(self) -> None:
        """Begin a new peak."""
        mx.reset_peak_memory()
        if self.kernels is not None:
            self.kernels.peak_memory = 0

    @property
    def training_kernels(self) -> Kernels | None:
        """The kernels, if scoring and update use them too; they never recompute layers."""
        if self.kernels is None or not self.kernels.trains or self.grad_checkpoint:
            return None
        return self.kernels

    @property
    def shares_prompts(self) -> bool:
        """Whether a forward runs each prompt once for all completions of it."""
        return self.config.compute != "rows" and self.prefix_caches is not None

    def refresh_reference(self, mix: float = 1.0) -> None:
        """pi_ref <- mix * pi + (1 - mix) * pi_ref; a mix below 1 is for full fine-tuning only."""
        weights = self.snapshot()
        if mix < 1:
            assert self.reference is not None
            old = self.reference
            weights = {  # float32: many small mixes add up
                name: mix * value.astype(mx.float32) + (1 - mix) * old[name].astype(mx.float32)
                for name, value in weights.items()
            }
            mx.eval(weights)
        self.reference = weights

    def critic_weights(self) -> dict[str, mx.array]:
        """The critic's weights by name; empty without a critic."""
        if "critic" not in self.module:
            return {}
        return flatten(self.module["critic"].parameters())

    def load_critic(self, weights: Weights) -> None:
        """Restore what `critic_weights` returned."""
        if weights:
            _load(self.module["critic"], weights, "the critic's weights")

    def save_adapter(self, folder: Path, weights: Weights | None = None) -> None:
        """Write an mlx-lm adapter folder; for full fine-tuning, a complete model folder.

        `weights` replace the current trainable ones.
        """
        full = self.adapter["fine_tune_type"] == "full"
        with self.using(weights if full else None):
            adapters.save(self.model, self.folder, self.config.path, self.adapter, folder, weights)


def _load(module: nn.Module, weights: Weights, title: str) -> None:
    current = flatten(module.trainable_parameters())
    if wrong := sorted(current.keys() ^ weights.keys()):
        raise ModelError(f"{title} do not fit: {wrong[0]} and {len(wrong) - 1} more differ in name")
    for name, value in weights.items():
        if value.shape != (shape := current[name].shape):
            raise ModelError(f"{title} do not fit: {name} is {value.shape}, not {shape}")
    module.update(nest({name: v.astype(current[name].dtype) for name, v in weights.items()}))
