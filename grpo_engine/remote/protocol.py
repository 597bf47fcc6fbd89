"""What a run asks of the server that holds its weights: values, calls and errors.

Calls return futures, so that a run answers its user while the server works. Calls that change
weights are made one after another, and never again after an unknown outcome.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import field
from pathlib import Path
from typing import Final, Literal, Protocol

from grpo_engine.errors import EngineError
from grpo_engine.frozen import frozen

UNDER_WAY: Final = 64  # most requests for samples at a time

Scale = Literal["mean per row", "sum"]
"""How a server reduces its losses: the mean over each row's tokens of weight 1, then over the rows
since the last step; or the sum over all tokens."""


class ServiceError(EngineError):
    """A call to the server failed."""


class ServiceUnavailableError(ServiceError):
    """The server did not take the call, and may take it later."""


class ServiceOutcomeUnknownError(ServiceError):
    """The server may or may not have done what a call asked for."""


class ServiceRefusedError(ServiceError):
    """The server will not do what a call asked for, or it answered with unusable numbers."""


@frozen
class Connection:
    """Which server holds the weights, and the adapter that it trains."""

    url: str  # `tinker` for the hosted service
    model: str  # the server's name of the base model; empty for its only one
    rank: int
    seed: int
    key: str = field(default="", repr=False)
    vocab_size: int = 0  # of the model, by which sampled ids are checked; 0 if unknown


@frozen
class Capabilities:
    """What a server can do, as it answered or was measured."""

    models: tuple[str, ...]
    context: int  # tokens; 0 if unknown
    scale: Scale
    ignores: tuple[str, ...]  # paths of settings that have no effect on this server
    sdk: str  # version of the client
    server: str  # name and version of the server, as far as it is known


@frozen
class Prompt:
    """One request for samples: `count` continuations of these ids."""

    ids: tuple[int, ...]
    count: int
    max_tokens: int
    stop_ids: tuple[int, ...]
    seed: int  # of the first sample; the server adds the index of each
    temperature: float = 1.0


@frozen
class Sample:
    """A continuation with its end token, and the log-probability of each of its tokens."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    is_cut: bool  # by `max_tokens`


@frozen
class Row:
    """One training row: at each position a token, the next one, and what the loss reads of it."""

    ids: tuple[int, ...]
    targets: tuple[int, ...]  # ids that follow each of `ids`
    weights: tuple[float, ...]  # 1 where the loss counts the target, else 0
    logprobs: tuple[float, ...]
    advantages: tuple[float, ...]


@frozen
class Adam:
    """The parameters of one optimiser step."""

    learning_rate: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    max_grad_norm: float  # 0 for no limit


class Service(Protocol):
    """A server with one adapter that is trained, after `begin` or `restore`."""

    capabilities: Capabilities

    def begin(self) -> Future[None]:
        """Create the adapter that is trained, with its initial weights."""

    def sample(self, prompt: Prompt) -> Future[list[Sample]]:
        """Sample with the weights of the last `sync`; without one, with the initial ones."""

    def logprobs(
        self, sequences: Sequence[tuple[int, ...]], *, base: bool = False
    ) -> Future[list[tuple[float, ...]]]:
        """Log-probabilities of all ids but the first, by the trained model or its base."""

    def accumulate(self, rows: Sequence[Row]) -> Future[list[tuple[float, ...]]]:
        """Add the gradient of -sum(exp(logp - logprobs) * advantages), reduced by the scale.

        Returns the log-probabilities of the targets.
        """

    def step(self, adam: Adam) -> Future[float | None]:
        """One optimiser step with the gradient so far; returns its norm if the server gives it."""

    def sync(self) -> Future[None]:
        """Let later samples come from the current weights."""

    def save(self, name: str) -> Future[str]:
        """Save the weights and the optimiser on the server; returns their path."""

    def restore(self, path: str) -> Future[None]:
        """Go on from a saved state with a new adapter in place of the current one."""

    def download(self, path: str, folder: Path) -> Future[None]:
        """Write the files of the adapter with this path into an empty folder."""

    def delete(self, path: str) -> Future[None]:
        """Delete a saved state on the server."""

    def close(self) -> None:
        """End the session, which frees the adapter on the server; never raises or waits long."""
