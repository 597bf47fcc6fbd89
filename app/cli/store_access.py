"""Open the store for commands: read-only by default; migrated and writable for changes."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from grpo_engine.errors import nearest, quoted
from grpo_tui.app.text.stderr import print_stderr
from grpo_tui.experiments.db.paths import store_path
from grpo_tui.experiments.errors import QueryError, StoreReadOnlyError

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader
    from grpo_tui.experiments.store import ExperimentStore
    from grpo_tui.experiments.values import RunSummary


@contextmanager
def reading() -> Iterator["StoreReader"]:
    """Open the store for reading; an older file is migrated first."""
    from grpo_tui.experiments.db.tables import CURRENT
    from grpo_tui.experiments.reader import StoreReader

    gc.freeze()  # Collections would visit what is loaded again for every few thousand rows.
    path = store_path()
    reader = StoreReader(path)
    if reader.schema < CURRENT:
        reader.close()
        try:
            with writing():
                pass
        except StoreReadOnlyError as error:
            print_stderr(str(error))
        reader = StoreReader(path)
    if reader.note:
        print_stderr(reader.note)
    for waiting in reader.waiting().values():
        print_stderr(
            f"{waiting}; the next command that writes takes them in, as `grpo-tui runs tag` does"
        )
    try:
        yield reader
    finally:
        for line in reader.damaged().values():
            print_stderr(line)
        reader.close()


@contextmanager
def writing() -> Iterator["ExperimentStore"]:
    """Open the store for writing; take in what waits for it, and remove deleted runs."""
    from grpo_tui.experiments.purge import purge_deleted
    from grpo_tui.experiments.record.spill import read_in_all
    from grpo_tui.experiments.store import ExperimentStore

    with ExperimentStore(store_path()) as store:
        if store.copied_to is not None:
            print_stderr(f"upgraded {store.path}; the backup is {store.copied_to}")
        count, complaints = read_in_all(store)
        if count:
            print_stderr(f"imported {count} events that could not be written earlier")
        removed, failures = purge_deleted(store)
        if removed:
            print_stderr(f"removed deleted runs: {removed}")
        for text in (*complaints, *failures):
            print_stderr(text)
        yield store


def resolve_all(reader: "StoreReader", refs: Sequence[str]) -> "list[RunSummary]":
    """Resolve references to runs, without duplicates, in the order given."""
    return list({run.key: run for run in map(reader.resolve, refs)}.values())


def check_metric(reader: "StoreReader", runs: "Sequence[RunSummary]", key: str) -> None:
    """Refuse a metric that none of the runs has."""
    keys = sorted({name for run in runs for name in reader.metric_keys(run.key)})
    if key not in keys:
        reason = nearest(key, keys) if keys else ": no step was finished"
        raise QueryError(f"there is no metric {quoted(key)} here{reason}")
