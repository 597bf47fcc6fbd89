"""Verbs that ask a run in another process: `pause`, `continue` and `stop`."""

import time
from typing import Annotated

import typer

from grpo_tui.app import exit_codes
from grpo_tui.app.cli.output import print_json
from grpo_tui.app.cli.params import Json, RunRef
from grpo_tui.app.cli.store_access import reading, writing
from grpo_tui.app.text.stderr import print_stderr
from grpo_tui.experiments.errors import QueryError


def pause(run: RunRef, as_json: Json = False) -> None:
    """Pause a run; it stays in memory until `continue`.

    Example: grpo-tui pause @last
    """
    _send(run, "pause", as_json)


def continue_(run: RunRef, as_json: Json = False) -> None:
    """Let a paused run continue.

    Example: grpo-tui continue @last
    """
    _send(run, "continue", as_json)


def stop(
    run: RunRef,
    now: Annotated[bool, typer.Option("--now", help="Drop the current step.")] = False,
    as_json: Json = False,
) -> None:
    """Ask a run to finish its step, save a checkpoint and stop.

    Exit status 1 where the run does not answer within 5 seconds.

    Example: grpo-tui stop @last
    """
    _send(run, "stop_now" if now else "stop_after_step", as_json)


def _send(run: str, verb: str, as_json: bool) -> None:
    """Send the request and wait until it is taken, or until the reader gives up."""
    with reading() as reader:
        target = reader.resolve(run)
        if target.status in ("lost", "aborted"):
            raise QueryError(
                f"{target.name} is not running ({target.status}); "
                f"resume it with `grpo-tui resume {target.id}`"
            )
        if not target.active and target.status != "unknown":
            raise QueryError(f"{target.name} is already {target.status}")
        if (verb, target.status) == ("pause", "paused"):
            raise QueryError(f"{target.name} is already paused")
        with writing() as store:
            request = store.request(target.key, verb)
        while (view := reader.control(request)).state == "asked":
            time.sleep(0.1)
    if as_json:
        print_json(
            {"run": target.id, "request": request, "state": view.state, "message": view.message}
        )
    else:
        unpaused = verb == "continue" and target.status != "paused" and view.state == "taken"
        outcome = "it was not paused, and a pause that it was asked for is taken back"
        print_stderr(f"{target.name}: {outcome if unpaused else view.message}")
    if view.state != "taken":
        raise typer.Exit(exit_codes.FAILED)
