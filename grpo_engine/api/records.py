"""Where runs from Python are recorded: a store that registers itself by an entry point.

The engine knows no store. What is installed under `grpo_tui.recorders` as `store` takes the path of
its file, or None for the usual one, and returns a `Store`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from grpo_engine import names
from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.errors import EngineError
from grpo_engine.events import Event, Group


class Record(Protocol):
    """The record of a run that is in progress or has ended."""

    id: str
    name: str  # unique in the store
    folder: Path  # holds its checkpoints
    store: Path  # the store's file

    def put(self, event: Event) -> None:
        """Record an event."""

    def close(self, cause: str = "") -> str:
        """End the record and return what could not be stored yet; `cause` is why the run failed."""

    def metrics(self) -> Mapping[str, Mapping[int, float]]:
        """The recorded metrics by name and step."""

    def rollouts(self, step: int) -> tuple[Group, ...]:
        """The recorded training groups of a step."""


class Store(Protocol):
    """Records runs, and finds those that it has."""

    def begin(self, config: RunConfig, control: Control, tags: tuple[str, ...]) -> Record:
        """Begin to record a run; requests of other processes go to `control`."""

    def resumable(self, run: str) -> tuple[str, Mapping[str, Any]]:
        """The status and settings of a run that has ended, by its name or id, or `@last`."""

    def settings(self, run: str) -> Mapping[str, Any]:
        """The settings of a run that another one builds on, by its name or id, or `@last`."""

    def resume(
        self, run: str, *, from_step: int, control: Control, config: RunConfig | None
    ) -> Record:
        """Begin to record the next attempt of a run, whose checkpoint is of this step.

        `config` replaces its settings, if it continues for more steps.
        """

    def folder(self, run: str) -> Path:
        """The folder of a run by its name or id."""


def open_store(record: bool | str | Path) -> Store | None:
    """The store to record in; None if the run is not recorded. A path is the store's file."""
    if record is False:
        return None
    point = names.installed("recorders").get("store")
    if point is None:
        raise EngineError(
            "no package registers a recorder as `store` in the entry points grpo_tui.recorders, "
            "so that the run cannot be recorded: install grpo-tui again, or give record=False"
        )
    store: Store = names.load(point, names.Purpose("recorder store", EngineError))(
        None if record is True else Path(record)
    )
    return store
