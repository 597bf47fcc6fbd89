"""Token numbers of a group as one compressed blob, and the file per run that holds the blobs.

A blob is zlib over a header and byte planes: the first bytes of all values, then the second. `old`
is float32; the other log-probabilities are float16 differences from it, because plain float16 would
put tokens on the wrong side of a clip bound. Where that is not close enough to recompute the loss,
they stay float32.
"""

import json
import sqlite3
import zlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from grpo_engine.events import UpdateTotals
from grpo_tui.experiments.values import TokenRow

CODEC = 1
MOST_BYTES = 1 << 29  # of a blob when decompressed; a group of 4 million tokens has a fourth
MOST_WORK = 10_000_000  # SQLite's instructions to find a blob by its key: some tens are needed
CLOSE = 1e-6  # nats by which a log-probability in the loss may be off
_LARGEST = 6.0e4  # the largest float16 is 65504

Array = npt.NDArray[Any]
FIELDS = ("sampler", "reference", "after", "entropy", "advantages")
# written after the passes and only where there are any, so that older readers skip them
LATER = ("sampled", "mask", "old_values", "returns")
BY_PASS = ("entropies", "values")
HALVES = ("entropy", "mask")  # float16 as they are
LOGPROBS = ("sampler", "reference", "after", "pass", "sampled")  # differences from old
SHOWN = ("after",)  # read by no loss


def encode(prompt_ids: Sequence[int], rows: Sequence[TokenRow]) -> bytes:
    lengths = [len(row.ids) for row in rows]
    has_old = [bool(row.old) for row in rows]
    header: dict[str, Any] = {
        "prompt": len(prompt_ids),
        "index": [row.index for row in rows],
        "length": lengths,
        "ends": [int(bool(row.ends)) for row in rows],
        "old": [int(there) for there in has_old],
        "passes": [len(row.passes) for row in rows],
    }
    old = _chain([row.old for row in rows], np.float32)
    planes = [
        _planes(np.array(prompt_ids, np.int32)),
        _planes(_chain([row.ids for row in rows], np.int32)),
        _planes(_rises([row.ends for row in rows])),
        _planes(old),
    ]
    fields = {name: [getattr(row, name) for row in rows] for name in FIELDS}
    for number in range(max(header["passes"], default=0)):
        fields[f"pass{number}"] = [
            row.passes[number] if number < len(row.passes) else () for row in rows
        ]
    fields |= {
        name: [getattr(row, name) for row in rows]
        for name in LATER
        if any(getattr(row, name) for row in rows)
    }
    for name in BY_PASS:
        for number in range(max((len(getattr(row, name)) for row in rows), default=0)):
            passes = [getattr(row, name) for row in rows]
            fields[f"{name}{number}"] = [one[number] if number < len(one) else () for one in passes]
    if any(row.updates for row in rows):
        header["updates"] = [[asdict(one) for one in row.updates] for row in rows]
    for name, values in fields.items():
        there = [bool(row) for row in values]
        base = old if there == has_old else _chosen(old, lengths, has_old, there)
        kind, array = _pack(name, _chain(values, np.float64), base)
        header[name] = [kind, *map(int, there)] if array.size else [0]
        planes.append(_planes(array))
    head = json.dumps(header, separators=(",", ":")).encode()
    return zlib.compress(len(head).to_bytes(4, "little") + head + b"".join(planes), 1)


def decode(blob: bytes, codec: int = CODEC) -> tuple[tuple[int, ...], tuple[TokenRow, ...]]:
    """Decode a group: the prompt's ids, and a row per completion."""
    if codec != CODEC:
        raise ValueError(f"token blob of codec {codec}; this program reads {CODEC}: upgrade it")
    data = zlib.decompressobj().decompress(blob, MOST_BYTES)
    if len(data) == MOST_BYTES:
        raise ValueError(f"a token blob of {len(blob)} bytes holds more than {MOST_BYTES}")
    size = int.from_bytes(data[:4], "little")
    header = json.loads(data[4 : 4 + size])
    take = _Planes(data, 4 + size)
    lengths = header["length"]
    prompt = take.next(np.int32, header["prompt"])
    ids = _split(take.next(np.int32, sum(lengths)), lengths, [1] * len(lengths))
    deltas = _split(take.next(np.int32, _total(lengths, header["ends"])), lengths, header["ends"])
    olds = _split(take.next(np.float32, _total(lengths, header["old"])), lengths, header["old"])
    fields = {name: _take_field(take, header, name, lengths, olds) for name in FIELDS}
    passes = [
        _take_field(take, header, f"pass{number}", lengths, olds)
        for number in range(max(header["passes"], default=0))
    ]
    fields |= {name: _take_field(take, header, name, lengths, olds) for name in LATER}
    by_pass: dict[str, list[list[Array]]] = {
        name: [
            _take_field(take, header, f"{name}{number}", lengths, olds)
            for number in range(sum(key.rstrip("0123456789") == name for key in header))
        ]
        for name in BY_PASS
    }
    updates = header.get("updates", [()] * len(lengths))

    def numbers(i: int) -> dict[str, Any]:
        found = {name: _tuple(values[i]) for name, values in fields.items()}
        found["mask"] = tuple(map(int, found["mask"]))
        for name, values in by_pass.items():
            found[name] = tuple(_tuple(one[i]) for one in values if one[i].size)
        return found

    rows = tuple(
        TokenRow(
            index=index,
            ids=_tuple(ids[i]),
            ends=_tuple(np.cumsum(deltas[i])),
            old=_tuple(olds[i]),
            passes=tuple(_tuple(values[i]) for values in passes[: header["passes"][i]]),
            updates=tuple(UpdateTotals(**one) for one in updates[i]),
            **numbers(i),
        )
        for i, index in enumerate(header["index"])
    )
    return _tuple(prompt), rows


