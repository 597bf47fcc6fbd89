"""`grpo-tui resume`: resume a run from its last checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

from grpo_tui.app.cli.params import Db, Detach, JsonLines, OnEnd, ReadyFile, RunRef
from grpo_tui.app.cli.startup import leave_to_background


def resume(
    run: RunRef = "@last",
    steps: Annotated[
        int | None,
        typer.Option(
            help="Train up to this step, past the last one too. With a linear or cosine schedule "
            "the learning rate jumps to where it would be in a run of this length."
        ),
    ] = None,
    detach: Detach = False,
    as_json: JsonLines = False,
    on_end: OnEnd = "",
    db: Db = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of a run that was made with --no-store.")
    ] = None,
    ready_file: ReadyFile = None,
) -> None:
    """Resume a run from its last checkpoint, bit for bit as if it had not stopped.

    Example: grpo-tui resume @last --steps 200
    """
    if folder is not None and (run != "@last" or db is not None):
        raise typer.BadParameter("--folder names the run: leave RUN and --db out")
    if detach:
        leave_to_background(as_json=as_json)
    from grpo_tui.app.jobs.headless import run_headless
    from grpo_tui.app.jobs.start import resumed_job

    job = resumed_job(run, db=db, folder=folder, steps=steps)
    raise typer.Exit(run_headless(job, as_json=as_json, on_end=on_end, ready=ready_file))
