"""`grpo-tui export`: write runs, metrics, rollouts, turns, tokens or evaluations to a file."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from grpo_tui.app.cli.output import data_stdout
from grpo_tui.app.cli.params import Runs
from grpo_tui.app.cli.store_access import reading, resolve_all
from grpo_tui.app.text.stderr import print_stderr
from grpo_tui.app.text.words import count_of

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader
    from grpo_tui.experiments.values import RunSummary

What = Literal["runs", "metrics", "rollouts", "turns", "tokens", "evaluations"]
Format = Literal["csv", "jsonl", "tensorboard", "wandb", "trackio"]
ENDINGS: dict[str, Format] = {".csv": "csv", ".jsonl": "jsonl", "": "csv"}


def export(
    runs: Runs,
    what: Annotated[What, typer.Option(help="The table to write.")] = "metrics",
    format: Annotated[Format | None, typer.Option(help="Default: the file's, else csv.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="File, folder or -; the extension may set the format.")
    ] = None,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Leave texts in CSV as they are, but on a terminal."),
    ] = False,
) -> None:
    """Write stored tables to a file, or to stdout without --out.

    tensorboard, wandb and trackio write a folder of metrics; trackio's has all answers as well.

    Example: grpo-tui export @last --what rollouts --out rollouts.jsonl
    """
    from grpo_engine.platform.priority import set_priority
    from grpo_tui.experiments.export.files import header_for, write_rows
    from grpo_tui.experiments.export.rows import rows_of

    out = None if out == Path("-") else out
    set_priority("utility", 5)  # A run that is recorded goes first.
    ending = out.suffix.lower() if out else ""
    if format is None and ending not in ENDINGS:
        listed = ", ".join(filter(None, ENDINGS))
        raise typer.BadParameter(
            f"--out {out}: unknown extension {ending} ({listed}); use --format"
        )
    format = format or ENDINGS[ending]
    if raw and format != "csv":
        raise typer.BadParameter(f"--raw changes CSV, and {format} is written as it is")
    with reading() as reader:
        selected = resolve_all(reader, runs)
        if format == "tensorboard" or format == "wandb" or format == "trackio":
            print_stderr(_write_folder(format, what, reader, selected, out))
            return
        rows = rows_of(what, reader, selected)
        header = header_for(what, reader, selected) if format != "jsonl" else ()
        on_terminal = out is None and sys.stdout.isatty()
        target = out or data_stdout()
        count = write_rows(rows, format, target, raw=raw and not on_terminal, header=header)
    print_stderr(count_of(count, "row") + (f" in {out}" if out else ""))


def _write_folder(
    format: Literal["tensorboard", "wandb", "trackio"],
    what: What,
    reader: "StoreReader",
    runs: "Sequence[RunSummary]",
    out: Path | None,
) -> str:
    """Write a tracker's folder and say what is in it."""
    from grpo_tui.experiments.export.trackers import export_to
    from grpo_tui.experiments.export.trackio import export_trackio

    if what != "metrics":
        taken = "metrics and all answers" if format == "trackio" else "metrics only"
        raise typer.BadParameter(
            f"{format} takes {taken}: leave --what {what} out, or choose csv or jsonl"
        )
    if out is None:
        raise typer.BadParameter(f"{format} writes a folder: give it with --out")
    if format == "trackio":
        values, answers = export_trackio(reader, runs, out)
        return f"wrote {count_of(values, 'value')} and {count_of(answers, 'answer')} to {out}"
    return f"wrote {count_of(export_to(format, reader, runs, out), 'value')} to {out}"
