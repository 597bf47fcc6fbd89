"""The recorder: one thread that writes what happens in a run; record first, show second."""

from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from experiments.board import Board
from grpo_engine.control import Control
from grpo_engine.events import Event


class RunHandle:
    """One attempt at a run that is being recorded."""

    key: int
    id: str
    name: str
    folder: Path
    board: Board

    def put(self, event: Event) -> None:
        """Record the event; returns once it is queued, and waits only if the queue is full."""
        raise NotImplementedError

    def subscribe(self) -> SimpleQueue[Event | None]:
        """A lossless queue of facts, each delivered after its commit; None is the end."""
        raise NotImplementedError

    @property
    def facts(self) -> SimpleQueue[Event | None]:
        """The first subscription, made when it is first asked for."""
        raise NotImplementedError

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything put so far is stored, and say whether it is."""
        raise NotImplementedError

    def close(self, cause: str = "") -> None:
        """Write what is left and end the attempt."""
        raise NotImplementedError


class Recorder:
    """Writes runs into the store at `path`; raises StoreError if it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def start_run(
        self, config: Any, *, name: str = "", control: Control | None = None,
        parent: str | None = None, code_version: str = "", tags: tuple[str, ...] = (),
    ) -> RunHandle:  # fmt: skip
        """Begin a new run; `config` is a RunConfig or its tree; requests go to `control`."""
        raise NotImplementedError

    def resume_run(self, run: str, *, from_step: int, control: Control | None = None) -> RunHandle:
        """Begin a new attempt at a stored run; rows after `from_step` are hidden."""
        raise NotImplementedError

    def close(self) -> None:
        """Write what is left and let the file go."""
        raise NotImplementedError


Settings = Mapping[str, Any]
