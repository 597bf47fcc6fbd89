"""trackio's database: every value, growth while it is followed, damage and hostility."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from grpo_engine import events as ev
from grpo_tui.experiments.db import connection
from grpo_tui.experiments.errors import ImportRefusedError, QueryError
from grpo_tui.experiments.export.trackio import export_trackio
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.foreign.importing import Imported, Options, import_runs
from tests.experiments.made import ended, evaluated, group, numbers, recorded, started
from tests.foreign.made import detail, events, groups, names

SQL = (Path(__file__).parent / "trackio.sql").read_text("utf-8")
UNNAMED = "system: Answer with a number.\nuser: "


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "sums.db"
    change(path, SQL)
    return path


def change(path: Path, *scripts: str) -> None:
    with closing(sqlite3.connect(path)) as conn:
        for script in scripts:
            conn.executescript(script)


def take(path: Path, store: Path, **options: Any) -> list[Imported]:
    return import_runs(path, Options(store=store, **options))


def series(store: Path, run: str) -> dict[str, dict[int, float]]:
    """The values of each metric by step."""
    with StoreReader(store) as reader:
        key = reader.resolve(run).key
        found = [reader.metric_series(key, name) for name in reader.metric_keys(key)]
    return {item.key: dict(zip(item.steps, item.values, strict=True)) for item in found}


def test_a_run_of_trl_has_its_answers_scores_metrics_and_settings(
    project: Path, store: Path
) -> None:
    assert [run.name for run in take(project, store)] == ["trl", "verl", "loop"]
    first, second, tool = (item for _, item in groups(store, "trl"))
    assert [step for step, _ in groups(store, "trl")] == [1, 1, 2]
    assert [item.prompt_text for item in (first, second, tool)] == [
        f"{UNNAMED}2 + 2 = ?",
        f"{UNNAMED}3 + 2 = ?",
        "5 + 2 = ?",
    ]
    assert [
        (item.text, item.reward, item.advantage, item.model_tokens) for item in first.rollouts
    ] == [("4", 1.5, 0.75, 4), ("5", 0.5, -0.75, 4)]
    assert [(item.text, item.advantage) for item in second.rollouts] == [("5", 0), ("five", 0)]
    assert [(score.name, score.value) for score in first.rollouts[1].rewards] == [
        ("right", 0.0),
        ("short", 0.5),
    ]
    assert (first.reward_mean, second.reward_std) == (1.0, 0.0)
    metrics = series(store, "trl")
    # What trackio counts as steps 2 and 3 has the trainer's numbers 1 and 2; a NaN is absent.
    assert metrics["loss"] == {1: 0.25, 2: 0.125}
    assert metrics["reward"] == {1: 1.25, 2: 1.0}
    assert metrics["eval/reward"] == {2: 1.0}
    assert not metrics.keys() & {"kl", "global_step", "train/loss"}
    run = detail(store, "trl")
    assert (run.trainer, run.summary.model, run.summary.seed) == ("TRL", "org/model", 7)
    assert run.settings["optimizer.learning_rate"] == 1e-6
    assert run.settings["rollout.group_size"] == 2
    assert run.files is not None
    assert {"held-out evaluations", "advantages"} <= {*run.files.recorded}
    assert run.files.missing["reference solutions"] == "give a trace the metadata target"


def test_a_tools_reply_is_between_the_turns_of_the_model(project: Path, store: Path) -> None:
    take(project, store, run="trl")
    (answer,) = [item for _, item in groups(store)][-1].rollouts
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 5, "b": 2}}\n</tool_call>'
    assert answer.text == f"{call}7It is 7."
    assert [(span.kind, span.turn, span.chars, span.name) for span in answer.spans] == [
        ("model", 0, len(call), ""),
        ("environment", 0, 1, "add"),
        ("model", 1, len("It is 7."), ""),
    ]
    assert [(score.name, score.value) for score in answer.rewards] == [("right", None)]
    assert (answer.reward, answer.model_tokens) == (1.0, 4)


def test_validation_answers_of_verl_are_an_evaluation(project: Path, store: Path) -> None:
    take(project, store, run="verl")
    ((step, item),) = groups(store)
    assert (step, item.origin, item.prompt_text) == (10, "eval", "1 + 1 = ?")
    assert [(answer.text, answer.reward) for answer in item.rollouts] == [("2", 1.0), ("3", 0.0)]
    (held_out,) = (e for e in events(store) if isinstance(e, ev.EvaluationFinished))
    assert [(row.example_key, row.samples) for row in held_out.rows] == [(item.example_key, 2)]
    metrics = series(store, "@last")
    assert metrics["eval/reward"] == {10: 0.5}
    assert metrics["critic/score/mean"] == {10: 0.5}
    run = detail(store)
    assert run.trainer == "verl"
    assert run.settings["theirs.actor_rollout_ref"] == {"model": {"path": "org/model"}}


def test_a_loop_that_counts_from_0_begins_with_step_1(project: Path, store: Path) -> None:
    take(project, store, run="loop")
    assert series(store, "@last")["loss"] == {1: 0.5, 2: 0.25}
    (step, first), (_, second) = groups(store)
    (answer,) = first.rollouts
    assert (step, first.prompt_text, first.target) == (1, "1 + 2 = [image_url]", "3")
    assert (answer.text, answer.finish) == ("<think>easy</think>3", "length")
    assert (answer.reward, answer.advantage, answer.model_tokens) == (0.5, None, None)
    assert second.example_key == first.example_key
    assert detail(store).trainer == "trackio"


def test_what_was_exported_is_imported_with_the_same_numbers(tmp_path: Path, store: Path) -> None:
    ours = tmp_path / "ours.db"
    recorded(
        ours,
        started(),
        ev.GroupScored(step=0, group=group(0, ("yes",), origin="eval")),
        evaluated(0),
        ev.GroupScored(step=1, group=group(0, ("2", "3\udc00"))),
        ev.GroupScored(step=1, group=group(1, ("2",), rewards=(None,))),
        numbers(step=1),
        ev.StepFinished(step=1, metrics={"reward": 0.5, "time": 2.0}, tokens=9, elapsed=1.0),
        ended(1),
        name="mine",
    )
    with StoreReader(ours) as reader:
        export_trackio(reader, reader.runs(), tmp_path / "out")
        before = reader.run(reader.runs()[0].key)
    take(tmp_path / "out", store)
    after = detail(store)
    assert after.trainer == "grpo-tui"
    same = ("optimizer", "algorithm", "rollout", "model", "task")
    assert {k: v for k, v in after.settings.items() if k.startswith(same)} == {
        k: v for k, v in before.settings.items() if k.startswith(same)
    }
    for (step, theirs), (wanted, our) in zip(groups(store), groups(ours), strict=True):
        assert (step, theirs.origin, theirs.prompt_text, theirs.target, theirs.example_key) == (
            wanted,
            our.origin,
            our.prompt_text,
            our.target,
            our.example_key,
        )
        for answer, other in zip(theirs.rollouts, our.rollouts, strict=True):
            assert answer.text == other.text.replace("\udc00", "\ufffd" * 3)
            assert (answer.reward, answer.advantage) == (other.reward, other.advantage)
            assert (answer.finish, answer.model_tokens) == (other.finish, other.model_tokens)
            assert answer.rewards == tuple(
                score for score in other.rewards if score.value is not None
            )
    wanted_metrics, metrics = series(ours, "mine"), series(store, "@last")
    assert {name: metrics[name] for name in wanted_metrics} == wanted_metrics
    assert metrics["num_tokens"] == {1: 9.0}


def test_a_run_goes_on_and_other_runs_are_not_read_twice(project: Path, store: Path) -> None:
    take(project, store)
    assert take(project, store) == []
    row = "(SELECT run_id FROM configs WHERE run_name = 'loop'), '', 'loop', 2, '{\"loss\": 0.125}'"
    change(
        project, f"INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) SELECT {row}"
    )
    (more,) = take(project, store)
    assert (more.name, more.steps) == ("loop", 1)
    assert series(store, "loop")["loss"] == {1: 0.5, 2: 0.25, 3: 0.125}
    assert sorted(names(store)) == ["loop", "trl", "verl"]


def test_a_run_is_followed_in_the_file_that_trackio_writes(project: Path, store: Path) -> None:
    losses: list[dict[int, float]] = []

    def moves() -> Iterator[None]:
        yield
        losses.append(series(store, "@last")["loss"])
        with closing(sqlite3.connect(project)) as conn:
            conn.execute("PRAGMA journal_mode = WAL")  # as trackio opens it
            conn.execute(
                "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) "
                "SELECT run_id, '', 'loop', 2, ? FROM configs WHERE run_name = 'loop'",
                [b'{"loss": 0.125}'],
            )
            conn.commit()
            yield
            yield
            losses.append(series(store, "@last")["loss"])
        raise KeyboardInterrupt

    move = moves()
    with pytest.raises(ImportRefusedError, match=r"3 runs; with --follow or --name choose one by"):
        take(project, store, follow=True)
    take(project, store, run="loop", follow=True, wait=lambda: next(move))
    assert losses == [{1: 0.5, 2: 0.25}, {1: 0.5, 2: 0.25, 3: 0.125}]
    with pytest.raises(QueryError, match="there is no run 'lop'; did you mean loop"):
        take(project, store, run="lop")


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("UPDATE metrics SET metrics = '{'", r"metrics 1 is not JSON: .*; correct it or take"),
        ("UPDATE metrics SET metrics = '[1]'", "metrics 1: must be an object of JSON"),
        ("UPDATE metrics SET step = 'x', metrics = '{\"a\": 1}'", "step must be a whole number"),
        ("UPDATE metrics SET step = -1, metrics = '{\"a\": 1}'", "below 10,000,000, got -1"),
        ("UPDATE metrics SET step = 9e300, metrics = '{\"a\": 1}'", "below 10,000,000, got 9e"),
        ("UPDATE traces SET step = 1.5", "got 1.5"),
        ("UPDATE traces SET messages = '{}'", "messages must be a list of objects"),
        ("UPDATE traces SET messages = '[1]'", "messages must be a list of objects"),
        ("UPDATE traces SET metadata = '[' || printf('%.200000c', '[')", "it is nested too deep"),
        ("UPDATE traces SET metadata = X'FF'", "is not JSON: 'utf-8' codec"),
        ("UPDATE configs SET config = 'x'", "settings of trl is not JSON"),
        ("UPDATE traces SET metadata = printf('%.3000c', 'x')", "string or blob too big"),
    ],
)
def test_damage_is_named_with_its_place(
    project: Path, store: Path, script: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LONGEST_VALUE", 2_000 if "big" in sentence else 1 << 26)
    change(project, script)
    with pytest.raises(ImportRefusedError, match=sentence) as refused:
        take(project, store)
    assert str(project) in str(refused.value)


def view(path: Path) -> None:
    """A view in the place of the metrics never ends."""
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
    columns = "i AS id, 'a' AS run_id, 'a' AS run_name, i AS step, '{}' AS metrics"
    change(path, f"DROP TABLE metrics; CREATE VIEW metrics AS {endless} SELECT {columns} FROM n")


def generated(path: Path) -> None:
    change(path, "ALTER TABLE traces ADD COLUMN x AS (printf('%.1000000000c', 'x'))")


def virtual(path: Path) -> None:
    columns = "id, run_id, run_name, step, key, messages, metadata"
    change(path, f"DROP TABLE traces; CREATE VIRTUAL TABLE traces USING fts5({columns})")


def trigger(path: Path) -> None:
    change(
        path,
        "CREATE TRIGGER t AFTER UPDATE ON metrics BEGIN SELECT load_extension('x'); END",
    )


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:9_000])


@pytest.mark.parametrize("make", [view, cut, lambda path: path.write_bytes(b"SQLite")])
def test_what_is_not_trackios_is_unknown(
    project: Path, store: Path, make: Callable[[Path], object]
) -> None:
    make(project)
    with pytest.raises(ImportRefusedError, match="neither a store of grpo-tui nor a run of"):
        take(project, store)
    assert not store.exists()


@pytest.mark.parametrize("make", [generated, virtual])
def test_computed_columns_keep_the_traces_out_and_triggers_never_run(
    project: Path, store: Path, make: Callable[[Path], object]
) -> None:
    make(project)
    trigger(project)
    take(project, store, run="trl")
    assert list(groups(store)) == []
    assert series(store, "@last")["loss"] == {1: 0.25, 2: 0.125}


def test_work_that_no_file_of_this_size_needs_is_ended(
    project: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that name each other again and again would have rows without end, as here many."""
    change(
        project,
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 3000) INSERT INTO"
        " metrics (run_id, timestamp, run_name, step, metrics) SELECT 'a', '', 'a', i, '{}' FROM n",
    )
    monkeypatch.setattr(connection, "FREE_WORK", 0)
    monkeypatch.setattr(connection, "WORK_UNIT", 2_000)
    monkeypatch.setattr(connection, "WORK_SHARE", 1 << 40)
    with pytest.raises(ImportRefusedError, match="cannot be read: interrupted"):
        take(project, store)


