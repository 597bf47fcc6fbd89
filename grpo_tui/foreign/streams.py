"""JSON lines that grow from chunk to chunk: read once for an index, and again by place."""

import re
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Final

from grpo_engine.frozen import frozen
from grpo_tui.experiments.errors import ImportRefusedError
from grpo_tui.foreign.files import AGAIN, Folder, Row, read_line, row_of

SEALED: Final = ".zst"
INDEX: Final = re.compile(r"(.*)\.index\.jsonl")
LARGEST_CHUNK = 6 << 30  # bytes of a chunk, unpacked
PIECE = 1 << 20


@frozen
class Position:
    """Where a line is; that of a chunk stays when the chunk is sealed."""

    chunk: str
    offset: int
    line: int


class Stream:
    """The lines of the chunks that fit some patterns, in their order."""

    def __init__(self, folder: Folder, *patterns: str) -> None:
        self._folder, self._patterns = folder, patterns
        self._paths: dict[str, Path] = {}
        self._read_to: dict[str, Position] = {}
        self._complete: set[str] = set()
        self._unpacked: dict[str, IO[bytes]] = {}
        weakref.finalize(self, _close, self._unpacked)

    def new(self) -> Iterator[tuple[Position, Row]]:
        """The complete lines that were not read before."""
        self._paths = {
            str(path).removesuffix(SEALED): path
            for pattern in self._patterns
            # A chunk is there twice while it is being sealed; its plain file has it all.
            for path in sorted(self._folder.files(pattern), reverse=True)
            if not INDEX.fullmatch(path.name)
        }
        for chunk in sorted(self._paths.keys() - self._complete):
            path = self._paths[chunk]
            start = self._read_to.get(chunk, Position(chunk=chunk, offset=0, line=1))
            for position, line in self._lines(start):
                if line.strip():
                    yield position, row_of(line, f"{path}:{position.line}")
            if path.suffix == SEALED:
                self._complete.add(chunk)

    def row(self, position: Position) -> Row:
        """Read a line again."""
        for _, line in self._lines(position, reread=True):
            return row_of(line, f"{position.chunk}:{position.line}")
        raise ImportRefusedError(f"{position.chunk}:{position.line} is no longer there; {AGAIN}")

    def _lines(
        self, position: Position, *, reread: bool = False
    ) -> Iterator[tuple[Position, bytes]]:
        path = self._paths[position.chunk]
        try:
            with self._opened(position.chunk) as file:
                file.seek(position.offset)
                while (line := read_line(file, f"{path}:{position.line}")).endswith(b"\n"):
                    yield position, line
                    position = replace(position, offset=file.tell(), line=position.line + 1)
                    if not reread:
                        self._read_to[position.chunk] = position
        except OSError as error:
            raise ImportRefusedError(
                f"{path} cannot be read: {error.strerror or error}; {AGAIN}"
            ) from error

    @contextmanager
    def _opened(self, chunk: str) -> Iterator[IO[bytes]]:
        """A chunk as plain text, which it may have ceased to be a moment ago."""
        path = self._paths[chunk]
        if path.suffix != SEALED and path.exists():
            with path.open("rb") as file:
                yield file
            return
        if chunk not in self._unpacked:
            for older in [*self._unpacked][:-1]:
                self._unpacked.pop(older).close()
            self._unpacked[chunk] = unpacked(Path(chunk + SEALED))
        yield self._unpacked[chunk]


def _close(files: dict[str, IO[bytes]]) -> None:
    for file in files.values():
        file.close()


def unpacked(path: Path) -> IO[bytes]:
    """A file that is packed with zstd, as a temporary one."""
    try:
        import pyarrow
    except ImportError as error:
        raise ImportRefusedError(
            f"{path}: packed files need the package pyarrow; `pip install 'grpo-tui[parquet]'`, or "
            "unpack it by `zstd -d --rm`"
        ) from error
    try:
        with (
            ExitStack() as unfinished,
            pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), "zstd") as source,
        ):
            target: IO[bytes] = unfinished.enter_context(tempfile.TemporaryFile())
            while piece := source.read(PIECE):
                if target.tell() + len(piece) > LARGEST_CHUNK:
                    break
                target.write(piece)
            else:
                unfinished.pop_all()
                return target
    except OSError as error:
        raise ImportRefusedError(
            f"{path} cannot be unpacked: {error}; free disk space in {tempfile.gettempdir()}, or "
            "restore the file"
        ) from error
    raise ImportRefusedError(f"{path} unpacks to more than {LARGEST_CHUNK >> 30} GiB; {AGAIN}")
