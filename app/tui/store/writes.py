"""What screens write to the store; called on the writer's thread, which loads SQLModel."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_tui.experiments.values import RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.store import ExperimentStore


def opened(path: Path) -> "closing[ExperimentStore]":
    """The store, open for changes."""
    from grpo_tui.experiments.store import ExperimentStore

    return closing(ExperimentStore(path))


def count(runs: Sequence[RunSummary]) -> str:
    """The run's name, or how many they are."""
    return runs[0].title if len(runs) == 1 else f"{len(runs)} runs"


def set_archived(store: "ExperimentStore", runs: Sequence[RunSummary], archived: bool) -> str:
    """Archive or restore runs, and say so."""
    for run in runs:
        store.change(run.key, archived=archived)
    return f"{count(runs)} archived; u undoes it." if archived else f"{count(runs)} listed again."


def delete(store: "ExperimentStore", runs: Sequence[RunSummary]) -> str:
    """Hide runs until they are purged, and say so."""
    store.delete([run.key for run in runs])
    return f"{count(runs)} deleted; u undoes it until the workbench closes."


def restore(store: "ExperimentStore") -> str:
    """Bring back the runs that were deleted last, and name them."""
    names = store.restore()
    return f"{', '.join(names)} listed again." if names else "There is nothing to undo."


def shared_tags(runs: Sequence[RunSummary]) -> tuple[str, ...]:
    """The tags that all of the runs have."""
    return tuple(tag for tag in runs[0].tags if all(tag in run.tags for run in runs))


def describe(store: "ExperimentStore", runs: Sequence[RunSummary], texts: Sequence[str]) -> str:
    """Set the tags that the runs share, or a single run's name, tags and note; say what changed.

    A `-` in front of a tag removes it from those that have it.
    """
    name, tags, *note = texts if len(runs) == 1 else ("", *texts)
    typed = tags.replace(",", " ").split()
    added = [tag for tag in typed if not tag.startswith("-")]
    removed = {tag[1:] for tag in typed if tag.startswith("-")} | {*shared_tags(runs)} - {*added}
    for run in runs:
        if name.strip() not in ("", run.name):
            store.rename(run.key, name.strip())
        if note:
            store.change(run.key, note=note[0])
        store.tag(run.key, add=added, remove=removed)
    return f"{count(runs)} changed."
