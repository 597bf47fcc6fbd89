"""Trains and samples with weights in this process, by MLX."""

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_map

from grpo_engine.events import Event
from grpo_engine.policy import optimizer as optim
from grpo_engine.policy.batch import TokenBatch
from grpo_engine.policy.forward import TokenScores, token_scores
from grpo_engine.policy.optimizer import Learner
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.trees import flatten
from grpo_engine.rollouts.decode import SampleRows, sample_groups
from grpo_engine.rollouts.types import Trajectory
from grpo_engine.run.backend import Loss, Norms, Reads, Snapshot, StepContext
from grpo_engine.run.checkpoint import Checkpoint


class LocalBackend:
    """A policy in this process, with the optimisers of its weights and of its critic."""

    def __init__(
        self, policy: Policy, optimizer: Learner, critic: Learner | None, max_grad_norm: float
    ) -> None:
        self.policy, self.optimizer, self.critic = policy, optimizer, critic
        self.max_grad_norm = max_grad_norm

    @property
    def loss_scale(self) -> float:
        return self.optimizer.loss_scale

    def lower_scale(self) -> bool:
        return self.optimizer.lower_scale()

    def sample(
        self, rows: SampleRows, context: StepContext
    ) -> Generator[Event, None, list[Trajectory]]:
        """Decode all rows in one batch."""
        return (
            yield from sample_groups(
                self.policy,
                rows.prompts,
                rows.sampling,
                seed=rows.seed,
                step=rows.noise_step,
                event_step=context.step,
                requests=context.requests,
                weights=rows.weights,
                dialogues=rows.dialogues,
            )
        )

    def scores(
        self, batch: TokenBatch, reads: Reads, _context: StepContext
    ) -> Generator[Event, None, TokenScores]:
        """One forward pass."""
        yield from ()
        return forward(self.policy, batch, reads)

    def gradient(
        self, batch: TokenBatch, loss: Loss, reads: Reads, _context: StepContext
    ) -> Generator[Event, None, tuple[dict[str, Any], Any]]:
        """One forward and backward pass."""
        yield from ()
        return gradient(self.policy, batch, loss, reads, self.loss_scale)

    def zeros(self) -> Any:
        return tree_map(mx.zeros_like, self.policy.module.trainable_parameters())

    def add(self, total: Any, gradients: Any) -> Any:
        return gradients if total is None else tree_map(mx.add, total, gradients)

    def norms(self, total: Any) -> Norms:
        """L2 norms over all weights."""
        policy = optim.global_norm(total["model"])
        critic = optim.global_norm(total.get("critic", {}))
        mx.eval(policy, critic)
        return Norms(policy=float(policy), critic=float(critic))

    def apply(
        self, total: Any, norms: Norms, learning_rate: float, _context: StepContext
    ) -> Generator[Event, None, float | None]:
        """One optimiser step for policy and critic, each clipped by its own norm."""
        yield from ()
        policy, limit = self.policy, self.max_grad_norm
        self.optimizer.rule.learning_rate = learning_rate
        clipped = optim.clip(flatten(total["model"]), mx.array(norms.policy), limit)
        policy.load_trainable(self.optimizer.step(clipped, policy.snapshot()))
        changed = [policy.snapshot(), self.optimizer.arrays()]
        if self.critic is not None:
            clipped = optim.clip(flatten(total["critic"]), mx.array(norms.critic), limit)
            policy.load_critic(self.critic.step(clipped, policy.critic_weights()))
            changed += [policy.critic_weights(), self.critic.arrays()]
        mx.eval(changed)
        mx.synchronize()  # weights of a failed command buffer read as if they were valid
        return norms.policy

    def snapshot(self) -> Snapshot:
        """Weights and optimisers by checkpoint file; cheap, since arrays are immutable."""
        policy, trained = self.policy, self.policy.snapshot()
        tensors = {"trained": trained, "optimizer": self.optimizer.arrays()}
        if policy.reference is not None:
            tensors["reference"] = dict(policy.reference)
        if self.critic is not None:
            tensors["critic"] = policy.critic_weights()
            tensors["critic_optimizer"] = self.critic.arrays()
        return Snapshot(tensors=tensors, write=partial(policy.save_adapter, weights=trained))

    def save(self, _context: StepContext) -> Generator[Event, None, Snapshot]:
        yield from ()
        return self.snapshot()

    def keep(self, steps: Sequence[int]) -> None:
        """Nothing is outside the run's folder."""

    def restore(self, saved: Checkpoint, _context: StepContext) -> Iterator[Event]:
        """Load weights and optimisers."""
        yield from ()
        policy = self.policy
        policy.load_trainable(saved.tensors("trained"))
        self.optimizer.restore(saved.tensors("optimizer"), policy.snapshot())
        if saved.has("reference"):
            policy.reference = saved.tensors("reference")
        if self.critic is not None:
            policy.load_critic(saved.tensors("critic"))
            self.critic.restore(saved.tensors("critic_optimizer"), policy.critic_weights())


def forward(policy: Policy, batch: TokenBatch, reads: Reads) -> TokenScores:
    """The evaluated scores of a batch, without a gradient."""
    scores = token_scores(
        policy,
        batch,
        temperature=reads.temperature,
        gradient=False,
        entropy=reads.entropy,
        values=reads.values,
    )
    mx.eval(scores.logprobs, scores.entropy, scores.values)
    return scores


def gradient(
    policy: Policy, batch: TokenBatch, loss: Loss, reads: Reads, scale: float = 1.0
) -> tuple[dict[str, Any], Any]:
    """The outputs of a loss, which is scaled, and its float32 gradients by weight, all lazy."""

    def of_weights() -> tuple[mx.array, dict[str, Any]]:
        return loss(
            token_scores(
                policy,
                batch,
                temperature=reads.temperature,
                entropy=reads.entropy,
                entropy_gradient=reads.entropy_gradient,
                values=reads.values,
            )
        )

    (_, outputs), gradients = nn.value_and_grad(policy.module, of_weights)()
    gradients = tree_map(lambda g: g.astype(mx.float32), gradients)
    if scale != 1:
        gradients = tree_map(lambda g: g / scale, gradients)
    return outputs, gradients
