"""Tasks from Python: functions by name, rows, splits, and finished tasks."""

from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError
from grpo_engine.tasks.base import Example, Task, load_task
from grpo_engine.tasks.code import task_of

ROWS = [{"prompt": f"{n}+1=", "answer": str(n + 1), "level": n} for n in range(10)]
CODE = """
from helper import LEVEL

def build(count=4):
    for n in range(count):
        yield {"prompt": f"say {n}", "answer": str(n), "level": LEVEL}

def nothing():
    return []

def number():
    return 7

NAMES = ["prompt"]
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
        (":number", "a task is a Task or an iterable of rows, not int"),
        (":NAMES", "row 1 is str 'prompt'; a row is a mapping"),
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


def test_rows_take_no_options() -> None:
    with pytest.raises(DataError, match="has no option 'count'"):
        task_of(TaskConfig(name="python:rows", options={"count": 1}), ROWS)


def test_the_settings_change_a_finished_task() -> None:
    def example(place: int) -> Example:
        return Example(key=str(place), prompt=f"{place}=")

    task = Task(
        name="sums", train=[example(n) for n in range(9)],
        held_out=[example(n) for n in range(20, 29)], system_prompt="Be brief.",
    )  # fmt: skip
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
