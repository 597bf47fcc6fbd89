"""What screens write to the store; called on a worker thread, which loads SQLModel."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_tui.experiments.values import RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.store import ExperimentStore


@contextmanager
def _opened(path: Path) -> "Iterator[ExperimentStore]":
    from grpo_tui.experiments.store import ExperimentStore

    store = ExperimentStore(path)
    try:
        yield store
    finally:
        store.close()


def set_archived(path: Path, runs: Sequence[RunSummary], archived: bool) -> None:
    """Archive or restore runs."""
    with _opened(path) as store:
        for run in runs:
            store.set_archived(run.key, archived)


def change_tags(path: Path, runs: Sequence[RunSummary], text: str) -> None:
    """Add the named tags; a `-` in front removes a tag."""
    words = text.replace(",", " ").split()
    add = [word for word in words if not word.startswith("-")]
    remove = [word[1:] for word in words if word.startswith("-")]
    with _opened(path) as store:
        for run in runs:
            store.tag(run.key, add=add, remove=remove)


def rename(path: Path, run: RunSummary, name: str) -> None:
    with _opened(path) as store:
        store.rename(run.key, name)


def annotate(path: Path, run: RunSummary, note: str) -> None:
    """Set a run's note."""
    with _opened(path) as store:
        store.set_note(run.key, note)


def mute(path: Path, run: int, rule: str, muted: bool) -> None:
    """Mute a kind of alert in a run, or unmute it."""
    with _opened(path) as store:
        store.mute(run, rule, muted)


def request(path: Path, run: RunSummary, verb: str, patience: float = 6.0) -> str:
    """Send a request to a run in another process; return why it failed, or an empty text."""
    from grpo_tui.experiments.reader import StoreReader

    with _opened(path) as store, closing(StoreReader(path)) as reader:
        key = store.request(run.key, verb)
        end = time.monotonic() + patience
        while (answer := reader.control(key)).state == "asked" and time.monotonic() < end:
            time.sleep(0.1)
    return "" if answer.state in ("taken", "done") else answer.message
