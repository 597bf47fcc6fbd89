"""`grpo-tui tour`: nine sentences on the bundled recording; needs no MLX."""

import typer

SPEED = 2.0


def tour() -> None:
    """Show the workbench in two minutes on the bundled recording: each sentence asks for one key.

    Example: grpo-tui tour
    """
    import tempfile
    from pathlib import Path

    from grpo_tui.app.feed.demo import RUN, unpack
    from grpo_tui.app.feed.replay import ReplayFeed
    from grpo_tui.app.tui.app import open_workbench

    with tempfile.TemporaryDirectory(prefix="grpo-tui-tour-") as folder:
        store = unpack(Path(folder))
        raise typer.Exit(
            open_workbench(store, feed=lambda: ReplayFeed(store, RUN, speed=SPEED), mode="watch",
                           tour=True)
        )  # fmt: skip
