"""`grpo-tui serve`: the workbench, read-only, in a browser on this machine."""

from importlib.util import find_spec
from typing import Annotated

import typer

from grpo_tui.app.cli.params import Db, RunRef


def serve(
    run: RunRef = "@last",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on the loopback.")] = 8765,
    db: Db = None,
) -> None:
    """Show a run in a browser, read-only, at an address with a secret token.

    It listens on 127.0.0.1 alone. From another machine, use a tunnel:
    ssh -L 8765:127.0.0.1:8765 HOST, then open the printed address.

    Example: grpo-tui serve @last --port 8765
    """
    if lacking := [name for name in ("textual_serve", "aiohttp") if find_spec(name) is None]:
        typer.echo(f"grpo-tui: serving needs {lacking[0]}; pip install 'grpo-tui[serve]'", err=True)
        raise typer.Exit(1)
    from grpo_tui.app.server import serve_run

    raise typer.Exit(serve_run(run, db, port))