def _chain(rows: Sequence[Sequence[float]], kind: type[np.generic]) -> Array:
    return np.fromiter(chain.from_iterable(rows), dtype=kind)


def _rises(ends: Sequence[Sequence[int]]) -> Array:
    """Return the number of characters that each token adds."""
    rises: list[int] = []
    for row in ends:
        rises.extend(end - before for before, end in zip((0, *row), row, strict=False))
    return np.array(rises, np.int32)


def _planes(values: Array) -> bytes:
    size = values.dtype.itemsize
    return values.view(np.uint8).reshape(-1, size).T.tobytes() if values.size else b""


def _chosen(old: Array, lengths: list[int], has_old: list[bool], there: list[bool]) -> Array | None:
    """Return the part of `old` for the rows that are present; None if it lacks some."""
    if any(row and not base for row, base in zip(there, has_old, strict=True)):
        return None
    wanted: Array = old[np.repeat(np.array(there)[has_old], np.array(lengths)[has_old])]
    return wanted


def _pack(name: str, full: Array, old: Array | None) -> tuple[int, Array]:
    """Choose the encoding of a field: 1 float16 difference from old, 2 float32, 3 float16."""
    whole = name in HALVES
    if full.size and (whole or (name.startswith(LOGPROBS) and old is not None)):
        with np.errstate(invalid="ignore"):
            short = full if whole or old is None else full - old
        if float(np.abs(short).max()) < _LARGEST:  # false for NaN too
            half = short.astype(np.float16)
            off = np.abs(half.astype(np.float64) - short).max()
            if whole or name in SHOWN or off <= CLOSE:
                return (3 if whole else 1), half
    with np.errstate(over="ignore"):
        return 2, full.astype(np.float32)


def _take_field(
    take: "_Planes", header: dict[str, Any], name: str, lengths: list[int], olds: list[Array]
) -> list[Array]:
    kind, *there = header.get(name, [0])
    if not kind:
        return [np.zeros(0)] * len(lengths)
    values = take.next(np.float32 if kind == 2 else np.float16, _total(lengths, there))
    parts = _split(values, lengths, there)
    if kind != 1:
        return parts
    return [
        part.astype(np.float64) + old if here else part
        for part, old, here in zip(parts, olds, there, strict=True)
    ]


class _Planes:
    """Reads consecutive arrays of byte planes."""

    def __init__(self, data: bytes, start: int) -> None:
        self.data, self.place = data, start

    def next(self, kind: type[np.generic], count: int) -> Array:
        size = np.dtype(kind).itemsize
        end = self.place + count * size
        part = np.frombuffer(self.data, np.uint8, count * size, self.place) if count else None
        self.place = end
        if part is None:
            return np.zeros(0, kind)
        return np.ascontiguousarray(part.reshape(size, count).T).view(kind).reshape(count)


def _total(lengths: list[int], present: list[int]) -> int:
    return sum(length for length, there in zip(lengths, present, strict=True) if there)


def _split(values: Array, lengths: list[int], present: list[int]) -> list[Array]:
    parts: list[Array] = []
    place = 0
    for length, there in zip(lengths, present, strict=True):
        size = length if there else 0
        parts.append(values[place : place + size])
        place += size
    return parts


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
    found = {}
    with closing(sqlite3.connect(uri, uri=True, timeout=5.0)) as conn:
        conn.set_progress_handler(lambda: 1, MOST_WORK)
        for seq in seqs:
            row = conn.execute("SELECT codec, data FROM blob WHERE seq = ?", (seq,)).fetchone()
            if row is not None:
                codec, data = row
                found[seq] = decode(data, codec)
    return found
