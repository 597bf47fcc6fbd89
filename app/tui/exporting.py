"""What `e` writes of a screen: tables, charts, answers and pages, each to a new file.

Everything is read and written on a thread of its own, with a reader of its own: drawing a figure or
a page takes seconds. What only that needs is imported there.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_engine.frozen import frozen

if TYPE_CHECKING:
    from grpo_tui.app.charts.figure import Curves
    from grpo_tui.experiments.export.rows import Row
    from grpo_tui.experiments.values import RunSummary

LONGEST = 60  # characters of a name that a file's name begins with


@frozen
class Export:
    """Something on a screen that can be written: its key, name and description, and the file."""

    key: str
    name: str
    description: str
    file: str
    write: Callable[[Path], object]


def written(export: Export) -> Path:
    """Write to a new file in the folder that the program was started in; return its path."""
    from grpo_tui.experiments.export.files import replacing

    path = _reserve(export.file)
    try:
        with replacing(path) as part:
            export.write(part)
    except BaseException:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise
    return path


def _reserve(name: str) -> Path:
    """Make an empty file of this name, with a number in it if there is one already."""
    from grpo_tui.experiments.export.files import writing

    with writing(Path(name)):
        folder, plain = Path.cwd(), Path(name)
    for number in count(1):
        path = folder / (plain.stem + f"-{number}" * (number > 1) + plain.suffix)
        with writing(path):
            try:
                path.touch(exist_ok=False)
            except FileExistsError:
                continue
        return path
    raise AssertionError


def file_stem(name: str) -> str:
    """A name as the beginning of a file's name."""
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in name[:LONGEST])
    return plain.strip("-.") or "run"


def table_export(
    name: str, description: str, stem: str, rows: "Callable[[], Iterable[Row]]"
) -> Export:
    """A table as CSV."""

    def write(out: Path) -> None:
        from grpo_tui.experiments.export.csv import header_of
        from grpo_tui.experiments.export.files import write_rows

        read = list(rows())
        write_rows(iter(read), "csv", out, header=header_of(read))

    return Export(key="t", name=name, description=description, file=f"{stem}.csv", write=write)


def chart_exports(
    name: str, stem: str, curves: Callable[[], "Curves"], axis: str, log: Collection[str]
) -> Iterator[Export]:
    """A chart as a figure, and its numbers."""

    def draw(out: Path) -> None:
        from grpo_tui.app.charts.figure import save

        save(curves(), out, "svg", axis, log)

    def tabulate(out: Path) -> None:
        from grpo_tui.app.charts.figure import header, rows
        from grpo_tui.experiments.export.files import write_rows

        write_rows(rows(curves(), axis), "csv", out, header=header(axis))

    description = f"{name}: a figure, as SVG"
    yield Export(key="c", name="chart", description=description, file=f"{stem}.svg", write=draw)
    description = f"{name}: recorded and smoothed values, intervals, as CSV"
    yield Export(
        key="n", name="numbers", description=description, file=f"{stem}.csv", write=tabulate
    )


def page_export(store: Path, runs: "Sequence[RunSummary | Any]", description: str) -> Export:
    """Runs, which have an id and a name, as one page for browsers."""
    ids = [run.id for run in runs]

    def write(out: Path) -> None:
        from grpo_tui.app.page.answers import Choice
        from grpo_tui.app.page.write import page
        from grpo_tui.experiments.reader import StoreReader

        with StoreReader(store) as reader:
            text = page(reader, [reader.resolve(id) for id in ids], Choice())
        out.write_text(text, encoding="utf-8")

    stem = file_stem("-".join(run.name or run.id for run in runs))
    return Export(key="p", name="page", description=description, file=f"{stem}.html", write=write)
