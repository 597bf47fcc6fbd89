"""`grpo-tui watch`: the live screen for any run in the store."""

from typing import Annotated

import typer

from grpo_tui.app.cli.params import Holding, RunRef


def watch(
    run: RunRef = "@last",
    read_only: Annotated[
        bool, typer.Option("--read-only", help="View only: no control, no export, no new runs.")
    ] = False,
    db: Holding = None,
) -> None:
    """Attach the live screen to a run: in the background, on another terminal, or long ended.

    Example: grpo-tui watch @last
    """
    from contextlib import closing

    from grpo_tui.app.cli.startup import require_terminal
    from grpo_tui.app.feed.stored import StoreFeed
    from grpo_tui.app.tui.app import open_workbench
    from grpo_tui.experiments.db.paths import store_path
    from grpo_tui.experiments.reader import StoreReader

    require_terminal()
    store = store_path(db)
    with closing(StoreReader(store)) as reader:
        target = reader.resolve(run)
    raise typer.Exit(
        open_workbench(
            store,
            feed=lambda: StoreFeed(store, target.uid, may_control=not read_only),
            mode="watch",
            read_only=read_only,
        )
    )
