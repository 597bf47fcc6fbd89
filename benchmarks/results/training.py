"""Trains what an experiment's store lacks: by `grpo-tui sweep`, and by TRL where asked for."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import environments
from benchmarks.results.experiment import FIRST_SEED, Experiment
from benchmarks.results.measured import TRL
from grpo_engine.config.parse import write_yaml
from grpo_engine.events import EvaluationFinished, from_json
from grpo_tui.experiments.purge import purge
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.writer import add_events
from grpo_tui.experiments.store import ExperimentStore
from grpo_tui.experiments.values import RunSummary
from tests.tools import trl_environment

ROOT = Path(__file__).parents[2]
FOLDER = environments.FOLDER.with_name("results")
STORE = "store.db"
PROGRAM = (sys.executable, "-m", "grpo_tui")
# TRL has no greedy evaluation: what it trained is saved, and evaluated as this program's runs are.
SAVE = """
adapted = hasattr(trainer.model, "merge_and_unload")
model = trainer.model.merge_and_unload() if adapted else trainer.model
model.save_pretrained({folder!r})
trainer.processing_class.save_pretrained({folder!r})
"""


@dataclass(frozen=True)
class Workspace:
    """Where an experiment's files are, and how many threads each run may use."""

    folder: Path
    threads: int = 1

    @property
    def store(self) -> Path:
        """The store of this program's runs and of TRL's."""
        return self.folder / STORE

    def run(self, *words: object) -> str:
        """Run a command in the folder and return what it printed."""
        threads = str(self.threads)
        env = os.environ | {"GRPO_TUI_DB": str(self.store), "PYTHONPATH": str(ROOT)}
        env |= {"OMP_NUM_THREADS": threads, "GRPO_TUI_THREADS": threads}
        env |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "OPENBLAS_NUM_THREADS": threads}
        command = list(map(str, words))
        print("+", *command[:6], file=sys.stderr, flush=True)
        done = subprocess.run(
            command, cwd=self.folder, env=env, check=True, stdout=subprocess.PIPE, text=True
        )
        return done.stdout


def train(name: str, experiment: Experiment, workspace: Workspace) -> None:
    """Train every run that the store does not have; an interrupted experiment goes on."""
    workspace.folder.mkdir(parents=True, exist_ok=True)
    numbers = range(1, experiment.seeds + 1)
    for setting in experiment.settings:
        file = workspace.folder / f"{setting}.yaml"
        first = experiment.starts.get(setting)
        start = exported(f"{name}-{first}-1", workspace) if first else None
        file.write_text(write_yaml(experiment.config(setting, start)), encoding="utf-8")
        sweep = f"{name}-{setting}"
        if not all(map(completed(workspace).__contains__, (f"{sweep}-{n}" for n in numbers))):
            options = ("--seeds", experiment.seeds, "--name", sweep, "--retry")
            workspace.run(*PROGRAM, "sweep", file, *options)
        for number in numbers if setting in experiment.in_trl else ():
            run, seed = f"{sweep}{TRL}-{number}", FIRST_SEED + number - 1
            if run not in completed(workspace):
                remove_unfinished(run, workspace)
                train_by_trl(run, file, seed, workspace)
            if "eval/greedy/accuracy" not in completed(workspace)[run].metrics:
                evaluate(run, file, seed, workspace)
        describe(workspace)


def exported(run: str, workspace: Workspace) -> Path:
    """The weights with which a run ended, as a model folder."""
    folder = workspace.folder / f"{run}-model"
    if not folder.is_dir():
        workspace.run(*PROGRAM, "models", "export", run, "--to", "hf", "--out", folder)
    return folder


def completed(workspace: Workspace) -> Mapping[str, RunSummary]:
    """The completed runs by name."""
    if not workspace.store.is_file():
        return {}
    with StoreReader(workspace.store) as reader:
        runs = reader.runs(archived=True)
    return {run.name: run for run in runs if run.status == "completed"}


def remove_unfinished(run: str, workspace: Workspace) -> None:
    """Delete what an interrupted training left, whose name the next one gets."""
    with ExperimentStore(workspace.store) as store, StoreReader(workspace.store) as reader:
        for item in reader.runs(archived=True):
            if item.name == run and item.active:
                raise SystemExit(f"{run} is {item.status} in {workspace.store}; wait for it to end")
            if item.name == run:
                store.delete([item.key])
                purge(store, item.key)


def train_by_trl(run: str, file: Path, seed: int, workspace: Workspace) -> None:
    """Train by the script of `config export`, and save the model as a folder of transformers."""
    script = workspace.folder / f"{run}.py"
    sets = ("--set", f"seed={seed}", "--set", f"name={run}")
    workspace.run(*PROGRAM, "config", "export", file, script, "--to", "trl", *sets, "--force")
    with script.open("a", encoding="utf-8") as out:
        out.write(SAVE.format(folder=f"{run}-model"))
    workspace.run(trl_environment.make(trl_environment.HOME), script)


def evaluate(run: str, file: Path, seed: int, workspace: Workspace) -> None:
    """Add to a run of TRL the held-out answers of its model, taken as this program's runs do."""
    words = ("--config", file, "--set", f"seed={seed}", "--no-base", "--json")
    printed = workspace.run(*PROGRAM, "eval", f"{run}-model", *words)
    lines = [line for line in printed.splitlines() if '"EvaluationFinished"' in line[:40]]
    with ExperimentStore(workspace.store) as store, StoreReader(workspace.store) as reader:
        summary = reader.resolve(run)
        for event in map(from_json, map(json.loads, lines)):
            assert isinstance(event, EvaluationFinished)
            add_events(store, summary.key, replace(event, step=summary.step, moment="after"))


def describe(workspace: Workspace) -> None:
    """Note the machine with each run that has no note, in words."""
    words = f"{processor()}, {environments.cores()} cores, {workspace.threads} thread a run"
    with ExperimentStore(workspace.store) as store, StoreReader(workspace.store) as reader:
        for run in reader.runs(archived=True):
            if not run.note:
                store.change(run.key, note=words)


def processor(read: Callable[[], str] = Path("/proc/cpuinfo").read_text) -> str:
    """The processor's name, without its maker's marks."""
    try:
        lines = read().splitlines()
    except OSError:  # no Linux
        printed = ["sysctl", "-n", "machdep.cpu.brand_string"]
        lines = [f"model name: {subprocess.run(printed, capture_output=True, text=True).stdout}"]
    name = next((line.partition(":")[2] for line in lines if line.startswith("model name")), "")
    flags = next((line for line in lines if line.startswith("flags")), "")
    for mark in ("(R)", "(TM)"):
        name = name.replace(mark, "")
    return " ".join(name.split()) + (" with AVX-512" if "avx512f" in flags else "")
