"""`grpo-tui resume`: resume a run from its last checkpoint."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from app.cli.params import RunRef


def resume(
    run: RunRef = "@last",
    steps: Annotated[
        int | None,
        typer.Option(
            help="Train up to this step, past the last one too. With a linear or cosine schedule "
            "the learning rate jumps to where it would be in a run of this length."
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Run in the background and print the run's name.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print every event as one JSON object a line.")
    ] = False,
    on_end: Annotated[
        str, typer.Option(metavar="CMD", help="Run a shell command when the run has ended.")
    ] = "",
    db: Annotated[Path | None, typer.Option(help="Store that holds the run.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of a run that was made with --no-store.")
    ] = None,
    ready_file: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Resume a run from its last checkpoint, bit for bit as if it had not stopped.

    Example: grpo-tui resume @last --steps 200
    """
    if detach:
        from app.jobs.detach import start_detached

        arguments = [word for word in sys.argv[1:] if word != "--detach"]
        raise typer.Exit(start_detached(arguments, as_json=as_json))
    from app.jobs.headless import run_headless
    from app.jobs.start import resumed_job

    job = resumed_job(run, db=db, folder=folder, steps=steps)
    raise typer.Exit(run_headless(job, as_json=as_json, on_end=on_end, ready=ready_file))
