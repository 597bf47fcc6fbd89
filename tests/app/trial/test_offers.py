"""What the trial process says of a task before it can be built, and of errors in users' files."""

from pathlib import Path

from grpo_engine.config.parse import build
from grpo_tui.app.trial.service import Trials, explain


def test_columns_come_with_three_rows_and_options_with_their_defaults(tmp_path: Path) -> None:
    file = tmp_path / "odd.csv"
    file.write_text('Frage,Lösung\n"1 + 1, in words?",two\nb,2\nc,3\nd,4\n', encoding="utf-8")
    reply = Trials().offers(build({"task": {"name": str(file)}}).model_dump(mode="json"))
    assert reply["columns"] == {
        "Frage": ["1 + 1, in words?", "b", "c"],
        "Lösung": ["two", "2", "3"],
    }
    assert reply["options"]["chat"][::2] == ["", True]
    reply = Trials().offers(build({}).model_dump(mode="json"))
    assert reply == {
        "columns": {},
        "options": {"kinds": ["add,subtract,multiply", "Kinds of problems.", False]},
    }


def test_a_function_that_fails_still_names_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("def rows(level=1):\n    return 1 / 0\n")
    config = build({"task": {"name": f"{tmp_path / 't.py'}:rows"}}).model_dump(mode="json")
    reply = Trials().offers(config)
    assert (list(reply["options"]), reply["columns"]) == (["level"], {})


def test_the_special_tokens_of_a_prompt_are_named() -> None:
    reply = Trials().examples(build({}).model_dump(mode="json"))
    example = reply["examples"][0]
    assert "<|im_start|>" in example["special"]
    assert all(token in example["text"] for token in example["special"])


def test_an_error_in_a_users_file_is_said_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def rows():\n    return [lvl]\n")
    config = build({"task": {"name": f"{file}:rows"}}).model_dump(mode="json")
    ((setting, text),) = Trials().ready(config)["problems"]
    assert setting == "task.name"
    assert text.endswith(f"name 'lvl' is not defined (at {file}:2: return [lvl])")
    assert explain(ValueError("x"), "task.name") == ("task.name", "task.name: ValueError: x")
