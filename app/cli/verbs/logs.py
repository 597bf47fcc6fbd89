"""`grpo-tui logs`: print a run's log."""

import sys
import time
from codecs import getincrementaldecoder
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo_tui.app.cli.output import print_json, print_text
from grpo_tui.app.cli.params import Json, RunOrFolder
from grpo_tui.app.cli.store_access import reading
from grpo_tui.app.text.stderr import print_stderr
from grpo_tui.experiments.db.paths import log_file, run_folder

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader


def logs(
    run: RunOrFolder,
    lines: Annotated[int, typer.Option("--lines", "-n", help="Last lines.", min=1)] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the last lines of a run's log; without a log, the notes and alerts it recorded.

    Example: grpo-tui logs @last --follow
    """
    from grpo_tui.experiments.post_mortem import log_lines, tail

    if as_json and follow:
        raise typer.BadParameter("--json prints what is there now: leave --follow out")
    unstored = "/" in run and Path(run).is_dir()
    with nullcontext() if unstored else reading() as reader:
        record = reader and reader.resolve(run)
        path = log_file(run_folder(reader.path, record.id) if reader and record else Path(run))
        end = path.stat().st_size if path.exists() else 0
        tail_lines = tail(path, lines, end)
        if reader and record and not tail_lines:
            tail_lines = log_lines(reader, record.key, lines)
        if as_json:
            print_json(list(tail_lines))
            return
        if tail_lines:
            print_text("\n".join(tail_lines))
        else:
            print_stderr(f"{record.name if record else run} has no log output")
        if follow:
            _follow(reader, record.id if record else run, path, end)


def _follow(reader: "StoreReader | None", run: str, path: Path, offset: int) -> None:
    """Print what follows `offset` in the log until the run has ended; without a store, for ever."""
    active, decoder = True, getincrementaldecoder("utf-8")("replace")
    while active:
        # Checked before the log is read: nothing is written after the end.
        active = reader is None or reader.resolve(run).active
        if path.is_file():
            with path.open("rb") as log:
                log.seek(offset)
                print_text(decoder.decode(log.read(), final=not active), end="")
                offset = log.tell()
        sys.stdout.flush()
        if active:
            time.sleep(0.5)
