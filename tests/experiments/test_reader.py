"""Selecting runs: filters, columns, sort keys, names."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from grpo_engine.config.recipes import RECIPES, SETTINGS
from grpo_engine.config.settings import AlgorithmConfig
from grpo_engine.events import CheckpointSaved
from grpo_tui.experiments.errors import NoStoreError, QueryError, RunNotFoundError
from grpo_tui.experiments.post_mortem import post_mortem
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.store import ExperimentStore
from tests.experiments.made import config, evaluated, finished, record_run, sql


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reader") / "s.db"
    record_run(path, steps=2, name="low", tree=config(seed=1))
    record_run(
        path,
        steps=5,
        name="high beta",
        last=(evaluated(5, (1, 1)),),
        tree=config(seed=2, algorithm={"recipe": "dapo", "beta": 0.4}),
    )
    record_run(path, steps=8, name="other-task", tree=config(task={"name": "gsm8k"}))
    store = ExperimentStore(path)
    store.tag(1, ["good", "50%"])
    store.change(2, note="a note on KL")
    store.change(3, archived=True)
    store.close()
    return path


@pytest.fixture
def reader(path: Path) -> Iterator[StoreReader]:
    with StoreReader(path) as opened:
        yield opened


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ["high beta", "low"]),
        ("low", ["low"]),
        ("LOW", ["low"]),
        ("50%", ["low"]),
        ("%", ["low"]),
        ('"note on"', ["high beta"]),
        ("tag:good", ["low"]),
        ("!tag:good", ["high beta"]),
        ("status:completed", ["high beta", "low"]),
        ("status:running", []),
        ("recipe:dapo", ["high beta"]),
        ("recipe:dapo | tag:good", ["high beta", "low"]),
        ("!(recipe:dapo | tag:good)", []),
        ("cfg.optimizer.learning_rate>=1e-5", ["high beta", "low"]),
        ("cfg.algorithm.beta>0.1", ["high beta"]),
        ("cfg.optimizer.name=adamw seed=1", ["low"]),
        ("reward>0.25", ["high beta"]),
        ("reward > 0.25 !(last.kl <= 0.02)", ["high beta"]),
        ("last.kl<=0.02", ["low"]),
        ("eval/accuracy>0.9", ["high beta"]),
        ("step>=2 step<5", ["low"]),
        ("name~beta", ["high beta"]),
        ("created>=2020-01-01", ["high beta", "low"]),
    ],
)
def test_filters(reader: StoreReader, text: str, names: list[str]) -> None:
    assert [run.name for run in reader.runs(text)] == names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rewrd>1", "did you mean reward"),
        ("cfg.optimizer.lr=1", "setting or metric 'optimizer.lr'"),
        ("reward>many", "'many' is not a number"),
        ("(low", "not closed"),
        ("low)", "an extra"),
        ("low |", "an empty side"),
        ("!", "ends with"),
    ],
)
def test_a_filter_that_is_unclear_says_what_is_wrong(
    reader: StoreReader, text: str, words: str
) -> None:
    with pytest.raises(QueryError, match=words.replace("(", r"\(")):
        reader.runs(text)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    recipe=st.sampled_from(sorted(RECIPES)),
    beta=st.none() | st.sampled_from([0.0, 0.02, 0.3]),
)
def test_a_setting_left_to_the_recipe_has_the_recipes_value_everywhere(
    recipe: str, beta: float | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("store") / "s.db"
    try:
        algorithm = AlgorithmConfig(recipe=recipe, beta=beta)
    except ValueError:  # a recipe that refuses this beta
        assume(False)
    made = algorithm.resolved()
    record_run(path, tree=config(algorithm=algorithm.model_dump(mode="json")), steps=1)
    with StoreReader(path) as reader:
        (run,) = reader.runs(columns=["=algorithm.beta"])
        assert run.columns["algorithm.beta"] == made.beta
        stored = reader.settings(run.key, in_force=True)
        for name in AlgorithmConfig.settings().keys() & SETTINGS.keys():
            assert stored[f"algorithm.{name}"] == getattr(made, name), name
        # and filters and sorting agree with what is shown
        for limit in (0.01, 0.1):
            found = reader.runs(f"cfg.algorithm.beta>{limit}", sort="=algorithm.beta")
            assert bool(found) == (made.beta > limit)


def test_columns_take_settings_metrics_and_labels(reader: StoreReader) -> None:
    columns = "best reward, last kl as k, =algorithm.beta as beta, task.name, recipe"
    run = reader.runs("high", columns=columns.split(","))[0]
    assert run.columns == {
        "best reward": 0.5,
        "k": 0.05,
        "beta": 0.4,
        "task.name": "arithmetic",
        "recipe": "dapo",
    }
    with pytest.raises(QueryError, match=r"did you mean algorithm\.beta"):
        reader.runs(columns=["=algorithm.betta"])


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        ("-created", "high beta"),
        ("created", "low"),
        ("-best reward", "high beta"),
        ("=algorithm.beta", "low"),
        ("-eval/accuracy", "high beta"),
        ("eval/accuracy", "high beta"),
        ("name", "high beta"),
    ],
)
def test_sorting_puts_runs_without_the_value_last(
    reader: StoreReader, sort: str, first: str
) -> None:
    assert reader.runs(sort=sort)[0].name == first


def test_a_run_is_named_by_id_prefix_name_and_last(reader: StoreReader) -> None:
    low = reader.resolve("low")
    for ref in (low.id, low.id[:5], low.uid, "lo"):
        assert reader.resolve(ref).key == low.key
    assert reader.resolve("@last").name == "other-task"
    with pytest.raises(RunNotFoundError, match="did you mean high beta"):
        reader.resolve("hihg beta")
    with pytest.raises(RunNotFoundError, match=r"did you mean @last"):
        reader.resolve("@lst")


def test_runs_of_one_name_are_numbered_and_an_ambiguous_prefix_lists_them(tmp_path: Path) -> None:
    for _ in range(2):
        record_run(tmp_path / "s.db", name="same", steps=1)
    with StoreReader(tmp_path / "s.db") as reader:
        assert sorted(run.name for run in reader.runs()) == ["same", "same-2"]
        with pytest.raises(RunNotFoundError, match=r"could be 2 runs.*same.*same-2"):
            reader.resolve("sam")


def test_there_is_no_store_before_the_first_run(tmp_path: Path) -> None:
    with pytest.raises(NoStoreError, match="the first run will create it"):
        StoreReader(tmp_path / "s.db")


def test_the_history_of_a_prompt_follows_it_over_the_steps(reader: StoreReader) -> None:
    views = reader.groups(reader.resolve("low").key, prompt_hash="hash-1")
    assert [view.step for view in views] == [1, 2]
    assert [item.text for item in views[0].rollouts] == ["yes", "no"]
    assert views[0].rollouts[0].rewards[0].reason == "as computed"


def test_a_lost_run_opens_with_what_is_known(tmp_path: Path) -> None:
    path, saved = tmp_path / "s.db", "checkpoints/step-000003"
    moved = f"/old/runs/r/{saved}"
    short = record_run(
        path,
        steps=5,
        last=(CheckpointSaved(step=3, path=moved, best=False, seconds=0.1), finished(6)),
    )
    (tmp_path / "runs" / short / saved).mkdir(parents=True)
    sql(
        path,
        "UPDATE run SET status = 'running'",
        "UPDATE attempt SET ended_at = NULL, pid_start = 'gone', rss_gb = 7.9, free_gb = 0.1",
    )
    with StoreReader(path) as reader:
        run = reader.resolve(short)
        mortem = post_mortem(reader, run.key)
    assert run.status == "lost"
    assert (mortem.last_step, mortem.checkpoint_step, mortem.steps_to_redo) == (6, 3, 3)
    assert "out of memory" in mortem.cause
