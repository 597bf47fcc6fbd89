"""Train an experiment, write docs/results.md of what was measured, or pack the runs.

python -m benchmarks.results starter     # trains what its store does not have yet
python -m benchmarks.results store       # docs/results.db.xz, of all experiments trained here
python -m benchmarks.results page        # docs/results.md and README's table, of docs/results.db.xz
"""

import argparse
from pathlib import Path

from benchmarks.results import page, store
from benchmarks.results.experiments import EXPERIMENTS
from benchmarks.results.training import FOLDER, Workspace, train


def main() -> None:
    """Do what the first word says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=[*EXPERIMENTS, "page", "store"])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="stores of what is trained")
    parser.add_argument("--threads", type=int, default=1, help="of each run")
    options = parser.parse_args()
    if options.name == "page":
        page.write()
        page.write_summary()
    elif options.name == "store":
        store.pack(options.folder)
    else:
        workspace = Workspace(options.folder.absolute() / options.name, options.threads)
        train(options.name, EXPERIMENTS[options.name], workspace)


if __name__ == "__main__":
    main()
