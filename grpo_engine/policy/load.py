"""A policy: a model with its trainable weights, its tokenizer, its reference and its critic."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from grpo_engine.config import ModelConfig
from grpo_engine.policy.fast_paths import FastPaths

Weights = Mapping[str, mx.array]


@dataclass(slots=True, kw_only=True)
class Policy:
    """A loaded model; `module` holds `model` and, for PPO, `critic`: differentiate it."""

    config: ModelConfig
    folder: Path
    module: nn.Module  # the tree to differentiate: {"model": …} or {"model": …, "critic": …}
    tokenizer: Any  # mlx-lm's TokenizerWrapper
    end_ids: frozenset[int]
    pad_id: int
    context_length: int
    vocabulary: int
    parameters: int
    trainable_parameters: int
    dtype: str
    fast: FastPaths = field(default_factory=FastPaths)
    notes: tuple[str, ...] = ()
    reference: dict[str, mx.array] | None = None  # None: the base model, adapter switched off

    @property
    def model(self) -> nn.Module:
        """The language model."""
        raise NotImplementedError

    def snapshot(self) -> dict[str, mx.array]:
        """The model's trainable weights by name (no critic); cheap, arrays never change."""
        raise NotImplementedError

    def load_trainable(self, weights: Weights) -> None:
        """Put back weights that `snapshot` gave."""
        raise NotImplementedError

    @contextmanager
    def using(self, weights: Weights | None) -> Iterator[None]:
        """Run with other trainable weights for a while; None changes nothing."""
        raise NotImplementedError(weights)
        yield

    @contextmanager
    def as_reference(self) -> Iterator[None]:
        """Run as the reference policy: `reference`'s weights, or without the adapter."""
        raise NotImplementedError
        yield

    def refresh_reference(self, mix: float = 1.0) -> None:
        """pi_ref <- mix * pi + (1 - mix) * pi_ref."""
        raise NotImplementedError

    def critic_weights(self) -> dict[str, mx.array]:
        """The critic's weights by name; empty without a critic."""
        raise NotImplementedError

    def load_critic(self, weights: Weights) -> None:
        """Put back what `critic_weights` gave."""
        raise NotImplementedError

    def save_adapter(self, folder: Path) -> None:
        """Write an mlx-lm adapter folder; for full tuning, a complete model folder."""
        raise NotImplementedError


def load_policy(
    config: ModelConfig, *, seed: int, critic: bool = False, fast: FastPaths | None = None
) -> Policy:
    """Load the model, put the adapter in place, and find out which fast paths it allows."""
    raise NotImplementedError
