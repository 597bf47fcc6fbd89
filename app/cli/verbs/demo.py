"""`grpo-tui demo`: play the recorded run that is part of the program; needs no MLX."""

from typing import Annotated

import typer


def demo(
    speed: Annotated[
        float, typer.Option(min=0.1, max=1000, help="Speed relative to the recording.")
    ] = 1.0,
) -> None:
    """Play the bundled recording of a starter run. All screens work on it; nothing is kept.

    Example: grpo-tui demo --speed 4
    """
    import tempfile
    from pathlib import Path

    from grpo_tui.app.feed.demo import RUN, unpack
    from grpo_tui.app.feed.replay import ReplayFeed
    from grpo_tui.app.tui.app import open_workbench

    with tempfile.TemporaryDirectory(prefix="grpo-tui-demo-") as folder:
        store = unpack(Path(folder))
        raise typer.Exit(
            open_workbench(store, feed=lambda: ReplayFeed(store, RUN, speed=speed), mode="watch")
        )
