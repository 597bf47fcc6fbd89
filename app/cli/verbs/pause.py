"""`grpo-tui pause`: pause a run."""

import typer

from grpo_tui.app.cli.params import Db, Json, RunRef
from grpo_tui.app.cli.run_requests import send_request


def pause(run: RunRef, as_json: Json = False, db: Db = None) -> None:
    """Pause a run; it stays in memory until `continue`.

    Example: grpo-tui pause @last
    """
    raise typer.Exit(send_request(run, "pause", as_json=as_json, db=db))
