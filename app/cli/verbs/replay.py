"""`grpo-tui replay`: play back a recorded run."""

from typing import Annotated

import typer

from app.cli.params import Holding, RunRef


def replay(
    run: RunRef = "@last",
    speed: Annotated[
        float, typer.Option(min=0.1, max=1000, help="Speed relative to the recording.")
    ] = 1.0,
    db: Holding = None,
) -> None:
    """Play a recorded run again. Needs no MLX; `.` holds the replay.

    Example: grpo-tui replay @last --speed 4
    """
    from contextlib import closing

    from app.cli.startup import require_terminal
    from app.feed.replay import ReplayFeed
    from app.tui.app import open_workbench
    from experiments.db.paths import store_path
    from experiments.reader import StoreReader

    require_terminal()
    store = store_path(db)
    with closing(StoreReader(store)) as reader:
        found = reader.resolve(run)
    raise typer.Exit(
        open_workbench(store, feed=lambda: ReplayFeed(store, found.uid, speed=speed), mode="watch")
    )
