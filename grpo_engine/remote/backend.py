"""Trains and samples with weights on a server.

To measure is a forward there, and the loss with its gradient to log-probabilities here; to apply is
a backward there, with that gradient, and a step of the server's optimiser.
"""

import math
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np

from grpo_engine.config.settings import OptimizerConfig
from grpo_engine.errors import CheckpointError, ModelError, NotWrittenError
from grpo_engine.events import Event, NoteWritten, warning
from grpo_engine.policy.batch import TokenBatch
from grpo_engine.policy.forward import TokenScores
from grpo_engine.remote import adapter
from grpo_engine.remote.calls import Calls
from grpo_engine.remote.data import LogprobGradient, logprobs_of, rows_to_train, sequences
from grpo_engine.remote.policy import RemotePolicy
from grpo_engine.remote.protocol import (
    Adam,
    Service,
    ServiceError,
    ServiceOutcomeUnknownError,
    ServiceRefusedError,
)
from grpo_engine.remote.sampling import Sampler, sample_rows
from grpo_engine.rollouts.decode import SampleRows, make_rows
from grpo_engine.rollouts.types import Trajectory
from grpo_engine.run import checkpoint
from grpo_engine.run.backend import Loss, Norms, Reads, Snapshot, StepContext
from grpo_engine.run.checkpoint import Checkpoint

STATE: Final = "server_state"  # the key of a path on the server in a checkpoint's state
RESUMED: Final = (
    "the server's weights and optimiser are those of the checkpoint; its samples may differ from "
    "an unbroken run's"
)


