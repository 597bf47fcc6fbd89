"""Packs the runs of all experiments as docs/results.db.xz, and opens that file again."""

import lzma
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.results.training import ROOT, STORE
from grpo_tui.app.bundle.private import Private
from grpo_tui.experiments.importing import copy_run
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.store import ExperimentStore

FILE = ROOT / "docs" / "results.db.xz"
LARGEST = 3_000_000  # bytes of the packed file
ANSWERS = """
    DELETE FROM rollout_group WHERE origin != 'train'
    OR run_id NOT IN (SELECT id FROM run WHERE name LIKE '%-1')
    OR step > 1 AND step % 10 > 0
"""
SAMPLES = """
    DELETE FROM evaluation_sample WHERE evaluation_id IN
    (SELECT id FROM evaluation WHERE moment = 'during')
"""


def pack(folder: Path, file: Path = FILE) -> None:
    """Put the completed runs of all stores of a folder into one file, with those it has already.

    Answers are kept of the first step and each tenth of a setting's first run, held-out ones not at
    all: only which problems were right before and after training. Paths and the host's name are
    left out.
    """
    with tempfile.TemporaryDirectory() as temporary:
        packed, copy = Path(temporary, STORE), Path(temporary, "copy.db")
        with ExperimentStore(packed) as store:
            for source in sorted(folder.glob(f"*/{STORE}")):
                with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(copy)) as new:
                    old.backup(new)
                    new.execute("PRAGMA foreign_keys = ON")
                    new.execute(ANSWERS)
                    new.execute(SAMPLES)
                    new.commit()
                _copy_runs(copy, store)
            if file.is_file():
                with opened(file) as earlier:
                    _copy_runs(earlier, store)
        with closing(sqlite3.connect(packed, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("VACUUM")
        content = lzma.compress(packed.read_bytes(), preset=9 | lzma.PRESET_EXTREME)
    if len(content) > LARGEST:
        raise SystemExit(f"{file.name} would have {len(content):,} bytes, more than {LARGEST:,}")
    file.write_bytes(content)
    print(f"{file}: {len(content):,} bytes")


def _copy_runs(source: Path, store: ExperimentStore) -> None:
    """Copy the completed runs whose names the store does not have."""
    with StoreReader(store.path) as stored, StoreReader(source) as reader:
        names = {run.name for run in stored.runs(archived=True)}
        for run in reader.runs(archived=True, sort="created"):
            if run.status == "completed" and run.name not in names:
                hosts = {attempt.host for attempt in reader.attempts(run.key)}
                private = Private(hosts, with_code=False)
                origin = reader.run(run.key).origin
                copy_run(store, reader, run, origin=origin, private=private)


@contextmanager
def opened(file: Path = FILE) -> Iterator[Path]:
    """The store in a packed file, in a temporary folder."""
    with tempfile.TemporaryDirectory() as temporary:
        store = Path(temporary, STORE)
        with lzma.open(file) as content, store.open("wb") as out:
            shutil.copyfileobj(content, out)
        yield store
