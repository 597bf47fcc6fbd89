"""Take in the runs of a bundle: a zip file with a store, which may come from anyone.

Nothing is unpacked but the store's own files, and only to a temporary folder. A name that leaves
the bundle, a link, a name that comes twice or a size that no bundle has refuses all of it, since
another program may unpack what this one leaves alone.
"""

import io
import os
import re
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from grpo_engine.errors import quoted
from grpo_engine.paths import begins_with
from grpo_tui.experiments.errors import ImportRefusedError
from grpo_tui.experiments.importing import Imported, Progress, import_store
from grpo_tui.experiments.store import ExperimentStore

STORE = "store/grpo-tui.db"
TOKENS = re.compile(r"store/runs/[0-9a-z]{1,32}/tokens\.db")
MAX_FILES = 10_000
LARGEST_LIST = 4 << 20  # bytes of the list of files
PLAIN = 256 << 20  # bytes that no one needs to ask about
RATIO = 100  # to the size of the bundle, beyond that
PIECE = 1 << 20
# what the parts of a zip file raise where bytes are wrong
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    OSError,
    EOFError,
    OverflowError,
    RuntimeError,
    UnicodeError,
)


class _Careful(io.FileIO):
    """A file of which no large part is read at once: the list of a hostile one may be all of it."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            size = os.fstat(self.fileno()).st_size - self.tell()
        if size > LARGEST_LIST:
            raise zipfile.BadZipFile("its list of files is too long")
        return super().read(size) or b""


def is_bundle(path: Path) -> bool:
    """Whether a path is that of a zip file."""
    return begins_with(path, b"PK\3\4")


def import_bundle(
    store: ExperimentStore, path: Path, progress: Progress = lambda _: None
) -> Imported:
    """Import the runs of a bundle, as those of any other store."""
    with tempfile.TemporaryDirectory(prefix="grpo-tui-") as folder:
        others = _unpack(path, Path(folder))
        imported = import_store(store, Path(folder, STORE), progress, bundle=path)
    if imported and others:
        progress(f"{path} also has {', '.join(others[:8])}; a program for zip files unpacks them")
    return imported


def _unpack(path: Path, folder: Path) -> Sequence[str]:
    """Write the store's own files; return the names of the others."""
    try:
        with _Careful(path) as file, zipfile.ZipFile(file) as bundle:
            infos = _checked(bundle.infolist(), path)
            members = [i for i in infos if i.filename == STORE or TOKENS.fullmatch(i.filename)]
            _check_space(members, folder)
            for info in members:
                target = folder / info.filename
                target.parent.mkdir(parents=True, exist_ok=True)
                with bundle.open(info) as packed, target.open("xb") as out:
                    shutil.copyfileobj(packed, out, PIECE)
    except DAMAGE as error:
        raise ImportRefusedError(f"{path} cannot be read as a bundle: {error}") from error
    return [info.filename for info in infos if info not in members]


def _checked(infos: Sequence[zipfile.ZipInfo], path: Path) -> Sequence[zipfile.ZipInfo]:
    """The entries of a bundle, or an error that names what a bundle never has."""
    names: set[str] = set()
    for info in infos:
        if problem := _problem(info, names):
            raise ImportRefusedError(f"{path} is refused: {quoted(info.filename)} {problem}")
        names.add(info.filename.casefold())
    size, packed = sum(info.file_size for info in infos), path.stat().st_size
    if len(infos) > MAX_FILES:
        raise ImportRefusedError(f"{path} is refused: it has {len(infos):,} files")
    if size > max(PLAIN, RATIO * packed):
        raise ImportRefusedError(
            f"{path} is refused: {packed / 1e6:,.1f} MB would become {size / 1e6:,.0f} MB"
        )
    if STORE not in (info.filename for info in infos):
        raise ImportRefusedError(
            f"{path} is no bundle: it has no {STORE}; `grpo-tui export RUN --to bundle.zip` makes "
            "one"
        )
    return infos


def _problem(info: zipfile.ZipInfo, names: set[str]) -> str:
    """What is wrong with an entry; empty if nothing is."""
    path = PurePosixPath(info.filename)
    if path.is_absolute() or ".." in path.parts or set("\\:\0") & set(info.filename):
        return "leads out of it"
    if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG) or info.is_dir():
        return "is no plain file"
    if info.filename.casefold() in names:
        return "comes twice"
    if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "is encrypted, or packed in another way"
    return ""


def _check_space(infos: Sequence[zipfile.ZipInfo], folder: Path) -> None:
    size, free = sum(info.file_size for info in infos), shutil.disk_usage(folder).free
    if size > free:
        raise ImportRefusedError(
            f"unpacking takes {size / 1e6:,.0f} MB in {folder.parent}, where {free / 1e6:,.0f} MB "
            "are free: set TMPDIR to a folder on another disk"
        )
