"""Exports: the same numbers in every format, harmless cells, and no partial files."""

import csv
import io
import json
import math
import os
import re
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_engine import events as ev
from grpo_tui.experiments.errors import ExportError
from grpo_tui.experiments.export.csv import header_of
from grpo_tui.experiments.export.files import header_for, write_rows
from grpo_tui.experiments.export.json import json_text, without_controls
from grpo_tui.experiments.export.rows import WHAT, rows_of
from grpo_tui.experiments.export.tensorboard import crc32c
from grpo_tui.experiments.export.trackers import export_to
from grpo_tui.experiments.export.trackio import export_trackio
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import resume_run, start_run
from grpo_tui.experiments.values import MetricSeries
from tests.experiments.csv_reader import read_csv
from tests.experiments.made import (
    CONFIG,
    ended,
    evaluated,
    finished,
    group,
    numbers,
    put_all,
    started,
    step_events,
)

HOSTILE = ("=1+1", "+2", "-3", "@cmd", "\tx", "\rx", "'quoted", 'a,"b"\r\nc', "\x00", "\ud800")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: hostile texts, an evaluation before the first step, NaN, two passes."""
    store = tmp_path_factory.mktemp("export") / "s.db"
    for name in ("=one", "two"):
        handle = start_run(store, CONFIG, name=name, tags=("=tag",))
        held_out = ev.GroupScored(step=0, group=group(0, ("yes",), origin="eval"))
        put_all(handle, started(), held_out, evaluated(0), finished(1, reward=math.nan, odd=1e-9))
        put_all(handle, ev.GroupScored(step=2, group=group(0, HOSTILE, prompt="=HYPERLINK(1)")))
        put_all(handle, numbers(step=2, rows=len(HOSTILE)), *step_events(3), evaluated(3), ended(3))
        assert handle.close()
    return store


@pytest.fixture
def reader(path: Path) -> Iterator[StoreReader]:
    with StoreReader(path) as made:
        yield made


def csv_of(reader: StoreReader, what: str, raw: bool = False) -> str:
    out = io.StringIO(newline="")
    runs = reader.runs()
    header = header_for(what, reader, runs)
    write_rows(rows_of(what, reader, runs), "csv", out, header=header, raw=raw)
    return out.getvalue()


@pytest.mark.parametrize("what", WHAT)
def test_csv_opens_in_pandas_with_the_numbers_of_json(reader: StoreReader, what: str) -> None:
    import pandas as pd

    wanted = [json.loads(json_text(row)) for row in rows_of(what, reader, reader.runs())]
    frame = pd.read_csv(io.StringIO(csv_of(reader, what)))
    assert len(frame) == len(wanted) > 0
    compared = 0
    for place, row in enumerate(wanted):
        for name, value in row.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                assert float(frame[name][place]) == value
                compared += 1
    assert compared > len(wanted)


@pytest.mark.parametrize("what", WHAT)
def test_every_cell_reads_back_as_it_was(reader: StoreReader, what: str) -> None:
    runs = reader.runs()
    wanted = list(rows_of(what, reader, runs))
    for raw in (False, True):
        found = list(read_csv(io.StringIO(csv_of(reader, what, raw), newline=""), raw=raw))
        for got, row in zip(found, wanted, strict=True):
            for name, value in row.items():
                if isinstance(value, str):
                    assert got[name] == (value if raw else without_controls(value))


def test_tokens_have_the_columns_of_every_pass_though_evaluations_come_first(
    reader: StoreReader,
) -> None:
    text = csv_of(reader, "tokens")
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert rows[0]["origin"] == "eval"
    assert rows[0]["pass_1"] == ""
    late = [row for row in rows if row["step"] == "3"]
    assert [float(row["pass_1"]) for row in late[:3]] == [-0.5, -1.0, -2.0]


@pytest.mark.parametrize("what", WHAT)
def test_every_table_is_written_as_json_lines(
    reader: StoreReader, tmp_path: Path, what: str
) -> None:
    rows = list(rows_of(what, reader, reader.runs()))
    assert write_rows(iter(rows), "jsonl", tmp_path / "out.jsonl") == len(rows)
    assert [file.name for file in tmp_path.iterdir()] == ["out.jsonl"]
    lines = (tmp_path / "out.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [json.loads(json_text(row)) for row in rows]


def test_an_export_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield {"a": 1}
        raise ExportError("half way")

    out = tmp_path / "out.csv"
    out.write_text("the one before")
    with pytest.raises(ExportError, match="half way"):
        write_rows(rows(), "csv", out, header=["a"])
    assert out.read_text() == "the one before"
    assert [file.name for file in tmp_path.iterdir()] == ["out.csv"]


def test_rollouts_beyond_those_read_at_once_are_all_there(
    reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = reader.runs()
    wanted = list(rows_of("rollouts", reader, runs))
    monkeypatch.setattr("grpo_tui.experiments.export.rows.PAGE", 1)
    assert repr(list(rows_of("rollouts", reader, runs))) == repr(wanted)
    assert list(dict.fromkeys(row["step"] for row in wanted)) == [0, 2, 3]


@pytest.fixture
def long_run(tmp_path: Path) -> Iterator[StoreReader]:
    """Gaps, NaN, a metric of some steps, evaluations without a step, and steps done again."""
    handle = start_run(tmp_path / "long.db", CONFIG)
    put_all(
        handle, started(), evaluated(0), *map(finished, (1, 2, 5)), finished(6, math.nan, odd=1)
    )
    put_all(handle, evaluated(6), *map(finished, (7, 8)))
    assert handle.close()
    again = resume_run(tmp_path / "long.db", handle.key, from_step=7)
    put_all(again, started(7), finished(8, odd=2), finished(9), evaluated(11), ended(9))
    assert again.close()
    with StoreReader(tmp_path / "long.db") as made:
        yield made


@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_metrics_are_read_in_pages_of_steps(
    long_run: StoreReader, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    read, counts = long_run.metric_series, list[int]()

    def counted(*words: Any, **options: Any) -> MetricSeries:
        series = read(*words, **options)
        counts.append(len(series.steps))
        return series

    monkeypatch.setattr(long_run, "metric_series", counted)
    wanted = list(rows_of("metrics", long_run, long_run.runs()))
    assert [row["step"] for row in wanted] == [0, 1, 2, 5, 6, 7, 8, 9, 11]
    assert [row["odd"] for row in wanted if row["odd"] is not None] == [1, 2]
    counts.clear()
    monkeypatch.setattr("grpo_tui.experiments.export.rows.PAGE", size)
    assert repr(list(rows_of("metrics", long_run, long_run.runs()))) == repr(wanted)
    assert max(counts) <= size


def records(data: bytes) -> Iterator[bytes]:
    """The messages of a TensorBoard file, with their CRCs checked."""
    place = 0
    while place < len(data):
        (size,) = struct.unpack_from("<Q", data, place)
        message = data[place + 12 : place + 12 + size]
        (stored,) = struct.unpack_from("<I", data, place + 12 + size)
        crc = crc32c(message)
        assert stored == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        yield message
        place += size + 16


@pytest.mark.parametrize("format", ["csv", "jsonl", "tensorboard", "trackio"])
def test_a_folder_a_database_or_a_full_device_is_refused_and_stays(
    reader: StoreReader, tmp_path: Path, format: str
) -> None:
    def write(place: Path) -> None:
        if format == "tensorboard":
            export_to("tensorboard", reader, reader.runs(), place)
        elif format == "trackio":
            export_trackio(reader, reader.runs(), place)
        else:
            rows = list(rows_of("metrics", reader, reader.runs()))
            write_rows(iter(rows), format, place, header=header_of(rows))

    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    store = reader.path.read_bytes()
    places = [tmp_path / "file" / "inside", Path("/proc/none/x")]
    if format in ("csv", "jsonl"):
        places += [tmp_path / "folder", reader.path]
        if os.getuid() == 0:
            os.mknod(tmp_path / "full", stat.S_IFCHR | 0o666, os.makedev(1, 7))  # as /dev/full
            places.append(tmp_path / "full")
    for place in places:
        with pytest.raises(ExportError, match=re.escape(str(place))):
            write(place)
    assert reader.path.read_bytes() == store
    assert (tmp_path / "file").read_text() == "mine"
    assert not (tmp_path / "full").is_file()
    assert {entry.name for entry in tmp_path.iterdir()} <= {"folder", "file", "full"}


def test_a_fifo_and_a_link_are_written_through(reader: StoreReader, tmp_path: Path) -> None:
    rows = list(rows_of("metrics", reader, reader.runs()))
    header = header_of(rows)
    write_rows(iter(rows), "csv", tmp_path / "plain.csv", header=header)
    wanted = (tmp_path / "plain.csv").read_bytes()
    os.mkfifo(tmp_path / "fifo")
    with subprocess.Popen(["cat", tmp_path / "fifo"], stdout=subprocess.PIPE) as cat:
        write_rows(iter(rows), "csv", tmp_path / "fifo", header=header)
        assert cat.communicate()[0] == wanted
    assert (tmp_path / "fifo").is_fifo()
    (tmp_path / "target.csv").touch()
    (tmp_path / "link.csv").symlink_to("target.csv")
    write_rows(iter(rows), "csv", tmp_path / "link.csv", header=header)
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "target.csv").read_bytes() == wanted


def test_tensorboard_files_hold_each_finite_value_once(reader: StoreReader, tmp_path: Path) -> None:
    # the check value of RFC 3720 for 32 zero bytes
    assert crc32c(bytes(32)) == 0x8A9136AA
    runs = reader.runs()
    count = export_to("tensorboard", reader, runs, tmp_path)
    files = sorted(tmp_path.rglob("events.out.tfevents.*"))
    assert [file.parent.name[:4] for file in files] == ["_one", "two-"]
    messages = [list(records(file.read_bytes())) for file in files]
    assert b"brain.Event:2" in messages[0][0]
    assert count == sum(len(found) - 1 for found in messages)
    (last,) = (found for found in messages[0] if b"\x06reward" in found and b"\x10\x03" in found)
    assert struct.pack("<f", 0.3) in last


def test_a_tracker_that_is_not_installed_is_named(
    reader: StoreReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ExportError, match="pip install wandb"):
        export_to("wandb", reader, reader.runs(), tmp_path / "new")
    assert not (tmp_path / "new").exists()


class OfflineRun:
    """What wandb's functions do for the run that an export began, with the package's signatures."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.finished = False

    def log(self, data: dict[str, float], step: int) -> None:
        print("wandb: chatter")
        self.logged.append((step, data))

    def finish(self, exit_code: int | None = None) -> None:
        assert exit_code is None
        self.finished = True


def test_wandb_gets_each_step_once_and_its_chatter_stays_off_stdout(
    reader: StoreReader,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs: list[OfflineRun] = []
    asked: list[dict[str, Any]] = []

    def init(**settings: Any) -> OfflineRun:
        asked.append(settings)
        runs.append(OfflineRun())
        return runs[-1]

    fake = SimpleNamespace(
        Settings=dict,
        init=init,
        log=lambda data, step: runs[-1].log(data, step),
        finish=lambda: runs[-1].finish(),
    )
    monkeypatch.setitem(sys.modules, "wandb", fake)
    count = export_to("wandb", reader, reader.runs(sort="created"), tmp_path)
    assert [one["name"] for one in asked] == ["=one", "two"]
    assert [one["settings"]["mode"] for one in asked] == ["offline", "offline"]
    assert [step for step, _ in runs[0].logged] == [0, 1, 3]
    assert "reward" not in runs[0].logged[1][1]
    assert runs[0].logged[2][1]["reward"] == pytest.approx(0.3)
    assert count == sum(len(values) for run in runs for _, values in run.logged)
    assert all(run.finished for run in runs)
    assert capsys.readouterr().out == ""
