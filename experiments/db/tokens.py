"""Token numbers of a group as one compressed blob, and the file per run that holds the blobs.

A blob is zlib over a header and byte planes: the first bytes of all values, then the second. Values
are integers or floats of four bytes; the header has the length of each array, in order.
"""

import json
import sqlite3
import zlib
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from grpo_engine.events import TokenNumbers, UpdateTotals
from grpo_tui.experiments.db.types import compact
from grpo_tui.experiments.values import RecordedTokens, TokenView

CODEC = 2
MAX_BYTES = 1 << 29  # of a decompressed blob; a group of 4 million tokens needs a fourth
MAX_WORK = 10_000_000  # SQLite instructions for finding a blob by its key, which takes some tens

NO_ARRAYS = ("index", "updates", "spans", "clip_fraction", "kl")
FIELDS = [field.name for field in fields(RecordedTokens) if field.name not in NO_ARRAYS]
TYPECODES = {"ids": "i", "ends": "i", "mask": "i"}  # of arrays of integers; the others are floats
_totals = lru_cache(asdict)  # cached: rows of a step often share their totals
BY_PASS = ("passes", "entropies", "values")  # fields with several arrays per row


def encode(prompt_ids: Sequence[int], rows: Sequence[TokenNumbers]) -> bytes:
    arrays = [array("i", prompt_ids)]
    headers = []
    for row in rows:
        lengths = {}
        for name in FIELDS:
            if values := getattr(row, name, ()):
                parts = values if name in BY_PASS else (values,)
                lengths[name] = [len(part) for part in parts]
                arrays += [array(TYPECODES.get(name, "f"), part) for part in parts]
        headers.append([row.index, list(map(_totals, row.updates)), lengths])
    head = compact([len(prompt_ids), headers]).encode()
    data = np.frombuffer(b"".join(arrays), np.uint8)
    planes = data.reshape(-1, 4).T.tobytes()
    return zlib.compress(len(head).to_bytes(4, "little") + head + planes, 1)


def merged(tokens: TokenView, numbers: TokenView) -> TokenView:
    """A group's tokens with numbers that were recorded after them."""
    by_index = {row.index: row for row in numbers.rows}
    rows = (
        replace(by_index.get(row.index, row), ids=row.ids, ends=row.ends, sampler=row.sampler)
        for row in tokens.rows
    )
    return replace(tokens, rows=tuple(rows))


def decode(blob: bytes, codec: int = CODEC) -> TokenView:
    if codec not in (1, CODEC):
        raise ValueError(f"token blob of codec {codec}; this program reads {CODEC}: upgrade it")
    data = zlib.decompressobj().decompress(blob, MAX_BYTES)
    if len(data) == MAX_BYTES:
        raise ValueError(f"a token blob of {len(blob)} bytes holds more than {MAX_BYTES}")
    size = 4 + int.from_bytes(data[:4], "little")
    header = json.loads(data[4:size])
    if codec == 1:
        return _decode_first(header, data, size)
    planes = np.frombuffer(data, np.uint8, offset=size)
    values = memoryview(planes.reshape(4, -1).T.tobytes())

    def read(name: str, length: int) -> tuple[Any, ...]:
        nonlocal values
        numbers = array(TYPECODES.get(name, "f"), values[: 4 * length].tobytes())
        values = values[4 * length :]
        return tuple(numbers)

    prompt_length, headers = header
    prompt = read("ids", prompt_length)
    rows = [
        _row(
            index,
            updates,
            {name: [read(name, length) for length in sizes] for name, sizes in lengths.items()},
        )
        for index, updates, lengths in headers
    ]
    return TokenView(prompt_ids=prompt, rows=tuple(rows))


def _row(index: int, updates: Sequence[Any], arrays: Mapping[str, Sequence[Any]]) -> RecordedTokens:
    """Build a row from the arrays of each field."""
    values = {name: tuple(a) if name in BY_PASS else a[0] for name, a in arrays.items()}
    totals = tuple(UpdateTotals(**total) for total in updates)
    return RecordedTokens(
        index=index, updates=totals, **{"ids": (), "old": (), "sampler": ()} | values
    )


# -- blobs of version 0.1 ------------------------------------------------------------------------


def _decode_first(header: dict[str, Any], data: bytes, offset: int) -> TokenView:
    """Decode a blob whose arrays are those of a group; some are float16, differences to `old`."""

    def read(dtype: str, length: int) -> npt.NDArray[Any]:
        nonlocal offset
        size = np.dtype(dtype).itemsize
        planes = np.frombuffer(data, np.uint8, length * size, offset).reshape(size, length)
        offset += planes.size
        return np.frombuffer(planes.T.tobytes(), dtype)

    index, lengths, _ = (header.pop(name) for name in ("index", "length", "passes"))
    updates = header.pop("updates", [()] * len(index))
    prompt = read("i4", header.pop("prompt"))
    rows = [defaultdict[str, list[Any]](list) for _ in index]
    columns = {"ids": (4, 1), "ends": (4, *header.pop("ends")), "old": (2, *header.pop("old"))}
    for name, (kind, *present) in (columns | header).items():  # in the order of their planes
        field = name.rstrip("0123456789").replace("pass", "passes")
        dtype = {2: "f4", 4: "i4"}.get(kind, "f2")
        ends = np.cumsum(np.multiply(lengths, present or 0), dtype=int)
        arrays = np.split(read(dtype, int(ends[-1])), ends[:-1])
        for row, values in zip(rows, arrays, strict=True):
            if not values.size:
                continue
            if name == "ends":
                values = np.cumsum(values)
            elif kind == 1:
                values = values + np.float64(row["old"][0])
            numbers = values.astype(int if name == "mask" else values.dtype)
            row[field].append(tuple(numbers.tolist()))
    return TokenView(prompt_ids=tuple(prompt.tolist()), rows=tuple(map(_row, index, updates, rows)))


def write_blobs(path: Path, blobs: Sequence[tuple[int, bytes]]) -> None:
    """Commit blobs by sequence number; the rows that refer to them are committed afterwards."""
    if not blobs:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, timeout=1.0)) as conn, conn:
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("PRAGMA synchronous = NORMAL")
        conn.execute(
            "CREATE TABLE IF NOT EXISTS blob "
            "(seq INTEGER PRIMARY KEY, codec INTEGER NOT NULL, data BLOB NOT NULL)"
        )
        conn.executemany(
            f"INSERT OR REPLACE INTO blob (seq, codec, data) VALUES (?, {CODEC}, ?)", blobs
        )


def read_blobs(path: Path, seqs: Sequence[int]) -> dict[int, TokenView]:
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