class RemoteBackend:
    """A policy on a server, reached through a service."""

    loss_scale = 1.0

    def __init__(
        self, policy: RemotePolicy, service: Service, calls: Calls, optimizer: OptimizerConfig
    ) -> None:
        self.policy, self.service, self.calls = policy, service, calls
        self.optimizer = optimizer
        self.is_synced = True  # whether samples come from the current weights
        self.saved: dict[int, str] = {}  # paths on the server, by the step of their checkpoint
        self.saves = 0

    def lower_scale(self) -> bool:
        """The loss is not scaled."""
        return False

    def sample(
        self, rows: SampleRows, context: StepContext
    ) -> Generator[Event, None, list[Trajectory]]:
        """Sample all rows on the server, after it has taken the weights of the last update."""
        assert rows.weights is None
        if not self.is_synced:
            yield from self.calls.result("new weights", self.service.sync, context)
            self.is_synced = True
        decoding = make_rows(self.policy, rows)
        sampler = Sampler(self.service, decoding, rows, context.step)
        yield from sample_rows(sampler, self.calls, context)
        return [row.trajectory(has_environment=rows.dialogues is not None) for row in decoding]

    def scores(
        self, batch: TokenBatch, _reads: Reads, context: StepContext
    ) -> Generator[Event, None, TokenScores]:
        """Log-probabilities alone: a server tells no entropy, and has no critic."""
        rows = sequences(batch)
        ids = [row.ids for row in rows]
        call = partial(self.service.logprobs, ids, base=self.policy.scores_base)
        answer = yield from self.calls.result("log-probabilities", call, context)
        return TokenScores(logprobs_of(batch, rows, answer))

    def gradient(
        self, batch: TokenBatch, loss: Loss, reads: Reads, context: StepContext
    ) -> Generator[Event, None, tuple[dict[str, Any], list[LogprobGradient]]]:
        """The loss's outputs, and its gradient to the log-probabilities of sampled tokens."""
        scores = yield from self.scores(batch, reads, context)

        def of_logprobs(logprobs_BT: mx.array) -> tuple[mx.array, dict[str, Any]]:
            return loss(TokenScores(logprobs_BT))

        (_, outputs), gradient_BT = mx.value_and_grad(of_logprobs)(scores.logprobs)
        mx.eval(outputs, gradient_BT)
        gradient = LogprobGradient.of(batch, sequences(batch), scores.logprobs, gradient_BT)
        return outputs, [gradient]

    def zeros(self) -> list[LogprobGradient]:
        return []

    def add(
        self, total: list[LogprobGradient] | None, gradients: list[LogprobGradient]
    ) -> list[LogprobGradient]:
        return [*(total or []), *gradients]

    def norms(self, total: list[LogprobGradient]) -> Norms:
        """The norm of dL/dlogp; that of the weights is known after the step."""
        squares = sum(float(np.square(item.gradient_N).sum()) for item in total)
        return Norms(policy=squares**0.5, is_of_weights=False)

    def apply(
        self,
        total: list[LogprobGradient],
        _norms: Norms,
        learning_rate: float,
        context: StepContext,
    ) -> Generator[Event, None, float | None]:
        """One backward and one optimiser step on the server, neither of them ever repeated."""
        rows = rows_to_train(total, self.service.capabilities.scale)
        options = self.optimizer
        adam = Adam(
            learning_rate=learning_rate,
            betas=(options.option("beta1"), options.option("beta2")),
            eps=options.option("epsilon"),
            weight_decay=options.weight_decay,
            max_grad_norm=options.max_grad_norm,
        )
        self.is_synced = False
        try:
            yield from self.calls.result(
                "gradient", partial(self.service.accumulate, rows), context
            )
            norm = yield from self.calls.result(
                "optimiser's step", partial(self.service.step, adam), context
            )
        except ServiceOutcomeUnknownError as error:
            problem = str(error).rstrip(".")
            raise ServiceOutcomeUnknownError(
                f"{problem}. Whether the update of step {context.step} was made is not known, so "
                "the run ends here: resume it, and it goes on from its last checkpoint, with what "
                "the server saved for it"
            ) from error
        if norm is not None and not math.isfinite(norm):
            self.calls.failure = (
                f"the server gives {norm} as the norm of the gradient of step {context.step}"
            )
            raise ServiceRefusedError(
                f"{self.calls.failure}, so its weights are unusable now: resume the run, and it "
                "goes on from its last checkpoint"
            )
        return norm

    def snapshot(self) -> None:
        """The server's state can be saved only while it is the current one."""

    def save(self, context: StepContext) -> Generator[Event, None, Snapshot]:
        """Save on the server; beside its path, the checkpoint has the adapter where it fits."""
        if self.calls.failure:
            raise NotWrittenError(
                f"the checkpoint of step {context.step} cannot be saved on the server, since a "
                f"call failed: {self.calls.failure}"
            )
        self.saves += 1
        name = f"step-{context.step:06d}-{self.saves}"
        try:
            path = yield from self.calls.result(
                "saved state", partial(self.service.save, name), context
            )
        except ServiceError as error:
            self.calls.failure = ""  # nothing has changed on the server
            raise NotWrittenError(
                f"the checkpoint of step {context.step} cannot be saved on the server: {error}"
            ) from error
        if context.step in self.saved:
            self._delete(self.saved[context.step])
        self.saved[context.step] = path
        try:
            write = yield from self._downloaded(path, context)
        except (ServiceError, ModelError, OSError) as error:
            self.calls.failure = ""
            yield warning(
                context.step,
                f"the checkpoint has no adapter for use here, since {error}. The run can be "
                "resumed from it all the same",
            )
            write = adapter.write_nothing
        return Snapshot(tensors={}, write=write, state={STATE: path})

    def _downloaded(self, path: str, context: StepContext) -> Generator[Event, None, adapter.Write]:
        """What writes the adapter of a saved state as mlx-lm does."""
        with tempfile.TemporaryDirectory() as folder:
            download = partial(self.service.download, path, Path(folder))
            yield from self.calls.result("adapter", download, context)
            return adapter.converted(Path(folder), self.policy.config.path)

    def keep(self, steps: Sequence[int]) -> None:
        """Delete what no checkpoint names any more; a failure leaves it to the server."""
        for step in self.saved.keys() - set(steps):
            self._delete(self.saved.pop(step))

    def _delete(self, path: str) -> None:
        with suppress(ServiceError):
            self.service.delete(path)

    def restore(self, saved: Checkpoint, context: StepContext) -> Iterator[Event]:
        """Go on from the state on the server that a checkpoint names."""
        folder = saved.path.parent.parent
        for step in checkpoint.steps(folder):
            with suppress(CheckpointError):
                self.saved[step] = str(checkpoint.load(folder, step).state[STATE])
        path = str(saved.state[STATE])
        try:
            yield from self.calls.result(
                "saved state", partial(self.service.restore, path), context
            )
        except ServiceRefusedError as error:
            raise CheckpointError(
                f"the server does not restore {path}, which {saved.path} names: {error} Resume an "
                "older checkpoint, or clone the run"
            ) from error
        self.is_synced = False
        yield NoteWritten(step=saved.step, text=RESUMED)
