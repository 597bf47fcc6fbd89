"""Verbs that open the workbench on one run: `watch`, `replay`, `demo` and `tour`."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from grpo_tui.app.cli.params import RunRef
from grpo_tui.app.cli.startup import require_terminal
from grpo_tui.app.cli.store_access import reading
from grpo_tui.app.feed.feed import Feed
from grpo_tui.app.feed.replay import ReplayFeed
from grpo_tui.app.feed.stored import StoreFeed

Speed = Annotated[float, typer.Option(min=0.1, max=1000, help="Speed relative to the recording.")]
TOUR_SPEED = 2.0


def watch(
    run: RunRef = "@last",
    read_only: Annotated[
        bool, typer.Option("--read-only", help="View only: no control, no files, no new runs.")
    ] = False,
) -> None:
    """Attach the live screen to a run: in the background, on another terminal, or long ended.

    Example: grpo-tui watch @last
    """
    store, uid = _stored(run)
    _open(store, lambda: StoreFeed(store, uid, may_control=not read_only), read_only=read_only)


def replay(run: RunRef = "@last", speed: Speed = 1.0) -> None:
    """Play a recorded run again. Needs no MLX; `.` holds the replay.

    Example: grpo-tui replay @last --speed 4
    """
    store, uid = _stored(run)
    _open(store, lambda: ReplayFeed(store, uid, speed=speed))


def demo(speed: Speed = 1.0) -> None:
    """Play the bundled recording of a starter run. All screens work on it; nothing is kept.

    Example: grpo-tui demo --speed 4
    """
    _play_recording(speed, tour=False)


def tour() -> None:
    """Show the workbench in two minutes on the bundled recording: each sentence asks for one key.

    Example: grpo-tui tour
    """
    _play_recording(TOUR_SPEED, tour=True)


def _stored(run: str) -> tuple[Path, str]:
    """The store, and the id of its run."""
    require_terminal()
    with reading() as reader:
        return reader.path, reader.resolve(run).uid


def _play_recording(speed: float, *, tour: bool) -> NoReturn:
    require_terminal()
    from grpo_engine.platform.scratch import scratch
    from grpo_tui.app.feed.demo import RUN, unpack

    with scratch("demo") as folder:
        store = unpack(folder)
        _open(store, lambda: ReplayFeed(store, RUN, speed=speed), tour=tour)


def _open(store: Path, feed: Callable[[], Feed], **options: Any) -> NoReturn:
    from grpo_tui.app.tui.app import open_workbench

    raise typer.Exit(open_workbench(store, feed=feed, mode="watch", **options))
