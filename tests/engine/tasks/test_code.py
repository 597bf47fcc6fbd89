"""Tasks from Python: functions by name, rows, splits, and finished tasks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest

from grpo_engine.api.settings import settings_of
from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError
from grpo_engine.tasks.base import Example, Task, load_task
from grpo_engine.tasks.code import task_of

ROWS: list[dict[str, Any]] = [
    {"prompt": f"{n}+1=", "answer": str(n + 1), "level": n} for n in range(10)
]
CODE = """
from helper import LEVEL

def build(count=4):
    for n in range(count):
        yield {"prompt": f"say {n}", "answer": str(n), "level": LEVEL}

def nothing():
    return []

def number():
    return 7

NUMBERS = [3]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "helper.py").write_text("LEVEL = 3\n")
    path = tmp_path / "mytask.py"
    path.write_text(CODE)
    return path


def test_a_function_of_a_file_is_called_with_the_tasks_options(file: Path) -> None:
    task = load_task(TaskConfig(name=f"{file}:build", options={"count": 6}, held_out_size=2))
    assert (len(task.train), len(task.held_out)) == (4, 2)
    assert {example.columns["level"] for example in task.train} == {3}
    assert task.accuracy == "numeric_answer"  # all answers are numbers


def test_an_edited_file_is_read_again(file: Path) -> None:
    config = TaskConfig(name=f"{file}:build", held_out_size=0)
    before = load_task(config).fingerprint
    file.write_text(CODE.replace("say", "tell"))
    assert load_task(config).fingerprint != before


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("build", "is a file; write"),
        (":missing", "has no 'missing'; it has build, nothing, number"),
        (":nothing", "has no rows; give at least one"),
        (":number", "a task is a Task or rows, not int"),
        (":NUMBERS", "row 1 is int '3'; a row is a mapping"),
    ],
)
def test_a_name_or_a_result_that_is_no_task_is_refused(file: Path, name: str, said: str) -> None:
    given = str(file) if name == "build" else f"{file}{name}"
    with pytest.raises(DataError, match=said):
        load_task(TaskConfig(name=given))


def test_a_missing_file_and_module_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        load_task(TaskConfig(name=f"{tmp_path}/none.py:build"))
    with pytest.raises(DataError, match="there is no module no_such_module_7"):
        load_task(TaskConfig(name="no_such_module_7:build"))


def test_a_data_file_may_have_a_colon_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "odd:name.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    assert len(load_task(TaskConfig(name=str(path), held_out_size=1)).train) == 1


def test_rows_without_an_answer_are_a_task_in_the_form_that_a_run_stores_its_settings() -> None:
    config = TaskConfig(name="python:rows", held_out_size=0)
    stored = TaskConfig.model_validate(config.model_dump(mode="json"))
    for settings in (config, stored):
        task = task_of(settings, [{"prompt": "a"}, {"prompt": "b"}])
        assert [example.prompt for example in task.train] == ["a", "b"]


def test_rows_by_split_keep_the_test_split_out_of_training() -> None:
    splits = {"train": ROWS[:6], "test": ROWS[6:]}
    task = task_of(TaskConfig(name="python:rows"), splits)
    assert (len(task.train), len(task.held_out)) == (6, 4)


class Indexed:
    """A data set with a length and indices that is not iterable, as map-style ones are."""

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return ROWS[index % len(ROWS)]  # never an IndexError, which would end an iteration


TABLE = pandas.DataFrame(ROWS, index=[f"row {n}" for n in range(10)])
SOURCES: Mapping[str, Any] = {
    "pandas": TABLE,
    "pyarrow": pyarrow.Table.from_pandas(TABLE, preserve_index=False),
    "indexed": Indexed(),
    "iterator": ROWS,
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_of_table_is_the_same_task(kind: str) -> None:
    expected = task_of(TaskConfig(name="python:rows", held_out_size=3), ROWS)
    config, given = settings_of(None, None, {"task": SOURCES[kind], "task.held_out_size": 3})
    assert config.task.name == "python:rows"
    made = given.load_task(config.task)
    assert made.fingerprint == expected.fingerprint
    assert [one.prompt for one in made.train] == [one.prompt for one in expected.train]
    splits = {"train": SOURCES[kind], "test": SOURCES[kind]}
    _, given = settings_of(None, None, {"task": splits})
    assert set(given.task) == {"train", "test"}


def test_cells_of_a_table_are_plain_and_what_is_missing_is_none() -> None:
    cells = {
        "prompt": ["a", "b"],
        "level": [1.0, None],
        "tags": [np.array(["x"]), np.array(["y"])],
        "kind": pandas.array([1, None], dtype="Int64"),
    }
    task = task_of(TaskConfig(name="python:rows", held_out_size=0), pandas.DataFrame(cells))
    assert [dict(one.columns) for one in task.train] == [
        {"level": 1.0, "tags": ["x"], "kind": 1},
        {"level": None, "tags": ["y"], "kind": None},
    ]


@pytest.mark.parametrize("source", [["a", "b"], pandas.Series(["a", "b"], index=[7, 9])])
def test_texts_are_prompts(source: Any) -> None:
    config, given = settings_of(None, None, {"task": source, "task.held_out_size": 0})
    assert [one.prompt for one in given.load_task(config.task).train] == ["a", "b"]


def test_rows_take_the_options_of_a_data_file_and_no_others() -> None:
    with pytest.raises(DataError, match="has no option 'count'"):
        task_of(TaskConfig(name="python:rows", options={"count": 1}), ROWS)
    # an option beside the task that it is for is not one of another task's
    config, given = settings_of({"task.options.chat": True}, None, {"task": ROWS})
    prompts = [one.prompt for one in given.load_task(config.task).train]
    assert ({"role": "user", "content": "1+1="},) in prompts


def test_the_settings_change_a_finished_task() -> None:
    def example(place: int) -> Example:
        return Example(key=str(place), prompt=f"{place}=")

    task = Task(
        name="sums",
        train=[example(n) for n in range(9)],
        held_out=[example(n) for n in range(20, 29)],
        system_prompt="Be brief.",
    )
    changes: dict[str, Any] = {"train_size": 3, "held_out_size": 2, "system_prompt": "Be long."}
    made = task_of(TaskConfig(name="python:sums", prefill="= ", shuffle=False, **changes), task)
    assert (len(made.train), len(made.held_out)) == (3, 2)
    assert (made.system_prompt, made.prefill, made.shuffle) == ("Be long.", "= ", False)
    plain = task_of(TaskConfig(name="python:sums"), task)
    assert (plain.system_prompt, plain.shuffle, len(plain.train)) == ("Be brief.", True, 9)
    assert len({made.fingerprint, plain.fingerprint, ""}) == 3


def test_a_task_that_only_another_process_had_says_how_to_resume() -> None:
    with pytest.raises(Exception, match=r"grpo_engine\.resume\(run, task=…\)"):
        load_task(TaskConfig(name="python:rows"))
