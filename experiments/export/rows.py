"""Runs, metrics, rollouts, tokens and evaluations as rows, and rows as files."""

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from experiments.db.texts import escape, iso, visible
from experiments.errors import ExportError, StoreError
from experiments.export.csv import cell, json_text, plain, write_csv
from experiments.reader import StoreReader
from experiments.values import GroupView, RolloutView, RunSummary

Row = dict[str, Any]
PAGE = 200
WINDOW = 2000
METRIC_FIELDS = ("run", "name", "step", "at", "elapsed", "tokens")
WHAT = ("runs", "metrics", "rollouts", "tokens", "evaluations")
FORMATS = ("csv", "jsonl", "parquet", "md")
RUN_FIELDS = (
    "id", "uid", "name", "status", "model", "task", "recipe", "seed", "step", "total_steps",
    "tokens", "elapsed", "created_at", "started_at", "ended_at", "device", "dataset_fingerprint",
    "code_version", "tags", "note", "error", "archived", "parent", "sweep", "attempts", "bytes",
)  # fmt: skip


def rows_of(what: str, reader: StoreReader, runs: Sequence[RunSummary]) -> Iterator[Row]:
    """The rows of an export, read as they are taken."""
    makers: dict[str, Callable[[StoreReader, Sequence[RunSummary]], Iterator[Row]]] = {
        "runs": run_rows, "metrics": metric_rows, "rollouts": rollout_rows, "tokens": token_rows,
        "evaluations": evaluation_rows,
    }  # fmt: skip
    if what not in makers:
        raise ExportError(f"{what!r} cannot be exported; choose from {', '.join(WHAT)}")
    return makers[what](reader, runs)


def run_row(run: RunSummary) -> Row:
    """A run as one flat row: fields, then best, last and their steps of each metric."""
    row: Row = {name: getattr(run, name) for name in RUN_FIELDS}
    row["tags"] = list(run.tags)
    row.update(run.columns)
    for key, line in run.metrics.items():
        row[f"best {key}"], row[f"best_step {key}"] = line.best, line.best_step
        row[f"last {key}"], row[f"last_step {key}"] = line.last, line.last_step
    return row


def run_rows(reader: StoreReader, runs: Sequence[RunSummary]) -> Iterator[Row]:
    """One row per run with all its metrics in a line and all its settings."""
    for run in runs:
        detail = reader.run(run.key)
        settings = {f"cfg.{path}": value for path, value in detail.settings.items()}
        yield run_row(detail.summary) | settings


def metric_rows(reader: StoreReader, runs: Sequence[RunSummary]) -> Iterator[Row]:
    """One row per finished step or evaluated step, one column per metric."""
    for run in runs:
        keys = reader.metric_keys(run.key)
        last = max((reader.last_metric_step(run.key), run.step))
        for before in range(-1, last, WINDOW):
            yield from _window(reader, run, keys, before, before + WINDOW)


def _window(
    reader: StoreReader, run: RunSummary, keys: Sequence[str], after: int, upto: int
) -> Iterator[Row]:
    """The rows of the steps beyond `after`, up to `upto`."""
    steps = {view.step: view for view in reader.steps(run.key, after=after, upto=upto)}
    values: dict[int, Row] = {step: {} for step in steps}
    for key in keys:
        series = reader.metric_series(run.key, key, after=after, upto=upto)
        for step, value in zip(series.steps, series.values, strict=True):
            values.setdefault(step, {})[key] = value
    for step in sorted(values):
        view = steps.get(step)
        yield {
            "run": run.id, "name": run.name, "step": step,
            "at": iso(view.at) if view else None, "elapsed": view.elapsed if view else None,
            "tokens": view.tokens if view else None,
            **{key: values[step].get(key) for key in keys},
        }  # fmt: skip


def groups_of(
    reader: StoreReader, run: RunSummary, step: int | None = None, origin: str | None = None
) -> Iterator[GroupView]:
    """The groups of a run with their rollouts, a page at a time."""
    after = 0
    while True:
        page = reader.groups(run.key, step, origin, after=after, limit=None if step else PAGE)
        yield from page
        if step is not None or len(page) < PAGE:
            return
        after = page[-1].key


