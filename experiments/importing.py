"""Copy runs from another store into one."""

import lzma
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Row, select

from grpo_engine.paths import begins_with
from grpo_tui.experiments.db.tables import ATTEMPT, RUN
from grpo_tui.experiments.errors import ImportRefusedError
from grpo_tui.experiments.purge import purge
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.writer import RunWriter
from grpo_tui.experiments.recorded_events import events_after
from grpo_tui.experiments.store import ExperimentStore
from grpo_tui.experiments.values import ENDED, RecordedEvent, RunSummary

LARGEST = 1 << 30  # bytes of an unpacked store

Imported = list[tuple[str, str]]
Progress = Callable[[str], None]
MAX_STEPS = 10_000_000
INTERRUPTED = "the import was interrupted; import the file again"
COPIED = ("created_at", "started_at", "ended_at", "note", "archived", "error")


def import_store(
    store: ExperimentStore,
    path: Path,
    progress: Progress = lambda _: None,
    bundle: Path | None = None,
) -> Imported:
    """Import every new run of another store; checkpoints and logs are not copied.

    The other file may be damaged or hostile: a run is imported completely or not at all. `bundle`
    is what it was unpacked from, which is then named.
    """
    named = bundle or path
    if not path.is_file():
        raise ImportRefusedError(f"there is no file {path}; give the SQLite file of a store")
    if path.resolve() == store.path.resolve():
        raise ImportRefusedError(f"{path} is the current store")
    imported: Imported = []
    refused: list[str] = []
    try:
        with StoreReader(path) as source:
            for run in source.runs(archived=True, sort="created"):
                try:
                    if _is_new(store, run, progress):
                        progress(f"importing {run.name}: {run.step} steps")
                        row = copy_run(store, source, run, origin=f"import of {named}")
                        imported.append((row.short, run.name))
                except Exception as error:  # one damaged run does not keep the others out
                    refused.append(f"{run.name} ({type(error).__name__}: {str(error)[:200]})")
    except Exception as error:
        # The remedy after the semicolon is for the user's store, which this is not.
        raise ImportRefusedError(
            f"{named} cannot be imported: {str(error).rpartition(';')[0] or error}"
        ) from error
    if refused:
        raise ImportRefusedError(
            f"{len(refused)} runs of {named} cannot be imported, {len(imported)} were: "
            f"{', '.join(refused[:5])}"
        )
    return imported


def is_packed(path: Path) -> bool:
    """Whether a path is that of an .xz file."""
    return begins_with(path, b"\xfd7zXZ\0")


def import_packed(
    store: ExperimentStore, path: Path, progress: Progress = lambda _: None
) -> Imported:
    """Import the runs of a store that xz has packed."""
    with tempfile.TemporaryDirectory(prefix="grpo-tui-") as folder:
        unpacked = Path(folder, path.stem)
        _write_unpacked(path, unpacked)
        return import_store(store, unpacked, progress, bundle=path)


def _write_unpacked(path: Path, target: Path) -> None:
    """Write what is in the file, which may be damaged, or far larger than a store."""
    try:
        with lzma.open(path) as packed, target.open("xb") as out:
            while piece := packed.read(1 << 20):
                if out.tell() + len(piece) > LARGEST:
                    raise ImportRefusedError(
                        f"{path} is refused: it would become more than {LARGEST / 1e6:,.0f} MB; "
                        "unpack it with xz to import it all the same"
                    )
                out.write(piece)
    except (lzma.LZMAError, EOFError, OSError) as error:
        raise ImportRefusedError(f"{path} cannot be unpacked: {error}") from error


def _is_new(store: ExperimentStore, run: RunSummary, progress: Progress) -> bool:
    """Whether a run is not in the store; the rest of an interrupted import is removed."""
    for row in store.execute(select(RUN).filter_by(uid=run.uid)):
        if row.note != INTERRUPTED:
            if row.step < run.step:
                progress(
                    f"{row.name} has {row.step} steps here and {run.step} there: to import it "
                    f"again, delete this one first: grpo-tui runs delete {row.short} --force"
                )
            return False
        purge(store, row.id)
    return True


def copy_run(
    store: ExperimentStore,
    source: StoreReader,
    run: RunSummary,
    *,
    origin: str,
    private: Callable[[Any], Any] | None = None,
) -> Row[Any]:
    """Copy a run completely, or remove it, and return its row; a note marks it until then.

    `private` takes out of each value what is to stay here; with it, the process is left out too.
    """
    detail, change = source.run(run.key), private or (lambda value: value)
    _refuse_damaged(source, run)
    row = store.create_run(
        change(detail.config),
        name=change(run.name),
        uid=run.uid,
        status="imported",
        code_version=run.code_version,
        tags=change(run.tags),
        origin=origin,
    )
    store.change(row.id, note=INTERRUPTED)
    try:
        for attempt in detail.attempts:
            # The process has no meaning on this machine.
            of_run = {
                "run_id": row.id,
                "boot": "",
                "pid_start": "",
                "ended_at": attempt.ended_at or attempt.heartbeat,
            }
            of_run |= {"host": "", "pid": 0} if private else {}
            store.execute(ATTEMPT.insert().values(change(asdict(attempt)) | of_run))
        after = 0
        with closing(RunWriter(store, row)) as writer:
            while page := events_after(source, run.key, after):
                _refuse_damaged(source, run, page)
                writer.write([replace(item, event=change(item.event)) for item in page], limit=30.0)
                after = page[-1].seq
        status = run.status if run.status in ENDED else "imported"
        store.change(row.id, status=status, **{name: change(getattr(run, name)) for name in COPIED})
    except BaseException:
        purge(store, row.id)
        raise
    return row


def _refuse_damaged(
    source: StoreReader, run: RunSummary, page: Sequence[RecordedEvent] = ()
) -> None:
    """Refuse a run with an unreadable value, or with a step out of range."""
    if damage := source.damaged().get(run.id):
        raise ImportRefusedError(damage)
    for item in page:
        if not 0 <= item.event.step <= MAX_STEPS:
            raise ImportRefusedError(f"it has an event of step {item.event.step}")
