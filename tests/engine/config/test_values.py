"""What a text becomes as a setting's value, wherever it is written, and what is refused."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_engine.config.declaration import as_text
from grpo_engine.config.parse import (
    build,
    merge,
    parse_sets,
    problems,
    read_yaml,
    settings,
    write_yaml,
)
from grpo_engine.config.safe_json import parse_json
from grpo_engine.config.safe_yaml import parse_yaml
from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import ConfigError, quoted, shortened
from grpo_tui.app.tui.screens.new_run.state import RunForm

LISTS = ("task.tools", "rewards.functions", "model.lora_keys", "rollout.stop")
TOOLS = ["tools.py:population", "tools.py:area"]


def _file(folder: Path, path: str, text: str) -> dict[str, Any]:
    section, _, name = path.partition(".")
    file = folder / "c.yaml"
    file.write_text(f"{section}:\n  {name}: {text}\n", encoding="utf-8")
    return read_yaml(file)


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize(
    "text",
    [
        '["tools.py:population", "tools.py:area"]',
        "[tools.py:population, tools.py:area]",
        "tools.py:population,tools.py:area",
        "tools.py:population, tools.py:area",
        "['tools.py:population', 'tools.py:area']",
    ],
)
def test_a_list_has_the_same_forms_on_the_command_line_in_a_file_and_in_the_form(
    path: str, text: str, tmp_path: Path
) -> None:
    section, _, name = path.partition(".")
    for config in (
        build(parse_sets([f"{path}={text}"])),
        build(_file(tmp_path, path, text)),
        RunForm(RunConfig()).type(path, text).build(),
    ):
        assert list(getattr(getattr(config, section), name)) == TOOLS


@pytest.mark.parametrize("text", ["tools.py:one", '["tools.py:one"]', "[tools.py:one]"])
def test_a_list_of_one_needs_no_brackets(text: str) -> None:
    assert build(parse_sets([f"task.tools={text}"])).task.tools == ("tools.py:one",)


@pytest.mark.parametrize(
    "stop", [["\n"], ["a,b"], ["null"], ["[x]"], ["1:30", "010"], ["'"], [" a "], ["off"], ["1"]]
)
def test_the_form_keeps_a_list_whose_items_need_quotes(stop: list[str]) -> None:
    config = build({"rollout": {"stop": stop}})
    assert build(parse_yaml(write_yaml(RunForm(config).build()))) == config
    assert build(parse_sets([f"rollout.stop={as_text(stop)}"])) == config


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[one, two", "rewards.functions: is no list: .*; write [one, two] or one,two"),
        ("one,,two", "rewards.functions: has an empty item; remove the comma"),
        (
            "[1, 2]",
            "rewards.functions: must be a list, each item text, such as",
        ),
    ],
)
def test_what_is_nearly_a_list_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words).replace(r"\.\*", ".*")):
        build(parse_sets([f"rewards.functions={text}"]))


ODD = (
    "",
    "nan",
    "1e400",
    "1e-400",
    "010",
    "1:30",
    "x",
    "-1",
    "[a",
    "{a: b}",
    "[a, b]",
    "true",
    "null",
    "x" * 5000,
    "9" * 5000,
)


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_a_message_proposes_only_what_is_taken_and_cuts_what_it_repeats(text: str) -> None:
    for path in settings():
        for problem in problems(parse_sets([f"{path}={text}"])):
            assert len(str(problem)) < 500
            proposal = re.search(r"such as ([^;]+?)(?:;|,) got", problem.text)
            if proposal and path != "checkpoint.best_by":
                again = problems(parse_sets([f"{path}={proposal[1]}"]))
                assert not [one for one in again if one.at == path], proposal[1]


@pytest.mark.parametrize("text", ["1e-400", "1.0e400"])
@pytest.mark.parametrize("path", ["steps", "optimizer.learning_rate", "task.options.size"])
def test_a_number_that_no_float_holds_is_refused(path: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        build(parse_sets([f"{path}={text}"]))
    with pytest.raises(yaml.YAMLError, match=f"{re.escape(text)}.*line 1, column 4"):
        parse_yaml(f"a: {text}")
    file = tmp_path / "c.yaml"
    file.write_text(f"name: run\nsteps: {text}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 2, column 8"):
        read_yaml(file)


def test_quotes_do_not_hide_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"learning_rate: .*too small"):
        build(_file(tmp_path, "optimizer.learning_rate", '"1e-400"'))


@pytest.mark.parametrize("text", ["1:30", "0x1f", ".inf", "2026-11-25"])
def test_what_only_other_programs_read_as_a_number_is_text(text: str, tmp_path: Path) -> None:
    assert parse_yaml(f"a: {text}") == {"a": text}
    with pytest.raises(ConfigError, match="learning_rate: must be a number"):
        build(_file(tmp_path, "optimizer.learning_rate", text))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("5e-324", 5e-324),
        ("0", 0),
        ("-0.5", -0.5),
        ("1_000", 1000),
        ("+7", 7),
        ("'010'", "010"),
        ("010", 10),
        ("08", 8),
        ("5.", 5.0),
        (".5", 0.5),
        ("1_0.5e1", 105.0),
        ("0e-400", 0.0),
        ("e5", "e5"),
    ],
)
def test_other_numbers_and_texts_are_what_they_look_like(text: str, value: object) -> None:
    assert parse_yaml(text) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1, "a": 2}', "'a' is given twice"),
        ("[1e-400]", "too small"),
        ("[1e400]", "too large"),
        ("[NaN]", "NaN is no number"),
        (f"[{'9' * 100_000}]", r"\(100,000 characters\) is too long"),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_json_is_refused_for_the_same_reasons(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        parse_json(text)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("text", ["{a: 1, a: 2}", '{"a": 1, "a": 2}'])
def test_a_name_that_is_given_twice_is_refused_on_the_command_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"task\.options: 'a' is given twice"):
        build(parse_sets([f"task.options={text}"]))
    with pytest.raises(ConfigError, match=r"task\.options\.x: 'a' is given twice"):
        parse_sets([f"task.options.x={text}"])


def test_a_mapping_is_taken_where_a_text_may_stand() -> None:
    config = build(parse_sets(["task.environment={maze: maze.py:Maze}"]))
    assert config.task.environment == {"maze": "maze.py:Maze"}


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("true", "on"),
        ("false", "off"),
        ("on", "on"),
        ("off", "off"),
        ("yes", "on"),
        ("no", "off"),
        ("auto", "auto"),
    ],
)
def test_a_setting_that_was_true_or_false_is_read_as_on_or_off(
    text: str, setting: str, tmp_path: Path
) -> None:
    from_file = _file(tmp_path, "model.grad_checkpoint", text)
    for tree in (from_file, parse_sets([f"model.grad_checkpoint={text}"])):
        assert build(tree).model.grad_checkpoint == setting
    stored = {"model": {"grad_checkpoint": text == "true"}}
    assert RunConfig.model_validate(stored).model.grad_checkpoint == ("off", "on")[text == "true"]


def test_functions_in_another_form_keep_their_weights() -> None:
    base = {"rewards": {"functions": ["a", "b"], "weights": [1, 2]}}
    merged = merge(base, {"rewards": {"functions": "a, b"}})
    assert merged["rewards"]["weights"] == [1, 2]


def test_a_long_value_is_cut_in_messages() -> None:
    assert quoted("x" * 100_000) == f"'{'x' * 200}'… (100,000 characters)"
    assert quoted("short") == "'short'"
    assert len(quoted(["x" * 100_000])) < 230
    assert quoted(10**5000) == "a number of thousands of digits"
    assert shortened("x" * 201) == f"{'x' * 200}… (201 characters)"


def test_a_name_has_an_end() -> None:
    with pytest.raises(ConfigError, match=r"at most 500 characters, .*\(100,000 characters\)"):
        build({"name": "x" * 100_000})


def test_a_value_that_is_nested_too_deep_to_be_written_is_named_by_its_type() -> None:
    value: list[object] = []
    for _ in range(5_000):
        value = [value]
    assert quoted(value) == "a list that is nested too deep"
