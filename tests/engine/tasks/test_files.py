import json
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError, MissingPackageError
from grpo_engine.tasks.base import Task, load_task


def write(path: Path, *rows: Any) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def make(path: Path | str, **settings: Any) -> Task:
    return load_task(TaskConfig(name=str(path), **settings))


def qa(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"prompt": f"q{i}", "answer": f"{i}"} for i in range(start, start + count)]


HI, HELLO = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}


@pytest.mark.parametrize(
    ("row", "prompt", "target", "columns"),
    [
        (
            {"prompt": "1+1=", "answer": "2", "level": [1, {"a": None}]},
            "1+1=",
            "2",
            {"answer": "2", "level": [1, {"a": None}]},
        ),
        ({"prompt": [HI], "solution": "x"}, (HI,), "x", {"solution": "x", "answer": "x"}),
        ({"messages": [HI, HELLO]}, (HI,), "hello", {"messages": [HI, HELLO], "answer": "hello"}),
        (
            {"prompt": "hi", "completion": "hello"},
            (HI,),
            "hello",
            {"completion": "hello", "answer": "hello"},
        ),
    ],
    ids=["TRL text", "TRL chat", "mlx-lm messages", "mlx-lm completion"],
)
def test_a_row_of_trl_or_mlx_lm_is_a_problem(
    tmp_path: Path, row: dict[str, Any], prompt: Any, target: str, columns: Any
) -> None:
    path = write(tmp_path / "d.jsonl", row)
    task = make(path, held_out_size=0)
    (example,) = task.train
    assert (example.prompt, example.target, example.columns) == (prompt, target, columns)
    assert example.where.endswith("d.jsonl:1")
    numeric = target.isdigit()
    assert [spec.name for spec in task.default_rewards] == [
        "numeric_answer" if numeric else "exact_answer"
    ]
    if "completion" in row:
        (plain,) = make(path, held_out_size=0, options={"chat": False}).train
        assert plain.prompt == "hi"


@pytest.mark.parametrize("missing", [{}, {"answer": None}, {"answer": ""}])
def test_rows_without_an_answer_are_counted_and_do_not_change_the_reward(
    tmp_path: Path, missing: dict[str, Any]
) -> None:
    # before, one such row made exact_answer the reward of all, and its target was ""
    rows = [{"prompt": "q9"} | missing, *qa(3)]
    task = make(write(tmp_path / "d.jsonl", *rows), held_out_size=0)
    assert [spec.name for spec in task.default_rewards] == ["numeric_answer"]
    note = "1 of 4 rows have no answer, so that numeric_answer gives them no score"
    assert note in task.notes
    assert make(write(tmp_path / "e.jsonl", *qa(3)), held_out_size=0).notes == ()
    none = make(write(tmp_path / "f.jsonl", {"prompt": "q"} | missing), held_out_size=0)
    assert none.default_rewards == ()


@pytest.mark.parametrize("completion", ["NaN", "1e999", "7", '{"a": 1}', "[1]", '[{"role": 5}]'])
def test_a_completion_that_is_neither_text_nor_messages_is_learnt_as_its_text(
    tmp_path: Path, completion: str
) -> None:
    row = f'{{"prompt": "hi", "completion": {completion}}}'
    (problem,) = make(write(tmp_path / "d.jsonl", row), held_out_size=0).train
    assert isinstance(problem.completion, str)
    assert problem.completion


