"""The process of a tracker: it reads a run from the store while it trains, as a viewer does.

    python -m grpo_tui.experiments.export.follow STORE RUN TRACKER FIRST_STEP

Its files are in a folder next to the store.
"""

import os
import signal
import sys
from pathlib import Path

from grpo_tui.experiments.db.paths import TRACKERS, inside_store
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.export.trackers import log_run
from grpo_tui.experiments.reader import StoreReader


def main() -> None:
    """Follow the run of the command line; an error is one line for the run's log."""
    os.nice(10)
    for number in (signal.SIGINT, signal.SIGHUP):  # meant for the run, which decides when to end
        signal.signal(number, signal.SIG_IGN)
    store, ref, tracker, after = sys.argv[1:]
    try:
        folder = inside_store(Path(store).parent, TRACKERS) / tracker
        with StoreReader(Path(store)) as reader:
            log_run(tracker, reader, reader.resolve(ref), folder, int(after), live=True)
    except (StoreError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