def test_hostile_words_and_numbers_are_data(project: Path, store: Path) -> None:
    metadata = json.dumps(
        {
            "reward": 10**400,
            "advantage": "high",
            "rewards/a": "NaN",
            "rewards/\x1b[2J": 1,
            "weights/a": [],
            "completion_tokens": -4,
            "finish": "\x1b]0;x\x07",
            "example_key": ["k"],
            "group_id": {"a": 1},
        }
    )
    with closing(sqlite3.connect(project)) as conn, conn:
        conn.execute("UPDATE traces SET metadata = ?", [metadata])
        conn.execute("UPDATE configs SET run_name = ?", ["@\x1b[31mloop"])
    take(project, store)
    answers = [
        answer for run in names(store) for _, item in groups(store, run) for answer in item.rollouts
    ]
    assert len(answers) == 5 + 2 + 2
    for answer in answers:
        # The sum of its parts, since the reward itself is no number.
        assert (answer.reward, answer.advantage, answer.model_tokens) == (1.0, None, None)
        assert answer.finish == ""
        assert [score.value for score in answer.rewards] == [None, 1.0]


def test_a_database_of_trackio_before_it_had_ids_is_read_by_names(
    project: Path, store: Path
) -> None:
    change(
        project,
        "DROP INDEX idx_metrics_run_step; DROP INDEX idx_metrics_run_timestamp;"
        "DROP INDEX idx_metrics_run_record; ALTER TABLE metrics DROP COLUMN run_id",
    )
    assert [run.name for run in take(project, store)] == ["trl", "verl", "loop"]
    assert series(store, "trl")["loss"] == {1: 0.25, 2: 0.125}
