"""Token numbers of a group as one compressed blob, and the file per run that holds the blobs.

A blob is zlib over a header and byte planes: the first bytes of all values, then the second. `old`
is float32; the other log-probabilities are float16 differences from it, because plain float16 would
put tokens on the wrong side of a clip bound. Where that is not close enough to recompute the loss,
they stay float32.
"""

import json
import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict
from itertools import chain, count, takewhile, zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from grpo_engine.events import UpdateTotals
from grpo_tui.experiments.values import TokenRow

CODEC = 1
MAX_BYTES = 1 << 29  # of a blob when decompressed; a group of 4 million tokens has a fourth
MAX_WORK = 10_000_000  # SQLite's instructions to find a blob by its key: some tens are needed
CLOSE = 1e-6  # nats by which a log-probability in the loss may be off
_LARGEST = 6.0e4  # the largest float16 is 65504

Array = npt.NDArray[Any]
FIELDS = ("sampler", "reference", "after", "entropy", "advantages")
# written after the passes and only where there are any, so that older readers skip them
LATER = ("sampled", "mask", "old_values", "returns", "teacher")
# several arrays a row, by the name under which they are numbered
BY_PASS = {"pass": "passes", "entropies": "entropies", "values": "values"}
HALVES = ("entropy", "mask")  # float16 as they are
LOGPROBS = ("sampler", "reference", "after", "pass", "sampled", "teacher")  # differences from old
APPROXIMATE = ("after",)  # read by no loss

Columns = dict[str, list[Sequence[float]]]  # the values of each row, by name


def encode(prompt_ids: Sequence[int], rows: Sequence[TokenRow]) -> bytes:
    header: dict[str, Any] = {
        "prompt": len(prompt_ids),
        "index": [row.index for row in rows],
        "length": [len(row.ids) for row in rows],
        "ends": [int(bool(row.ends)) for row in rows],
        "old": [int(bool(row.old)) for row in rows],
        "passes": [len(row.passes) for row in rows],
    }
    olds = [np.array(row.old, np.float32) for row in rows]
    arrays = [
        np.array(prompt_ids, np.int32),
        _joined([row.ids for row in rows], np.int32),
        _joined([_rises(row.ends) for row in rows], np.int32),
        np.concatenate(olds) if olds else np.array([], np.float32),
    ]
    if any(row.updates for row in rows):
        header["updates"] = [[asdict(totals) for totals in row.updates] for row in rows]
    for name, values in _columns(rows).items():
        present = [int(bool(numbers)) for numbers in values]
        bases = [old for old, here in zip(olds, present, strict=True) if here]
        old = np.concatenate(bases) if bases and all(map(len, bases)) else None
        kind, array = _pack(name, _joined(values, np.float64), old)
        header[name] = [kind, *present] if array.size else [0]
        arrays.append(array)
    head = json.dumps(header, separators=(",", ":")).encode()
    planes = b"".join(map(_planes, arrays))
    return zlib.compress(len(head).to_bytes(4, "little") + head + planes, 1)


def _columns(rows: Sequence[TokenRow]) -> Columns:
    fields = {name: [getattr(row, name) for row in rows] for name in (*FIELDS, *LATER)}
    columns = {name: fields[name] for name in FIELDS}
    for name, field in BY_PASS.items():
        by_pass = zip_longest(*(getattr(row, field) for row in rows), fillvalue=())
        columns |= {f"{name}{number}": list(values) for number, values in enumerate(by_pass)}
    return columns | {name: fields[name] for name in LATER if any(fields[name])}


def _joined(rows: Sequence[Sequence[float] | Array], dtype: type[np.generic]) -> Array:
    return np.fromiter(chain.from_iterable(rows), dtype=dtype)


def _rises(ends: Sequence[int]) -> list[int]:
    """Return the number of characters that each token adds."""
    return [end - start for start, end in zip((0, *ends), ends, strict=False)]


def _planes(values: Array) -> bytes:
    size = values.dtype.itemsize
    return values.view(np.uint8).reshape(-1, size).T.tobytes() if values.size else b""


def _pack(name: str, full: Array, old: Array | None) -> tuple[int, Array]:
    """Choose the encoding of a field: 1 float16 difference from old, 2 float32, 3 float16."""
    as_is = name in HALVES
    if full.size and (as_is or (name.startswith(LOGPROBS) and old is not None)):
        with np.errstate(invalid="ignore"):
            short = full if as_is or old is None else full - old
        if float(np.abs(short).max()) < _LARGEST:  # false for NaN too
            half = short.astype(np.float16)
            error = np.abs(half.astype(np.float64) - short).max()
            if as_is or name in APPROXIMATE or error <= CLOSE:
                return (3 if as_is else 1), half
    with np.errstate(over="ignore"):
        return 2, full.astype(np.float32)


