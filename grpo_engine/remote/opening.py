"""Opens a policy on a server: connects, says what the server lacks, and begins an adapter."""

import os
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from grpo_engine.config.settings import RemoteConfig, RunConfig
from grpo_engine.control import Control
from grpo_engine.errors import ConfigError
from grpo_engine.events import Event, NoteWritten, warning
from grpo_engine.remote.backend import RemoteBackend
from grpo_engine.remote.calls import Calls, until_done
from grpo_engine.remote.policy import RemotePolicy, load_remote_policy
from grpo_engine.remote.protocol import Capabilities, Connection, Service
from grpo_engine.rollouts.decode import pause_or_stop
from grpo_engine.run.backend import StepContext

LOSSES = {
    "mean per row": "it takes the mean of its losses over tokens and rows",
    "sum": "it takes the sum of its losses",
}


def open_remote(
    config: RunConfig,
    control: Control,
    folder: Path,
    step: int,
    close: Callable[[Callable[[], None]], object],
    *,
    begins: bool,
) -> Generator[Event, None, RemoteBackend]:
    """Connect to the server of the settings; a new adapter is made unless the run goes on.

    `close` takes what is called when the run ends.
    """
    policy = load_remote_policy(config.model, folder / "tokenizer")
    context = StepContext(step=step, requests=partial(pause_or_stop, control, step))
    service = yield from until_done("connection", connect(_connection(config, policy)), context)
    close(service.close)
    if service.capabilities.context:
        policy.context_length = min(policy.context_length, service.capabilities.context)
    yield from _notes(config, service.capabilities, step)
    calls = Calls(control)
    if begins:
        yield from calls.result("new adapter", service.begin, context)
    return RemoteBackend(policy, service, calls, config.optimizer)


def connect(connection: Connection) -> Future[Service]:
    """Connect with the SDK, which is imported only here."""
    from grpo_engine.remote.service import connect

    return connect(connection)


def _connection(config: RunConfig, policy: RemotePolicy) -> Connection:
    remote = config.remote
    return Connection(
        url=remote.url,
        model=remote.model or config.model.path,
        rank=config.model.lora_rank,
        seed=config.seed,
        key=key_of(remote),
        vocab_size=policy.vocabulary,
    )


def key_of(remote: RemoteConfig) -> str:
    """The server's key, from the variable that the settings name."""
    if not remote.key_env:
        return ""
    if not (key := os.environ.get(remote.key_env, "")):
        raise ConfigError(
            f"remote.key_env names {remote.key_env}, which is not set; export it before the start",
            "remote.key_env",
        )
    return key


def _notes(config: RunConfig, capabilities: Capabilities, step: int) -> Iterator[Event]:
    """What differs from a run here."""
    remote = config.remote
    server = f"{capabilities.server or 'the server'} at {remote.url}"
    yield NoteWritten(
        step=step,
        text=f"the weights of {remote.model or config.model.path} are on {server}: "
        f"{LOSSES[capabilities.scale]}; entropy is not measured, and the seed does not decide its "
        "samples alone",
    )
    if capabilities.ignores:
        yield warning(
            step,
            f"{server} ignores {', '.join(capabilities.ignores)}, so these settings have no effect",
        )
