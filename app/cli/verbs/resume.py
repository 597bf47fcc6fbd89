"""`grpo-tui resume`: resume a run from its last checkpoint."""

from typing import Annotated

import typer

from grpo_tui.app.cli.params import Db, Detach, JsonLines, ReadyFile, complete_runs
from grpo_tui.app.cli.startup import leave_to_background


def resume(
    run: Annotated[
        str,
        typer.Argument(
            help="Id, unique prefix, name, @last, or the ./folder of a run that is not stored.",
            autocompletion=complete_runs,
        ),
    ] = "@last",
    steps: Annotated[
        int | None,
        typer.Option(
            help="Train up to this step, past the last one too. With a linear or cosine schedule "
            "the learning rate jumps to where it would be in a run of this length."
        ),
    ] = None,
    detach: Detach = False,
    as_json: JsonLines = False,
    db: Db = None,
    ready_file: ReadyFile = None,
) -> None:
    """Resume a run from its last checkpoint, bit for bit as if it had not stopped.

    Example: grpo-tui resume @last --steps 200
    """
    if detach:
        leave_to_background(as_json=as_json)
    from grpo_tui.app.jobs.headless import run_headless
    from grpo_tui.app.jobs.start import resumed_job

    job = resumed_job(run, db=db, steps=steps)
    raise typer.Exit(run_headless(job, as_json=as_json, ready=ready_file))