def rollout_row(run: RunSummary, group: GroupView, rollout: RolloutView) -> Row:
    """A rollout as one flat row, with a column for each reward function."""
    return {
        "run": run.id, "step": group.step, "origin": group.origin, "group": group.index,
        "index": rollout.index, "example_key": group.example_key, "prompt": group.prompt_text,
        "completion": rollout.text, "target": group.target, "reward": rollout.reward,
        "advantage": rollout.advantage, "tokens": rollout.tokens, "finish": rollout.finish,
        "clip_fraction": rollout.clip_fraction, "kl": rollout.kl,
        "reward_mean": group.reward_mean, "reward_std": group.reward_std,
        "no_signal": group.no_signal, "rollout": rollout.key,
        **{f"reward/{item.name}": item.value for item in rollout.rewards},
    }  # fmt: skip


def rollout_rows(reader: StoreReader, runs: Sequence[RunSummary]) -> Iterator[Row]:
    """One row per completion."""
    for run in runs:
        for group in groups_of(reader, run):
            for rollout in group.rollouts:
                yield rollout_row(run, group, rollout)


def token_rows(reader: StoreReader, runs: Sequence[RunSummary]) -> Iterator[Row]:
    """One row per token."""
    for run in runs:
        for group in groups_of(reader, run):
            view = reader.tokens(run.key, group.key) if group.has_tokens else None
            if view is None:
                continue
            texts = {rollout.index: rollout.text for rollout in group.rollouts}
            worth = {rollout.index: rollout.advantage for rollout in group.rollouts}
            for row in view.rows:
                text = texts.get(row.index, "")
                starts = (0, *row.ends)
                for place, token in enumerate(row.ids):
                    yield {
                        "run": run.id, "step": group.step, "origin": group.origin,
                        "group": group.index, "index": row.index, "position": place, "id": token,
                        "text": text[starts[place] : row.ends[place]] if row.ends else None,
                        "sampler": _at(row.sampler, place), "old": _at(row.old, place),
                        "reference": _at(row.reference, place),
                        **{
                            f"pass_{number}": _at(values, place)
                            for number, values in enumerate(row.passes, start=1)
                        },
                        "after": _at(row.after, place), "entropy": _at(row.entropy, place),
                        "advantage": _at(row.advantages, place) if row.advantages
                        else worth.get(row.index),
                    }  # fmt: skip


def _at(values: Sequence[float], place: int) -> float | None:
    return values[place] if values else None


def evaluation_rows(reader: StoreReader, runs: Sequence[RunSummary]) -> Iterator[Row]:
    """One row per held-out problem of each evaluation."""
    for run in runs:
        for item in reader.evaluations(run.key, rows=True):
            for row in item.rows:
                yield {
                    "run": run.id, "name": run.name, "step": item.step, "moment": item.moment,
                    "mode": item.mode, "example_key": row.example_key, "correct": row.correct,
                    "samples": row.samples,
                    **{f"reward/{name}": value for name, value in row.rewards.items()},
                }  # fmt: skip


# -- files --------------------------------------------------------------------------------------


