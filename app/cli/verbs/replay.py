"""`grpo-tui replay`: play back a recorded run."""

from typing import Annotated

import typer

from grpo_tui.app.cli.params import Holding, RunRef


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

    from grpo_tui.app.cli.startup import require_terminal
    from grpo_tui.app.feed.replay import ReplayFeed
    from grpo_tui.app.tui.app import open_workbench
    from grpo_tui.experiments.db.paths import store_path
    from grpo_tui.experiments.reader import StoreReader

    require_terminal()
    store = store_path(db)
    with closing(StoreReader(store)) as reader:
        target = reader.resolve(run)
    raise typer.Exit(
        open_workbench(store, feed=lambda: ReplayFeed(store, target.uid, speed=speed), mode="watch")
    )
