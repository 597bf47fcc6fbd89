"""Writes docs/results.md of the runs in docs/results.db.xz: no number on it is written by hand."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.results import starter, store
from benchmarks.results.experiment import Experiment
from benchmarks.results.experiments import EXPERIMENTS
from benchmarks.results.measured import Measured
from benchmarks.results.training import ROOT
from grpo_tui.experiments.reader import StoreReader

PAGE = ROOT / "docs" / "results.md"
TOP = """\
# Results

What was trained, by commands that train it again. `python -m benchmarks.results page` writes this
page of the runs in [results.db.xz](results.db.xz), which opens in the workbench:

    grpo-tui runs import docs/results.db.xz

± is half of a 95 % interval of the mean over seeds. Differences are in points, tested on the same
held-out problems as on [Compare](comparing.md); the intervals in brackets hold for a whole table at
once. Processor seconds are those of a run's training steps. Other programs ran on the machine.
"""
README = ROOT / "README.md"
# Around what is written into README.
BEGIN = "<!-- written by python -m benchmarks.results page -->"
END = "<!-- end -->"
PACKAGES = ("mlx", "mlx-lm")


def write(
    file: Path = store.FILE,
    page: Path = PAGE,
    experiments: Mapping[str, Experiment] = EXPERIMENTS,
) -> None:
    """Write the page of the experiments whose runs the file has."""
    with store.opened(file) as path, StoreReader(path) as reader:
        parts = [TOP]
        for name, experiment in experiments.items():
            measured = Measured.of(reader, name, list(experiment.settings), experiment.seeds)
            if measured.runs:
                parts += section(name, experiment, measured)
    page.write_text("\n\n".join(part.strip("\n") for part in parts) + "\n", encoding="utf-8")


def write_summary(file: Path = store.FILE, readme: Path = README) -> None:
    """Write README's table between its markers."""
    with store.opened(file) as path, StoreReader(path) as reader:
        experiment = starter.EXPERIMENT
        measured = Measured.of(reader, "starter", list(experiment.settings), experiment.seeds)
        text = starter.summary(measured)
    before, _, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    readme.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def section(name: str, experiment: Experiment, measured: Measured) -> Iterator[str]:
    """An experiment's part of the page."""
    yield f"## {experiment.title}"
    yield f"    python -m benchmarks.results {name}"
    yield origin(measured)
    yield from experiment.page(measured)


def origin(measured: Measured) -> str:
    """When the runs were trained, on what, with which versions and seeds."""
    runs = [run for group in measured.runs.values() for run in group]
    versions: dict[str, str] = {}
    for run in runs:
        detail = measured.reader.run(run.key)
        versions |= {
            name: installed for name in PACKAGES if (installed := detail.versions.get(name))
        }
        trainer: Mapping[str, str] = detail.config.get("trainer", {})
        if trainer:
            versions[trainer["name"]] = trainer["version"]
    days = sorted({run.created_at[:10] for run in runs})
    seeds = sorted({run.seed for run in runs if run.seed is not None})
    return (
        f"{' to '.join(dict.fromkeys((days[0], days[-1])))}, {runs[0].note}; "
        f"{', '.join(f'{name} {version}' for name, version in versions.items())}; "
        f"seeds {', '.join(map(str, seeds))}."
    )
