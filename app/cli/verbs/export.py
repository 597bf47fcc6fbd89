"""`grpo-tui export`: write runs, metrics, rollouts, turns, tokens or evaluations to a file."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from grpo_tui.app.cli.output import data_stdout
from grpo_tui.app.cli.params import Runs
from grpo_tui.app.cli.store_access import reading, resolve_all
from grpo_tui.app.text.stderr import print_stderr
from grpo_tui.app.text.words import count_of

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

    tensorboard writes event files; wandb and trackio write their offline folders.

    Example: grpo-tui export @last --what rollouts --out rollouts.jsonl
    """
    from grpo_engine.platform.priority import set_priority
    from grpo_tui.experiments.export.files import header_for, write_rows
    from grpo_tui.experiments.export.rows import rows_of
    from grpo_tui.experiments.export.trackers import TRACKERS, export_to

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
    if format in TRACKERS and what != "metrics":
        raise typer.BadParameter(
            f"{format} takes metrics only: leave --what {what} out, or choose csv or jsonl"
        )
    with reading() as reader:
        selected = resolve_all(reader, runs)
        if format in TRACKERS:
            if out is None:
                raise typer.BadParameter(f"{format} writes a folder: give it with --out")
            count = export_to(format, reader, selected, out)
            print_stderr(f"wrote {count} values to {out}")
            return
        rows = rows_of(what, reader, selected)
        header = header_for(what, reader, selected) if format != "jsonl" else ()
        on_terminal = out is None and sys.stdout.isatty()
        target = out or data_stdout()
        count = write_rows(rows, format, target, raw=raw and not on_terminal, header=header)
    print_stderr(count_of(count, "row") + (f" in {out}" if out else ""))