def decode(blob: bytes, codec: int = CODEC) -> tuple[tuple[int, ...], tuple[TokenRow, ...]]:
    """Decode a group: the prompt's ids, and a row per completion."""
    if codec != CODEC:
        raise ValueError(f"token blob of codec {codec}; this program reads {CODEC}: upgrade it")
    data = zlib.decompressobj().decompress(blob, MAX_BYTES)
    if len(data) == MAX_BYTES:
        raise ValueError(f"a token blob of {len(blob)} bytes holds more than {MAX_BYTES}")
    size = int.from_bytes(data[:4], "little")
    header = json.loads(data[4 : 4 + size])
    planes = _Planes(data, 4 + size)
    index, lengths, passes = (header.pop(name) for name in ("index", "length", "passes"))
    updates = header.pop("updates", [()] * len(index))
    (prompt,) = planes.read(np.int32, [header.pop("prompt")])
    ids = planes.read(np.int32, lengths)
    rises = planes.read(np.int32, np.multiply(lengths, header.pop("ends")))
    olds = planes.read(np.float32, np.multiply(lengths, header.pop("old")))
    columns: dict[str, list[Any]] = {}
    for name, (kind, *present) in header.items():  # in the order of their planes
        dtype = np.float32 if kind == 2 else np.float16
        values = planes.read(dtype, np.multiply(lengths, present or 0))
        if kind == 1:
            values = [
                numbers.astype(np.float64) + old if numbers.size else numbers
                for numbers, old in zip(values, olds, strict=True)
            ]
        elif name == "mask":
            values = [numbers.astype(int) for numbers in values]
        columns[name] = list(map(_tuple, values))

    def by_pass(name: str, row: int) -> Any:
        names = takewhile(columns.__contains__, (f"{name}{number}" for number in count()))
        values = tuple(columns[column][row] for column in names)
        return values[: passes[row]] if name == "pass" else tuple(filter(None, values))

    return _tuple(prompt), tuple(
        TokenRow(
            index=number,
            ids=_tuple(ids[row]),
            ends=_tuple(np.cumsum(rises[row])),
            old=_tuple(olds[row]),
            updates=tuple(UpdateTotals(**totals) for totals in updates[row]),
            **{field: by_pass(name, row) for name, field in BY_PASS.items()},
            **{name: columns[name][row] for name in (*FIELDS, *LATER) if name in columns},
        )
        for row, number in enumerate(index)
    )


class _Planes:
    """Reads consecutive arrays of byte planes."""

    def __init__(self, data: bytes, offset: int) -> None:
        self.data, self.offset = data, offset

    def read(self, dtype: type[np.generic], lengths: Iterable[int]) -> list[Array]:
        """Return the next arrays of these lengths."""
        lengths, size = list(lengths), np.dtype(dtype).itemsize
        total = int(sum(lengths))
        part = np.frombuffer(self.data, np.uint8, total * size, self.offset)
        self.offset += total * size
        values = np.ascontiguousarray(part.reshape(size, total).T).view(dtype).reshape(total)
        return np.split(values, np.cumsum(lengths, dtype=int))[:-1]


def _tuple(values: Array) -> Any:
    return tuple(values.tolist())


class TokenFile:
    """The blobs of one run by sequence number of their group; purging unlinks the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._conn: sqlite3.Connection | None = None

    def write(self, blobs: Sequence[tuple[int, bytes]]) -> None:
        """Commit blobs; must precede the commit of the rows that refer to them."""
        if not blobs:
            return
        if self._conn is None or not self.path.exists():
            self._open()
        assert self._conn is not None
        try:
            with self._conn:
                self._conn.executemany(
                    f"INSERT OR REPLACE INTO blob (seq, codec, data) VALUES (?, {CODEC}, ?)", blobs
                )
        except sqlite3.Error:
            self.close()
            raise

    def _open(self) -> None:
        self.close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        conn = sqlite3.connect(self.path, timeout=1.0, check_same_thread=False)
        try:
            conn.execute("PRAGMA journal_mode = WAL")
            conn.execute("PRAGMA synchronous = NORMAL")
            conn.execute(
                "CREATE TABLE IF NOT EXISTS blob "
                "(seq INTEGER PRIMARY KEY, codec INTEGER NOT NULL, data BLOB NOT NULL)"
            )
        except sqlite3.Error:
            conn.close()
            raise
        self._conn = conn

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None


def read_blobs(
    path: Path, seqs: Sequence[int]
) -> dict[int, tuple[tuple[int, ...], tuple[TokenRow, ...]]]:
    """Return the token numbers of several groups by sequence number; missing groups are omitted."""
    if not path.is_file():
        return {}
    uri = f"file:{quote(str(path))}?mode=ro"
    blobs = {}
    with closing(sqlite3.connect(uri, uri=True, timeout=5.0)) as conn:
        conn.set_progress_handler(lambda: 1, MAX_WORK)
        for seq in seqs:
            row = conn.execute("SELECT codec, data FROM blob WHERE seq = ?", (seq,)).fetchone()
            if row is not None:
                codec, data = row
                blobs[seq] = decode(data, codec)
    return blobs
