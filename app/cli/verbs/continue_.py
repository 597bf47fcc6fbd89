"""`grpo-tui continue`: let a paused run continue."""

import typer

from grpo_tui.app.cli.params import Db, Json, RunRef
from grpo_tui.app.cli.run_requests import send_request


def continue_(run: RunRef, as_json: Json = False, db: Db = None) -> None:
    """Let a paused run continue.

    Example: grpo-tui continue @last
    """
    raise typer.Exit(send_request(run, "continue", as_json=as_json, db=db))
