"""`grpo-tui logs`: print a run's log."""

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from grpo_tui.app.cli.output import print_json, tell
from grpo_tui.app.cli.params import Db, Json, RunRef
from grpo_tui.app.cli.store_access import reading
from grpo_tui.app.text.stderr import say

if TYPE_CHECKING:
    from pathlib import Path

    from grpo_tui.experiments.reader import StoreReader


def logs(
    run: RunRef,
    lines: Annotated[int, typer.Option("--lines", "-n", help="Last lines.", min=1)] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines.")
    ] = False,
    as_json: Json = False,
    db: Db = None,
) -> None:
    """Print the last lines of a run's log; without a log, the notes and alerts it recorded.

    Example: grpo-tui logs @last --follow
    """
    if as_json and follow:
        raise typer.BadParameter("--json prints what is there now: leave --follow out")
    from grpo_tui.experiments.db.paths import log_file, run_folder
    from grpo_tui.experiments.post_mortem import log_lines, tail

    with reading(db) as reader:
        found = reader.resolve(run)
        path = log_file(run_folder(reader.path, found.id))
        end = path.stat().st_size if path.exists() else 0
        shown = tail(path, lines, end) or log_lines(reader, found.key, lines)
        if as_json:
            print_json(list(shown))
            return
        for line in shown:
            tell(line)
        if not shown:
            say(f"{found.name} has no log output")
        if follow:
            _follow(reader, found.id, path, end)


def _follow(reader: "StoreReader", run: str, path: "Path", place: int) -> None:
    """Print what follows `place` in the log, line by line, until the run has ended."""
    rest = b""
    active = True
    while active:
        # check before reading the log: nothing is written after the end
        active = reader.resolve(run).active
        with suppress(FileNotFoundError), path.open("rb") as log:
            log.seek(place)
            *whole, rest = (rest + log.read()).split(b"\n")
            place = log.tell()
            for line in whole:
                tell(line.decode("utf-8", "replace"))
        sys.stdout.flush()
        if active:
            time.sleep(0.5)
    if rest:
        tell(rest.decode("utf-8", "replace"))
