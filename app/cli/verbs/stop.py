"""`grpo-tui stop`: ask a run to save a checkpoint and stop."""

from typing import Annotated

import typer

from grpo_tui.app.cli.params import Db, Json, RunRef
from grpo_tui.app.cli.run_requests import send_request


def stop(
    run: RunRef,
    now: Annotated[bool, typer.Option("--now", help="Drop the current step.")] = False,
    as_json: Json = False,
    db: Db = None,
) -> None:
    """Ask a run to finish its step, save a checkpoint and stop.

    Exit status 1 where the run does not answer within 5 seconds.

    Example: grpo-tui stop @last
    """
    raise typer.Exit(
        send_request(run, "stop_now" if now else "stop_after_step", as_json=as_json, db=db)
    )
