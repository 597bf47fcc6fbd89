"""`grpo-tui logs`: print a run's log."""

import time
from typing import Annotated

import typer

from app.output import print_json, tell
from app.store_access import Db, Json, RunRef, reading, say


def logs(
    run: RunRef,
    lines: Annotated[int, typer.Option("--lines", "-n", help="Last lines.", min=1)] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it grows.")] = False,
    as_json: Json = False,
    db: Db = None,
) -> None:
    """Print the last lines of a run's log; without a log, the notes and alerts it recorded.

    Example: grpo-tui logs @last --follow
    """
    from experiments.paths import log_file, run_folder
    from experiments.post_mortem import tail

    with reading(db) as reader:
        found = reader.resolve(run)
        path = log_file(run_folder(reader.path, found.id))
        shown = tail(path, lines) or reader.log_lines(found.key, lines)
        if as_json:
            print_json(list(shown))
            return
        for line in shown:
            tell(line)
        if not shown:
            say(f"{found.name} has logged nothing")
        if not follow:
            return
        with path.open(encoding="utf-8", errors="replace") as log:
            log.seek(0, 2)
            while True:
                line = log.readline()
                if line:
                    tell(line.rstrip("\n"))
                elif not reader.resolve(found.id).active:
                    return
                else:
                    time.sleep(0.5)
