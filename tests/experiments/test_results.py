"""docs/results.md and its store, of runs that are made."""

import lzma
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.results import page, reversing, solving, store, training
from benchmarks.results.experiment import Experiment
from benchmarks.results.experiments import EXPERIMENTS
from benchmarks.results.measured import Measured, difference, table
from grpo_engine.rewards.load import load_reward
from grpo_engine.tasks.base import load_task
from grpo_tui.experiments.importing import import_packed
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.store import ExperimentStore
from tests.experiments.made import (
    config,
    ended,
    evaluated,
    finished,
    recorded,
    started,
    step_events,
)


def rewards(measured: Measured) -> Iterator[str]:
    ranking = measured.ranking("sampled")
    assert ranking is not None
    tests = {measured.setting_of(item.own.runs): item.test for item in ranking.settings}
    yield table(
        ["", "reward", "difference"],
        [
            [name, measured.mean(name, "reward", 2, 2), difference(test) if test else ""]
            for name, test in tests.items()
        ],
    )


MADE = Experiment(title="Made", settings={"low": {}, "high": {}}, page=rewards, seeds=2)
# rewards at step 2 by setting and seed, and which of four problems were right
RUNS = {
    "low-1": (1, 0.5, (1, 0, 0, 0)),
    "low-2": (2, 0.7, (1, 0, 0, 0)),
    "high-1": (1, 0.9, (1, 1, 1, 0)),
    "high-2": (2, 0.9, (1, 1, 1, 0)),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an experiment's store, with one run that has not ended."""
    path = tmp_path / "made" / training.STORE
    for name, (seed, reward, right) in RUNS.items():
        steps = (*step_events(1), finished(2, reward=reward))
        events = (started(), *steps, evaluated(2, right=right), ended(2))
        beta = 0.5 if name.startswith("high") else 0.25
        tree = config(seed=seed, algorithm={"recipe": "grpo", "beta": beta})
        recorded(path, *events, tree=tree, name=f"made-{name}")
    recorded(path, started(), finished(1), name="made-low-3")
    training.describe(training.Workspace(path.parent))
    return tmp_path


def test_the_page_has_the_means_of_the_seeds_with_intervals_and_the_paired_test(
    folder: Path,
) -> None:
    packed, written = folder / "results.db.xz", folder / "results.md"
    store.pack(folder, packed)
    page.write(packed, written, {"made": MADE, "other": MADE})
    text = written.read_text(encoding="utf-8")
    # mean .6, t(.95, 1) = 12.706, standard deviation .1414: 12.706 * .1414 / sqrt(2) = 1.271
    assert "| low | .600±1.271 |  |" in text
    # two of four problems more are right
    assert "| high | .900±.000 | +50.0 [" in text
    assert "    python -m benchmarks.results made\n" in text
    assert "benchmarks.results other" not in text, "nothing of it was trained"
    assert "seeds 1, 2." in text
    assert "1 thread a run" in text
    page.write(packed, written, {"made": replace(MADE, seeds=3)})
    assert "## Made" not in written.read_text(encoding="utf-8"), "no setting has three seeds"


def test_the_packed_store_has_answers_of_the_first_run_and_nothing_of_the_machine(
    folder: Path,
) -> None:
    packed = folder / "results.db.xz"
    store.pack(folder, packed)
    store.pack(folder / "nowhere", packed)  # keeps what is there
    with ExperimentStore(folder / "mine.db") as mine:
        names = {name for _, name in import_packed(mine, packed)}
    assert names == {f"made-{name}" for name in RUNS}
    with StoreReader(folder / "mine.db") as reader:
        first, second = (reader.resolve(f"made-low-{number}") for number in (1, 2))
        assert (len(reader.groups(first.key)), len(reader.groups(second.key))) == (2, 0)
        assert {attempt.host for attempt in reader.attempts(first.key)} == {""}
        (evaluation,) = reader.evaluations(second.key)
        assert [row.correct for row in reader.samples(evaluation.key)] == [1, 0, 0, 0]
    assert str(folder).encode() not in lzma.decompress(packed.read_bytes())


def test_what_an_interrupted_training_left_gives_its_name_free(folder: Path) -> None:
    workspace = training.Workspace(folder / "made")
    training.remove_unfinished("made-low-3", workspace)
    with StoreReader(workspace.store) as reader:
        assert {run.name for run in reader.runs(archived=True)} == {f"made-{name}" for name in RUNS}


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_every_setting_can_be_trained(experiment: Experiment) -> None:
    for setting in experiment.settings:
        config = experiment.config(setting, Path("model"))
        assert config.evaluation.problems or not config.evaluation.before_and_after
    assert set(experiment.in_trl) | set(experiment.starts) <= set(experiment.settings)


@pytest.mark.parametrize("experiment", [solving.COUNTDOWN, solving.SUMS])
def test_an_answer_that_is_shown_is_right(experiment: Experiment) -> None:
    config = experiment.config("sft", Path("model"))
    task = load_task(config.task)
    (name,) = config.rewards.functions
    reward = load_reward(name, {})
    assert len(task.held_out) == 64
    for example in (*task.train[:20], *task.held_out):
        columns = {key: [value] for key, value in example.columns.items()}
        arguments = {"prompts": [""], "completions": [example.completion], **columns}
        assert reward.function(**reward.keywords(arguments)) == [1], example


def test_what_grpo_added_is_the_mean_of_the_seeds_differences(tmp_path: Path) -> None:
    # sampled: .75 - .25 and 1 - .25, mean .625, standard deviation .1768;
    # 12.706 * .1768 / sqrt(2) = 1.588
    for seed, right in enumerate([(1, 1, 1, 0), (1, 1, 1, 1)], start=1):
        events = [started(), *step_events(1), *step_events(2)]
        for mode, before in (("sampled", (1, 0, 0, 0)), ("greedy", (1, 1, 0, 0))):
            start = replace(evaluated(0, right=before, mode=mode), moment="before")
            events += [start, evaluated(2, right=right, mode=mode)]
        path = tmp_path / training.STORE
        tree = config(seed=seed)
        recorded(path, *events, finished(2), ended(2), tree=tree, name=f"countdown-grpo-{seed}")
    with StoreReader(path) as reader:
        measured = Measured.of(reader, "countdown", ["sft", "grpo"])
        text = "\n".join(solving.COUNTDOWN.page(measured))
        assert "Countdown with two numbers" in text
        assert "sampled .625±1.588." in text
        assert list(reversing.gain(Measured.of(reader, "countdown", ["sft"]))) == []