def header_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """All column names, in the order they first come."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    return list(names)


def header_for(what: str, reader: StoreReader, runs: Sequence[RunSummary]) -> list[str]:
    """The columns of an export: from what is known of each run, and its first rows."""
    if what == "metrics":
        return header_of([dict.fromkeys((*METRIC_FIELDS, *reader.metric_keys(run.key)))
                          for run in runs])  # fmt: skip
    names = header_of(
        chain.from_iterable(islice(rows_of(what, reader, [run]), PAGE) for run in runs)
    )
    if what != "tokens" or not names:
        return names
    # a step may have fewer passes than others, and evaluations have none
    passes = max((reader.most_passes(run.key) for run in runs), default=0)
    rest = [name for name in names if not name.startswith("pass_")]
    at = rest.index("after")
    return [*rest[:at], *(f"pass_{number}" for number in range(1, passes + 1)), *rest[at:]]


def write_rows(
    rows: Iterator[Row], format: str, out: Path | IO[str], *, raw: bool = False,
    header: Sequence[str] | None = None,
) -> int:  # fmt: skip
    """Write rows to a file or stream and count them.

    Columns are those of the first thousand rows, unless `header` says so; a later row with another
    column is an error and not a silent loss.
    """
    if format not in FORMATS:
        raise ExportError(f"there is no format {format!r}; choose from {', '.join(FORMATS)}")
    first = list(islice(rows, 1000))
    names = list(header or header_of(first))
    everything: Iterator[Row] = chain(first, rows)
    if format != "jsonl":
        everything = _checked(everything, set(names))
    if format == "parquet":
        return _write_parquet(everything, names, out)
    if isinstance(out, Path):
        with _whole(out) as part, part.open("w", encoding="utf-8", newline="") as stream:
            return _write_text(everything, names, format, stream, raw)
    return _write_text(everything, names, format, out, raw)


@contextmanager
def _whole(out: Path) -> Iterator[Path]:
    """A file beside `out` that takes its place once it is complete."""
    part = out.with_name(f"{out.name}.{os.getpid()}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        yield part
        part.replace(out)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise ExportError(f"cannot write {out}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _checked(rows: Iterable[Row], names: set[str]) -> Iterator[Row]:
    for row in rows:
        if not names.issuperset(row):
            extra = ", ".join(sorted(set(row) - names))
            raise ExportError(
                f"a later row has columns that the first ones lack ({extra}); "
                "export this run alone, or as jsonl"
            )
        yield row


def _write_text(rows: Iterator[Row], names: list[str], format: str, out: IO[str], raw: bool) -> int:
    if format == "csv":
        return write_csv(out, names, rows, raw=raw)
    count = 0
    if format == "jsonl":
        for row in rows:
            out.write(json_text(row) + "\n")
            count += 1
        return count
    out.write("| " + " | ".join(md_cell(name) for name in names) + " |\n")
    out.write("|" + " --- |" * len(names) + "\n")
    for row in rows:
        out.write("| " + " | ".join(md_cell(row.get(name)) for name in names) + " |\n")
        count += 1
    return count


def md_cell(value: Any) -> str:
    """A value as a cell of a Markdown table, on one line and harmless."""
    text = cell(value, raw=True).replace("\r\n", "\n")
    for mark, harmless in (
        ("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("\n", "<br>"), ("`", "\\`"), ("*", "\\*"),
        ("[", "\\["),
    ):  # fmt: skip
        text = text.replace(mark, harmless)
    return visible(text)


def _write_parquet(rows: Iterator[Row], names: list[str], out: Path | IO[str]) -> int:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ExportError(
            "parquet needs the optional package pyarrow: pip install 'grpo-tui[parquet]'"
        ) from error
    if not isinstance(out, Path):
        raise ExportError("parquet is binary: give a file with --out")
    count = 0
    with _whole(out) as part:
        writer = None
        try:
            while page := list(islice(rows, 10_000)):
                table = _arrow_table(pa, page, names, writer.schema if writer else None)
                writer = writer or pq.ParquetWriter(part, table.schema)
                writer.write_table(table)
                count += len(page)
            if writer is None:
                pq.write_table(
                    pa.table({escape(name): pa.array([], pa.string()) for name in names}), part
                )
        finally:
            if writer is not None:
                writer.close()
    return count


def _arrow_table(pa: Any, page: list[Row], names: list[str], schema: Any) -> Any:
    columns = {}
    for name in names:
        values = [_arrow_value(row.get(name)) for row in page]
        if schema is None and all(value is None for value in values):
            columns[name] = pa.array(values, _guess(pa, name))
        elif (
            schema is None
            and (kinds := {type(value) for value in values} - {type(None)})
            and (len(kinds) > 1)
        ):
            numeric = kinds == {int, float}
            columns[name] = (
                pa.array(values, pa.float64())
                if numeric
                else pa.array([None if value is None else json_text(value) for value in values])
            )
        else:
            columns[name] = pa.array(values, schema.field(escape(name)).type if schema else None)
    return pa.table({escape(name): values for name, values in columns.items()})


def _arrow_value(value: Any) -> Any:
    if isinstance(value, str):
        return escape(value)
    return json_text(plain(value)) if isinstance(value, list | tuple | Mapping) else value


def _guess(pa: Any, name: str) -> Any:
    """A column without any value yet: texts are known by name, the rest is numbers."""
    texts = ("at", "text", "note", "error", "parent", "sweep", "started_at", "ended_at", "target")
    return pa.string() if name in texts or name.startswith("cfg.") else pa.float64()


def csv_string(header: Sequence[str], rows: Iterable[Row], *, raw: bool = False) -> str:
    """Rows as CSV text."""
    out = io.StringIO(newline="")
    write_csv(out, header, rows, raw=raw)
    return out.getvalue()
