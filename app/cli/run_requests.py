"""Send a request to a run in another process and report its outcome."""

import time

from grpo_tui.app import exit_codes
from grpo_tui.app.cli.output import print_json
from grpo_tui.app.cli.store_access import reading, writing
from grpo_tui.app.text.stderr import print_stderr

WAIT_S = 5.0


def send_request(
    run: str, verb: str, *, as_json: bool, db: str | None, wait: float = WAIT_S
) -> int:
    """Send the request, wait up to five seconds until it is taken, and return the exit status."""
    from grpo_tui.experiments.errors import QueryError

    with reading(db) as reader:
        target = reader.resolve(run)
    if target.status in ("lost", "aborted"):
        raise QueryError(
            f"{target.name} is not running ({target.status}); "
            f"resume it with `grpo-tui resume {target.id}`"
        )
    if not target.active and target.status != "unknown":
        raise QueryError(f"{target.name} is already {target.status}")
    with writing(db) as store:
        request = store.request(target.key, verb)
    with reading(db) as reader:
        view = reader.control(request)
        end = time.monotonic() + wait
        while view.state == "asked" and time.monotonic() < end:
            time.sleep(0.1)
            view = reader.control(request)
    if as_json:
        print_json({"run": target.id, "request": request, "state": view.state,
                    "message": view.message})  # fmt: skip
    else:
        print_stderr(f"{target.name}: {view.message}")
    return exit_codes.OK if view.state in ("taken", "done") else exit_codes.FAILED
