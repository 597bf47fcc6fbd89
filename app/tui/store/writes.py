"""What screens write to the store; called on a worker thread, which loads SQLModel."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_tui.experiments.values import RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.queue import RunQueue
    from grpo_tui.experiments.store import ExperimentStore


def _opened(path: Path) -> "closing[ExperimentStore]":
    from grpo_tui.experiments.store import ExperimentStore

    return closing(ExperimentStore(path))


def count(runs: Sequence[RunSummary]) -> str:
    """The run's name, or how many they are."""
    return runs[0].name or runs[0].id if len(runs) == 1 else f"{len(runs)} runs"


def set_archived(path: Path, runs: Sequence[RunSummary], archived: bool) -> str:
    """Archive or restore runs, and say so."""
    with _opened(path) as store:
        for run in runs:
            store.change(run.key, archived=archived)
    return f"{count(runs)} archived; u undoes it." if archived else f"{count(runs)} listed again."


def delete(path: Path, runs: Sequence[RunSummary]) -> str:
    """Hide runs until they are purged, and say so."""
    with _opened(path) as store:
        store.delete([run.key for run in runs])
    return f"{count(runs)} deleted; u undoes it until the workbench closes."


def restore(path: Path) -> str:
    """Bring back the runs that were deleted last, and name them."""
    with _opened(path) as store:
        names = store.restore()
    return f"{', '.join(names)} listed again." if names else "There is nothing to undo."


def purge(path: Path) -> None:
    """Remove the runs that were deleted."""
    from grpo_tui.experiments.purge import purge_deleted

    with _opened(path) as store:
        purge_deleted(store)


def shared_tags(runs: Sequence[RunSummary]) -> tuple[str, ...]:
    """The tags that all of the runs have."""
    return tuple(tag for tag in runs[0].tags if all(tag in run.tags for run in runs))


def describe(path: Path, runs: Sequence[RunSummary], values: Mapping[str, str]) -> str:
    """Set the tags that the runs share, and a single run's name and note; say what changed.

    A `-` in front of a tag removes it from those that have it.
    """
    typed = values["tags"].replace(",", " ").split()
    tags = [tag for tag in typed if not tag.startswith("-")]
    removed = {tag[1:] for tag in typed if tag.startswith("-")}
    removed |= {*shared_tags(runs)} - {*tags}
    with _opened(path) as store:
        for run in runs:
            if (name := values.get("name", "").strip()) not in ("", run.name):
                store.rename(run.key, name)
            if (note := values.get("note", run.note)) != run.note:
                store.change(run.key, note=note)
            store.tag(run.key, add=tags, remove=removed)
    return f"{count(runs)} changed."


def change_queue(path: Path, change: "Callable[[RunQueue], object]") -> None:
    """Change the queue of waiting runs."""
    from grpo_tui.experiments.queue import RunQueue

    with _opened(path) as store:
        change(RunQueue(store))


def mute(path: Path, run: int, rule: str, muted: bool) -> None:
    """Mute a kind of alert in a run, or unmute it."""
    with _opened(path) as store:
        store.mute(run, rule, muted)
