"""`grpo-tui export`: write a table of runs, their answers as data, or all of them as a bundle."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from grpo_tui.app.cli.output import data_stdout
from grpo_tui.app.cli.params import GroupIndex, Origin, Runs, Trust
from grpo_tui.app.cli.store_access import reading, resolve_all
from grpo_tui.app.text.stderr import print_stderr
from grpo_tui.app.text.words import count_of
from grpo_tui.experiments.errors import QueryError

if TYPE_CHECKING:
    from grpo_tui.app.datasets.rows import Choice, DataFormat
    from grpo_tui.experiments.reader import StoreReader
    from grpo_tui.experiments.values import RunSummary

What = Literal["runs", "metrics", "rollouts", "turns", "tokens", "evaluations"]
Format = Literal["csv", "jsonl", "tensorboard", "wandb", "trackio", "sft", "preferences"]
ENDINGS: dict[str, Format] = {".csv": "csv", ".jsonl": "jsonl", "": "csv"}

# The options of a bundle, and those of data for the next training.
Bundle = Annotated[
    Path | None,
    typer.Option(metavar="BUNDLE.zip", help="All that is stored of the runs, for `runs import`."),
]
WithAdapter = Annotated[
    bool, typer.Option("--with-adapter", help="In a bundle: the trained LoRA weights as well.")
]
WithCode = Annotated[
    bool,
    typer.Option(
        "--with-code", help="In a bundle: the functions and the uncommitted difference as well."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask about the code.")]
Step = Annotated[int | None, typer.Option(help="Answers of this step alone.")]
Search = Annotated[str, typer.Option(help="Answers with this text, or to prompts with it.")]
Best = Annotated[int, typer.Option(help="Answers or pairs of each prompt.", min=1)]
RightOnly = Annotated[
    bool | None,
    typer.Option("--right/--any", help="Only right answers, or also wrong ones, as good ones."),
]
MinReward = Annotated[float | None, typer.Option(help="The least reward of a good answer.")]
MinMargin = Annotated[float, typer.Option(help="The least margin of a pair.", min=0)]
Out = Annotated[
    Path | None, typer.Option(help="File, folder or -; the extension may set the format.")
]
Raw = Annotated[
    bool, typer.Option("--raw", help="Leave texts in CSV as they are, but on a terminal.")
]
Limit = Annotated[int, typer.Option(help="Rows of data at most; 0 for all.", min=0)]


def export(
    runs: Runs,
    what: Annotated[What, typer.Option(help="The table to write.")] = "metrics",
    format: Annotated[Format | None, typer.Option(help="Default: the file's, else csv.")] = None,
    out: Out = None,
    raw: Raw = False,
    to: Bundle = None,
    with_adapter: WithAdapter = False,
    with_code: WithCode = False,
    yes: Yes = False,
    step: Step = None,
    group: GroupIndex = None,
    origin: Origin = None,
    search: Search = "",
    best: Best = 1,
    right: RightOnly = None,
    min_reward: MinReward = None,
    min_margin: MinMargin = 0.0,
    limit: Limit = 0,
    _trust: Trust = False,
) -> None:
    """Write stored tables to a file, or to stdout without --out; or with --to a bundle.

    sft and preferences write answers as data for the next training: the best ones of each prompt
    as chat messages, or pairs of a better and a worse one, as TRL and mlx-lm read them.
    tensorboard, wandb and trackio write a folder of metrics; trackio's has all answers as well. A
    bundle has runs with their answers, page, settings and versions, and neither host, user nor
    home folder.

    Example: grpo-tui export @last --format sft --out best.jsonl
    """
    from grpo_engine.platform.priority import set_priority
    from grpo_tui.app.datasets.rows import Choice

    set_priority("utility", 5)  # A run that is recorded goes first.
    out = None if out == Path("-") else out
    columns = {"step": step, "idx": group, "origin": origin}
    choice = Choice(
        columns={name: value for name, value in columns.items() if value is not None},
        search=search,
        best=best,
        right=right,
        min_reward=min_reward,
        min_margin=min_margin,
        limit=limit,
    )
    if format == "sft" or format == "preferences":
        if to or with_adapter or with_code or yes or raw or what != "metrics":
            raise typer.BadParameter(f"--format {format} goes with --out and filters of answers")
        _write_data(runs, format, out, choice)
    elif choice != Choice():
        raise typer.BadParameter("filters of answers need --format sft or preferences")
    elif to is None:
        if with_adapter or with_code or yes:
            raise typer.BadParameter("--with-adapter, --with-code and --yes need --to BUNDLE.zip")
        _write_table(runs, what, format, out, raw=raw)
    elif out is not None or format is not None or raw or what != "metrics":
        raise typer.BadParameter("--to writes all of it: leave --out, --what and --format out")
    else:
        _write_bundle(runs, to, with_adapter=with_adapter, with_code=with_code, yes=yes)


def _write_data(runs: Runs, format: "DataFormat", out: Path | None, choice: "Choice") -> None:
    """Write answers as data for the next training, and say which are in it."""
    from grpo_tui.app.datasets.rows import DataRows
    from grpo_tui.experiments.export.files import write_rows

    if out is not None and out.suffix.lower() not in (".jsonl", ".json", ""):
        raise typer.BadParameter(f"--out {out}: {format} is written as JSON lines, such as .jsonl")
    with reading() as reader:
        rows = DataRows(reader, resolve_all(reader, runs), format, choice)
        count = write_rows(iter(rows), "jsonl", out or data_stdout())
    print_stderr(rows.summary(count) + (f"\nwrote {out}" if out else ""))


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
    if out.suffix.lower() != ".zip":
        raise typer.BadParameter(f"--to {out}: a bundle is a .zip file")
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
