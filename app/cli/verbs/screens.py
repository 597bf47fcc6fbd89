"""Verbs that open the workbench on one run: `watch`, `replay`, `demo` and `tour`."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from grpo_tui.app.cli.params import Db, RunRef
from grpo_tui.app.cli.startup import require_terminal

if TYPE_CHECKING:
    from grpo_tui.app.feed.feed import Feed

Speed = Annotated[float, typer.Option(min=0.1, max=1000, help="Speed relative to the recording.")]
TOUR_SPEED = 2.0


def watch(
    run: RunRef = "@last",
    read_only: Annotated[
        bool, typer.Option("--read-only", help="View only: no control, no files, no new runs.")
    ] = False,
    db: Db = None,
) -> None:
    """Attach the live screen to a run: in the background, on another terminal, or long ended.

    Example: grpo-tui watch @last
    """
    from grpo_tui.app.feed.stored import StoreFeed

    store, uid = _stored(run, db)
    _open(store, lambda: StoreFeed(store, uid, may_control=not read_only), read_only=read_only)


def replay(run: RunRef = "@last", speed: Speed = 1.0, db: Db = None) -> None:
    """Play a recorded run again. Needs no MLX; `.` holds the replay.

    Example: grpo-tui replay @last --speed 4
    """
    from grpo_tui.app.feed.replay import ReplayFeed

    store, uid = _stored(run, db)
    _open(store, lambda: ReplayFeed(store, uid, speed=speed))


def demo(speed: Speed = 1.0) -> None:
    """Play the bundled recording of a starter run. All screens work on it; nothing is kept.

    Example: grpo-tui demo --speed 4
    """
    _play_recording(speed)


def tour() -> None:
    """Show the workbench in two minutes on the bundled recording: each sentence asks for one key.

    Example: grpo-tui tour
    """
    _play_recording(TOUR_SPEED, tour=True)


def _stored(run: str, db: Path | None) -> tuple[Path, str]:
    """The store, and the id of its run."""
    from grpo_tui.experiments.db.paths import store_path
    from grpo_tui.experiments.reader import StoreReader

    require_terminal()
    store = store_path(db)
    with closing(StoreReader(store)) as reader:
        return store, reader.resolve(run).uid


def _play_recording(speed: float, **options: Any) -> NoReturn:
    require_terminal()
    from grpo_engine.platform.scratch import scratch
    from grpo_tui.app.feed.demo import RUN, unpack
    from grpo_tui.app.feed.replay import ReplayFeed

    with scratch("demo") as folder:
        store = unpack(folder)
        _open(store, lambda: ReplayFeed(store, RUN, speed=speed), **options)


def _open(store: Path, feed: "Callable[[], Feed]", **options: Any) -> NoReturn:
    from grpo_tui.app.tui.app import open_workbench

    raise typer.Exit(open_workbench(store, feed=feed, mode="watch", **options))
