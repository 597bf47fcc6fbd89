"""What trains and samples: the calls in which weights here and weights on a server differ."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx

from grpo_engine.events import Event
from grpo_engine.frozen import frozen
from grpo_engine.policy.batch import TokenBatch
from grpo_engine.policy.forward import TokenScores
from grpo_engine.rollouts.decode import Requests, SampleRows
from grpo_engine.rollouts.types import Trajectory
from grpo_engine.run.checkpoint import Checkpoint

Loss = Callable[[TokenScores], tuple[mx.array, dict[str, Any]]]
"""The value to minimise and its outputs, from the policy's scores of a micro-batch; lazy."""


@frozen
class Reads:
    """What is read of a forward pass."""

    temperature: float
    entropy: bool = False
    entropy_gradient: bool = False
    values: bool = False


@frozen
class Norms:
    """The norms of a gradient, of the policy's weights and of the critic's."""

    policy: float
    critic: float = 0.0
    is_of_weights: bool = True  # False: of log-probabilities, while a server has the weights


@frozen
class StepContext:
    """A step in which a call is made; `requests` handles the user's while the call waits."""

    step: int
    requests: Requests


@frozen
class Snapshot:
    """The state between two steps, as a checkpoint has it.

    `write` writes the adapter's files into a folder.
    """

    tensors: Mapping[str, Mapping[str, mx.array]]
    write: Callable[[Path], None]
    state: Mapping[str, Any] = field(default_factory=dict)


class Backend(Protocol):
    """Holds the trained weights and their optimiser."""

    @property
    def loss_scale(self) -> float:
        """Factor of the loss by which small gradients survive in float16."""

    def lower_scale(self) -> bool:
        """Lower the loss scale after an overflow; false if the loss is not scaled."""

    def sample(
        self, rows: SampleRows, context: StepContext, /
    ) -> Generator[Event, None, list[Trajectory]]:
        """Sample all rows; trajectories are in the order of their prompts."""

    def scores(
        self, batch: TokenBatch, reads: Reads, context: StepContext, /
    ) -> Generator[Event, None, TokenScores]:
        """Score completions, evaluated; what the server cannot tell is None."""

    def gradient(
        self, batch: TokenBatch, loss: Loss, reads: Reads, context: StepContext, /
    ) -> Generator[Event, None, tuple[dict[str, Any], Any]]:
        """The outputs of a micro-batch's loss and its gradients; changes nothing."""

    def zeros(self) -> Any:
        """The gradients of no micro-batch, of a rank that has none."""

    def add(self, total: Any, gradients: Any) -> Any:
        """The gradients of several micro-batches together; a total of None is empty."""

    def norms(self, total: Any) -> Norms:
        """Norms that are finite if all gradients are."""

    def apply(
        self, total: Any, norms: Norms, learning_rate: float, context: StepContext, /
    ) -> Generator[Event, None, float | None]:
        """One optimiser step; returns the norm of the policy's gradient if it is known."""

    def snapshot(self) -> Snapshot | None:
        """The state now, if it can still be saved after the weights have changed."""

    def save(self, context: StepContext, /) -> Generator[Event, None, Snapshot]:
        """The state now, for a checkpoint."""

    def keep(self, steps: Sequence[int]) -> None:
        """Forget what was saved for checkpoints of other steps."""

    def restore(self, saved: Checkpoint, context: StepContext, /) -> Iterator[Event]:
        """Go on from a checkpoint."""
