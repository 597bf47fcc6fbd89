"""What a task offers before it is built: its options, and the first rows of its data."""

from pathlib import Path

import pytest

from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError
from grpo_engine.tasks.base import BUILT_IN, load_task
from grpo_engine.tasks.offers import first_rows, options_of
from grpo_engine.tasks.options import read_options

FUNCTION = """
def rows(level=1, *, kind="add"):
    return [{"Frage": f"{kind} {level}", "right": "2"}]
"""


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name not in ("verifiers",)])
def test_every_built_in_task_takes_the_defaults_of_the_options_that_it_offers(name: str) -> None:
    config = TaskConfig(name="reasoning-gym:countdown" if name == "reasoning-gym" else name)
    options = options_of(config)
    assert options
    chosen = {name: item.default for name, item in options.items()}
    config = config.model_copy(update={"options": {k: v for k, v in chosen.items() if v}})
    assert read_options(config, options) == chosen


def test_only_the_first_rows_of_a_file_are_read(tmp_path: Path) -> None:
    for name, head, row, rest in (
        ("a.csv", "Frage,Nr\n", "q,1\n", '"open\n'),
        ("a.jsonl", "", '{"Frage": "q", "Nr": "1"}\n', "\x00 no JSON"),
    ):
        file = tmp_path / name
        file.write_text(head + 3 * row + rest)
        rows = first_rows(TaskConfig(name=str(file)), 3)
        assert [dict(item.columns) for item in rows] == [{"Frage": "q", "Nr": "1"}] * 3
    with pytest.raises(DataError, match="check its quotes"):
        first_rows(TaskConfig(name=str(tmp_path / "a.csv")), 4)


def test_the_arguments_of_a_function_are_options_and_its_rows_have_columns(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(FUNCTION)
    config = TaskConfig(name=f"{tmp_path / 't.py'}:rows", options={"level": 4})
    assert {name: item.default for name, item in options_of(config).items()} == {
        "level": 1,
        "kind": "add",
    }
    assert [dict(row.columns) for row in first_rows(config, 3)] == [
        {"Frage": "add 4", "right": "2"}
    ]


def test_a_task_that_is_generated_has_no_columns() -> None:
    assert not first_rows(TaskConfig(name="countdown"), 3)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def rows():\n    return [lvl]\n", r"name 'lvl' is not defined \(at .*t\.py:2: return"),
        ("def rows():\n    yield {}[1]\n", r"KeyError: 1 \(at .*t\.py:2: yield"),
        ("def rows(:\n", r"invalid syntax .*\(at .*t\.py:1"),
    ],
)
def test_an_error_in_a_task_file_names_its_line(tmp_path: Path, code: str, message: str) -> None:
    (tmp_path / "t.py").write_text(code)
    with pytest.raises(DataError, match=message) as caught:
        load_task(TaskConfig(name=f"{tmp_path / 't.py'}:rows"))
    assert caught.value.settings == ("task.name",)


def test_an_option_that_a_function_does_not_take_is_refused_with_those_that_it_takes(
    tmp_path: Path,
) -> None:
    (tmp_path / "t.py").write_text(FUNCTION)
    with pytest.raises(DataError, match="keyword argument 'lvl'; it takes level, kind") as caught:
        load_task(TaskConfig(name=f"{tmp_path / 't.py'}:rows", options={"lvl": 4}))
    assert caught.value.settings == ("task.options",)
