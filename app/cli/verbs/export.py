"""`grpo-tui export`: write a table of runs to a file, or all of them as a bundle."""

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
from grpo_tui.experiments.errors import QueryError

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
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="BUNDLE.zip", help="All that is stored of the runs, for `runs import`."
        ),
    ] = None,
    with_adapter: Annotated[
        bool, typer.Option("--with-adapter", help="In a bundle: the trained LoRA weights as well.")
    ] = False,
    with_code: Annotated[
        bool,
        typer.Option(
            "--with-code", help="In a bundle: the functions and the uncommitted difference as well."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask about the code.")] = False,
) -> None:
    """Write stored tables to a file, or to stdout without --out; or with --to a bundle.

    tensorboard, wandb and trackio write a folder of metrics; trackio's has all answers as well.
    A bundle has runs with their answers, page, settings and versions, and neither host, user nor
    home folder.

    Example: grpo-tui export @last --what rollouts --out rollouts.jsonl
    """
    from grpo_engine.platform.priority import set_priority

    set_priority("utility", 5)  # A run that is recorded goes first.
    if to is None:
        if with_adapter or with_code or yes:
            raise typer.BadParameter("--with-adapter, --with-code and --yes need --to BUNDLE.zip")
        _write_table(runs, what, format, None if out == Path("-") else out, raw=raw)
    elif out is not None or format is not None or raw or what != "metrics":
        raise typer.BadParameter("--to writes all of it: leave --out, --what and --format out")
    elif to.suffix.lower() != ".zip":
        raise typer.BadParameter(f"--to {to}: a bundle is a .zip file")
    else:
        _write_bundle(runs, to, with_adapter=with_adapter, with_code=with_code, yes=yes)


def _write_table(
    runs: Runs, what: What, format: Format | None, out: Path | None, *, raw: bool
) -> None:
    """Write a table in a format, which the file's extension may set."""
    from grpo_tui.experiments.export.files import header_for, write_rows
    from grpo_tui.experiments.export.rows import rows_of

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


def _write_bundle(runs: Runs, out: Path, *, with_adapter: bool, with_code: bool, yes: bool) -> None:
    """Write a bundle, after a yes to the code in it."""
    from grpo_tui.app.bundle.write import code_of_runs, write_bundle

    with reading() as reader:
        selected = resolve_all(reader, runs)
        code = code_of_runs(reader, selected) if with_code else {}
        for run in selected if with_code else ():
            for name, content in code[run.key].files.items():
                print_stderr(f"{run.name}: {name}, {len(content):,} bytes")
            for reason in code[run.key].left_out:
                print_stderr(f"{run.name}: {reason}, and is left out")
        if any(item.files for item in code.values()) and not yes:
            if not sys.stdin.isatty():
                raise QueryError("code may hold secrets: look at these files, then add --yes")
            typer.confirm("Write these files into the bundle?", err=True, abort=True)
        write_bundle(reader, selected, out, code, with_adapter=with_adapter)
    print_stderr(f"wrote {out}, {out.stat().st_size / 1e6:.1f} MB")


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