def test_an_mlx_lm_folder_brings_its_own_split(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", *qa(4))
    write(tmp_path / "valid.jsonl", *qa(2, start=3))
    write(tmp_path / "test.jsonl", *qa(1, start=9))
    task = make(tmp_path)
    assert [e.prompt for e in task.train] == ["q0", "q1", "q2"]
    assert [e.prompt for e in task.held_out] == ["q3", "q4"]
    assert task.notes == ("1 training rows have the prompt of a held-out row and are not used",)
    assert [e.prompt for e in make(tmp_path, splits={"held_out": "test"}).held_out] == ["q9"]


def test_rows_are_set_aside_where_there_is_one_split(tmp_path: Path) -> None:
    # q0 occurs twice, and both rows go to the same side
    path = write(tmp_path / "d.jsonl", *qa(20), *qa(1))
    task = make(path, held_out_size=6)
    held = {str(e.prompt) for e in task.held_out}
    assert len(held) == len(task.held_out) == 6
    assert not held & {str(e.prompt) for e in task.train}
    assert make(path, held_out_size=6).held_out == task.held_out
    assert make(path, held_out_size=6, options={"seed": 1}).held_out != task.held_out


def test_train_size_cuts_and_changes_the_fingerprint(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", *qa(20))
    few = make(path, held_out_size=2, train_size=5)
    assert len(few.train) == 5
    assert few.fingerprint != make(path, held_out_size=2).fingerprint


def test_csv_with_quotes_and_line_breaks_is_read(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text('prompt,answer\n"a, ""b""\nc",1\nd,2\n', encoding="utf-8")
    task = make(path, held_out_size=0)
    assert [e.prompt for e in task.train] == ['a, "b"\nc', "d"]
    assert task.train[1].where.endswith("d.csv:4")


def test_parquet_and_json_are_read_and_columns_that_are_not_json_become_text(
    tmp_path: Path,
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "d.parquet"
    table = pyarrow.table({"prompt": ["a", "b"], "answer": ["1", "2"], "image": [b"x", b"y"]})
    parquet.write_table(table, path)
    task = make(path, held_out_size=0)
    assert [dict(e.columns) for e in task.train] == [
        {"answer": "1", "image": "b'x'"},
        {"answer": "2", "image": "b'y'"},
    ]
    (tmp_path / "d.json").write_text(json.dumps({"data": qa(2)}))
    assert len(make(tmp_path / "d.json", held_out_size=0).train) == 2


def test_a_column_that_some_rows_lack_is_none_there(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", {"prompt": "a", "hint": "h"}, {"prompt": "b"})
    task = make(path, held_out_size=0)
    assert [e.columns["hint"] for e in task.train] == ["h", None]


GOOD = {"prompt": "a", "answer": "1"}
TWICE = '{"prompt": "a", "answer": "1", "prompt": "b"}'
BAD_FILES = [
    ("d.jsonl", [GOOD, '{"prompt": '], "d.jsonl:2: not JSON: Expecting value at column"),
    ("d.jsonl", ["[" + json.dumps(GOOD) + "]"], "d.jsonl:1: a row is an object"),
    ("d.jsonl", ["[{}, ", "{}]"], "name the file .json"),
    ("d.jsonl", [GOOD, {"answer": "1"}], "d.jsonl:2: there is no column 'prompt'; its columns"),
    ("d.jsonl", [{"question": "1"}], "(perhaps question)"),
    ("d.jsonl", [GOOD, {"prompt": " \n"}], "d.jsonl:2: the prompt is empty; fill it or remove"),
    ("d.jsonl", [GOOD, {"prompt": None}], "d.jsonl:2: the prompt is null"),
    ("d.jsonl", [{"prompt": []}], "d.jsonl:1: the prompt is empty (no messages in 'prompt')"),
    ("d.jsonl", [{"prompt": [{"role": "user", "content": ""}]}], "its messages have no text"),
    ("d.jsonl", [{"prompt": ["hi"]}], "message 1 of 'prompt' is 'hi'; a message is"),
    ("d.jsonl", [{"prompt": [{"role": "user"}]}], "message 1 of 'prompt' has no text"),
    ("d.jsonl", [{"prompt": 5}], "column 'prompt' is int; a prompt is text or a list"),
    ("d.jsonl", [""], "d.jsonl has no rows"),
    ("d.csv", ["prompt,answer", "a,1,2"], "d.csv:2: 3 fields where the header has 2"),
    ("d.csv", ["prompt;answer", "1+1=;2"], "separated by commas"),
    ("d.csv", ["prompt,prompt", "a,1"], "the header has 'prompt' more than once"),
    ("d.json", ['{"prompt": 1,}'], "d.json:1: not JSON"),
    ("d.jsonl", [TWICE], "'prompt' is given twice"),
    ("d.json", [f"[{TWICE}]"], "'prompt' is given twice"),
    ("d.txt", ["hello"], "a data file ends in .jsonl"),
    ("d.parquet", ["hello"], "d.parquet is not a readable Parquet file"),
]


@pytest.mark.parametrize(("name", "rows", "message"), BAD_FILES)
def test_a_bad_row_is_named_with_its_file_line_and_remedy(
    tmp_path: Path, name: str, rows: list[Any], message: str
) -> None:
    path = write(tmp_path / name, *rows)
    with pytest.raises(DataError) as caught:
        make(path, held_out_size=0)
    assert message in str(caught.value)


def test_jsonl_that_is_not_utf8_is_an_error_even_where_bad_rows_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff"}\n{"prompt": "b"}\n')
    with pytest.raises(DataError, match=r"d\.jsonl:2: byte 12 \(0xff\) is not UTF-8; save the"):
        load_task(TaskConfig(name=str(tmp_path / "d.jsonl"), bad_rows="skip"))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("missing.jsonl", {}, "there is no file or folder"),
        ("./missing", {}, "there is no file or folder"),
        ("d.jsonl", {"splits": {"held_out": "test"}}, "has no split 'test'; it has train"),
        ("d.jsonl", {"columns": {"answer": "gold"}}, "no column 'gold' (task.columns.answer)"),
        ("d.jsonl", {"options": {"chatt": True}}, "did you mean chat?"),
    ],
)
def test_a_wrong_setting_is_an_error_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, settings: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "d.jsonl", GOOD)
    with pytest.raises(DataError) as caught:
        make(name, **settings)
    assert message in str(caught.value)


def test_an_empty_folder_says_what_it_should_hold(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"it should hold train\.jsonl"):
        make(tmp_path)


def test_the_same_rows_for_both_splits_leave_nothing_to_train_on(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", *qa(2))
    write(tmp_path / "valid.jsonl", *qa(2))
    with pytest.raises(DataError, match="has no training rows left"):
        make(tmp_path)


GSM = {"question": "How many?", "answer": "2 * 36 = <<2*36=72>>72\n#### 1,072"}


def test_gsm8k_reads_a_local_file_and_takes_the_number_after_the_hashes(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", GSM)
    write(tmp_path / "test.jsonl", {**GSM, "question": "And now?"})
    task = make("gsm8k", options={"path": str(tmp_path)})
    (example,) = task.train
    assert example.target == example.columns["answer"] == "1072"
    assert example.prompt == ({"role": "user", "content": "How many?"},)
    assert task.accuracy == "numeric_answer"
    assert len(task.held_out) == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [({"question": "q", "answer": "5"}, "no `####`"), ({"q": "x"}, "this one has q")],
)
def test_gsm8k_names_a_bad_row(tmp_path: Path, row: Any, message: str) -> None:
    path = write(tmp_path / "d.jsonl", row)
    with pytest.raises(DataError, match=r"d\.jsonl:1") as caught:
        make("gsm8k", options={"path": str(path)})
    assert message in str(caught.value)


def test_without_the_package_a_hub_set_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingPackageError) as caught:
        make("gsm8k")
    assert "pip install 'grpo-tui[hub]'" in str(caught.value)
    assert "hf download --repo-type dataset openai/gsm8k" in str(caught.value)


class FakeHub:
    """A fake of the package `datasets`: one data set, and no network for any other."""

    @staticmethod
    def load_dataset(name: str, subset: str | None) -> Any:
        if (name, subset) != ("org/sums", "easy"):
            raise ConnectionError("Couldn't reach the Hub")
        return {"train": qa(3), "validation": qa(1, start=7), "extra": qa(1)}


def test_a_hub_set_is_read_by_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", FakeHub)
    task = make("org/sums:easy")
    assert (len(task.train), len(task.held_out)) == (3, 1)
    with pytest.raises(DataError, match="neither on the hub nor in the cache") as caught:
        make("org/other")
    assert "arithmetic, countdown, reasoning-gym:gsm_symbolic" in str(caught.value)
