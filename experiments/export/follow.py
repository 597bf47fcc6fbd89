"""A tracker's own process: it reads a run from the store while it trains, as a viewer does.

    python -m grpo_tui.experiments.export.follow STORE RUN TRACKER FIRST_STEP

A step is logged when the next one has values or the run has ended: evaluations belong to it.
"""

import os
import signal
import sys
import time
from contextlib import closing
from pathlib import Path

from grpo_tui.experiments.db.paths import trackers_folder
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.export.trackers import TRACKERS, logged_steps
from grpo_tui.experiments.reader import StoreReader

POLL_S = 1.0


def follow(store: Path, ref: str, tracker: str, after: int) -> None:
    """Log the steps of a run beyond `after` until it has ended or its process is gone."""
    with closing(StoreReader(store)) as reader:
        run = reader.resolve(ref)
        with TRACKERS[tracker](reader, run, trackers_folder(store) / tracker, True) as add:
            while True:
                run = reader.resolve(ref)
                steps = list(logged_steps(reader, run, after))
                for step, at, values in steps[:-1] if run.active else steps:
                    add(step, at, values)
                    after = step
                if not run.active:
                    break
                time.sleep(POLL_S)


def main() -> None:
    """Follow the run of the command line; an error is one line for the run's log."""
    os.nice(10)
    for number in (signal.SIGINT, signal.SIGHUP):  # the run's, which decides when it ends
        signal.signal(number, signal.SIG_IGN)
    store, ref, tracker, after = sys.argv[1:]
    try:
        follow(Path(store), ref, tracker, int(after))
    except (StoreError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
