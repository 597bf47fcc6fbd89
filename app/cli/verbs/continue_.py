"""`grpo-tui continue`: ask a held run to go on."""

import typer

from app.cli.run_requests import ask
from app.cli.store_access import Db, Json, RunRef


def continue_(run: RunRef, as_json: Json = False, db: Db = None) -> None:
    """Ask a held run to go on.

    Example: grpo-tui continue @last
    """
    raise typer.Exit(ask(run, "continue", as_json=as_json, db=db))
