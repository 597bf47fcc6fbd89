"""Compiled kernels for Linux processors behind one object; all else is computed by MLX's graph.

They serve Llama-like models in float32 with LoRA, and decode fully tuned ones. Every call reads the
current weights; those that they cannot read raise ValueError.
"""

from dataclasses import dataclass

import mlx.nn as nn
import numpy as np

from grpo_engine.cpu import passes
from grpo_engine.cpu.draw import draw
from grpo_engine.cpu.passes import PassScores, Sequences, TrunkPass
from grpo_engine.cpu.rows import Rows
from grpo_engine.cpu.weights import HeadWeights, TrunkWeights


@dataclass(slots=True, eq=False, kw_only=True)
class Kernels:
    """A model's trunk and head by compiled code."""

    trunk: nn.Module
    head: nn.Module
    trains: bool  # False: they only decode
    peak_memory: int = 0  # bytes that MLX does not count

    def rows(self) -> Rows:
        """An empty batch of rows, to be decoded with the current weights."""
        return Rows(TrunkWeights(self.trunk), HeadWeights(self.head))

    def draw(
        self,
        logits_BV: np.ndarray,
        temperature: float,
        keys: np.ndarray,
        events: tuple[np.ndarray, np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray]:
        """One token per row of logits, and its log-probability; see `rollouts.noise`."""
        return draw(logits_BV, temperature, keys, *events)

    def forward(self, sequences: Sequences, *, saves: bool) -> tuple[np.ndarray, TrunkPass]:
        """Hidden states at the sampled tokens, and the pass, for its `gradient` if it `saves`."""
        trunk_pass = TrunkPass(self.trunk, sequences, saves=saves)
        states_ND = trunk_pass.forward()
        vocabulary = int(self.head.weight.shape[0])
        logits = 4 * vocabulary * passes.head_tokens(len(states_ND), vocabulary)
        used = trunk_pass.saved_bytes + max(trunk_pass.workspace_bytes, logits)
        self.peak_memory = max(self.peak_memory, used)
        return states_ND, trunk_pass

    def score(
        self, states_ND: np.ndarray, targets_N: np.ndarray, temperature: float, *, gradient: bool
    ) -> PassScores:
        """Log-probabilities of the tokens after these states, with their `gradient` or without."""
        return passes.score(self.head, states_ND, targets_N, temperature, gradient=gradient)
