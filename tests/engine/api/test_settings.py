"""Keywords as settings: equal to YAML, objects by name, and what cannot be a setting."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine import recipe
from grpo_engine.api.settings import importable, name_object, settings_of
from grpo_engine.config.parse import flatten
from grpo_engine.config.settings import ModelConfig, RemoteConfig, RunConfig
from grpo_engine.environments.calculator import calculator
from grpo_engine.environments.guess import Guess
from grpo_engine.errors import ConfigError
from grpo_engine.presets import names as presets
from grpo_engine.presets import starting_preset
from grpo_engine.rewards.shape import length
from grpo_engine.run.user_objects import UserObjects
from grpo_engine.tasks.base import Example, Task
from grpo_tui.app.cli.run_config import assemble

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "name": st.sampled_from(["", "calm otter"]),
    "seed": st.integers(0, 99),
    "steps": st.integers(1, 99),
    "model.path": st.sampled_from(["starter", "org/model"]),
    "model.lora_rank": st.integers(1, 64),
    "task.name": st.sampled_from(["countdown", "data.jsonl"]),
    "task.held_out_size": st.integers(0, 99),
    "task.options": st.dictionaries(st.sampled_from("ab"), st.integers()),
    "rewards.functions": st.just(["format_all", "length"]),
    "rewards.time_limit": st.floats(1, 9),
    "rollout.prompts": st.integers(4, 9),
    "rollout.stop": st.lists(st.sampled_from(["\n", "end"])),
    "algorithm.recipe": st.sampled_from(["grpo", "ppo", "cispo"]),
    "algorithm.beta": st.floats(0.01, 1),
    "optimizer.learning_rate": st.floats(0, 1),
    "evaluation.greedy": st.booleans(),
}
SETTINGS = st.fixed_dictionaries({}, optional=VALUES)


def of_keywords(keywords: dict[str, Any]) -> tuple[RunConfig, UserObjects]:
    return settings_of(None, None, keywords)


def nested(settings: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in settings.items():
        section, _, name = path.partition(".")
        if name:
            tree.setdefault(section, {})[name] = value
        else:
            tree[section] = value
    return tree


@given(SETTINGS, st.none() | st.sampled_from(presets()))
def test_keywords_mean_what_the_same_settings_mean_in_a_yaml_file(
    tmp_path_factory: pytest.TempPathFactory, settings: dict[str, Any], preset: str | None
) -> None:
    file = tmp_path_factory.mktemp("yaml") / "config.yaml"
    file.write_text(yaml.safe_dump(nested(settings)))
    wanted = assemble(file, preset, [])
    begun = assemble(file, preset or starting_preset(nested(settings))[0], [])
    assert settings_of(None, preset, settings)[0] == begun
    assert settings_of(None, preset, nested(settings))[0] == begun
    assert settings_of(nested(settings), preset, {})[0] == wanted
    assert settings_of(file, preset, {})[0] == wanted


def test_keywords_are_over_the_configuration_which_is_over_the_preset() -> None:
    config = RunConfig(steps=7, seed=3)
    made, _ = settings_of(config, "starter", {"seed": 4, "rollout": {"group_size": 2}})
    # 16 prompts come from the preset, 7 steps from the configuration
    assert (made.rollout.prompts, made.rollout.group_size) == (16, 2)
    assert (made.steps, made.seed, made.name) == (7, 4, "starter")


def test_a_nested_section_and_a_dotted_path_are_both_taken() -> None:
    options = {"low": 1}
    made, _ = of_keywords(
        {"task": {"options": options}, "task.options.high": 9, "task.train_size": 5}
    )
    assert made.task.options == {"low": 1, "high": 9}
    assert (made.task.train_size, options) == (5, {"low": 1})


def test_a_dotted_path_is_over_the_same_setting_in_a_section() -> None:
    made, _ = of_keywords({"rollout.prompts": 9, "rollout": {"prompts": 4}})
    assert made.rollout.prompts == 9


@pytest.mark.parametrize(
    ("given", "path", "value"),
    [
        ({"model": "org/model"}, "model.path", "org/model"),
        ({"model": Path("/models/mine")}, "model.path", "/models/mine"),
        ({"model": ModelConfig(lora_rank=3)}, "model.lora_rank", 3),
        ({"task": "gsm8k"}, "task.name", "gsm8k"),
        ({"rewards": "length"}, "rewards.functions", ["length"]),
        ({"rewards": ["length", "format_all"]}, "rewards.functions", ["length", "format_all"]),
        ({"algorithm": "dapo"}, "algorithm.recipe", "dapo"),
        ({"algorithm": recipe("dapo", clip_high=0.3)}, "algorithm.clip_high", 0.3),
    ],
)
def test_a_section_has_a_short_form(given: dict[str, Any], path: str, value: Any) -> None:
    assert flatten(of_keywords(given)[0])[path] == value


@pytest.mark.parametrize("preset", [None, "starter"])
def test_a_recipe_with_changes_is_the_algorithm_of_the_run(preset: str | None) -> None:
    made = recipe("dapo", clip_high=0.3, beta=0.01)
    config, _ = settings_of(None, preset, {"algorithm": made})
    assert config.algorithm.resolved() == made


def test_a_misspelt_setting_names_the_right_one() -> None:
    with pytest.raises(ConfigError, match=r"did you mean rollout\.group_size"):
        of_keywords({"rollout.group_sise": 4})
    with pytest.raises(ConfigError, match="there is no setting 'stepz'; did you mean steps"):
        of_keywords({"stepz": 4})


# -- objects ----------------------------------------------------------------------------------


def local(completions: list[str], **_: Any) -> list[float]:
    return [float(len(text)) for text in completions]


def test_a_function_that_a_new_interpreter_finds_keeps_its_module_as_its_name() -> None:
    config, given = of_keywords({"rewards": [length, "format_all"]})
    assert config.rewards.functions == ("grpo_engine.rewards.shape:length", "format_all")
    assert not given.rewards


def test_a_module_of_the_working_folder_is_named_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_rewards_7.py").write_text("def one(completions, **_): return []\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    one = __import__("my_rewards_7").one
    assert importable(one) == f"{tmp_path.resolve()}/my_rewards_7.py:one"
    monkeypatch.delitem(sys.modules, "my_rewards_7")
    assert importable(one) == ""  # what is not a module's any more


def test_a_script_is_not_run_again_for_its_functions(tmp_path: Path) -> None:
    file = tmp_path / "script_7.py"
    file.write_text(
        "from grpo_engine.api.settings import importable\n"
        "def one(completions, **_): return []\n"
        "print([importable(one)])\n"
    )
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout == "['']\n", done.stderr


def test_functions_that_nobody_else_can_import_are_given_under_distinct_names() -> None:
    def inner(completions: list[str], **_: Any) -> list[float]:
        return [0.0] * len(completions)

    class Judge:
        def __call__(self, completions: list[str], **_: Any) -> list[float]:
            return [0.0] * len(completions)

    one, two, judge = inner, (lambda completions: [0.0] * len(completions)), Judge()
    config, given = of_keywords({"rewards": [one, two, two, judge]})
    names = ("python:inner", "python:lambda", "python:lambda_2", "python:Judge")
    assert config.rewards.functions == names
    assert dict(given.rewards) == dict(zip(names, (one, two, two, judge), strict=True))


def test_what_functions_get_does_not_depend_on_how_they_are_named() -> None:
    for rewards in ([local], ["length"]):
        config, _ = of_keywords({"task": "arithmetic", "rewards": rewards})
        assert config.rewards.completions == "auto"


def test_rows_a_task_and_a_function_are_given_under_their_own_name() -> None:
    def mine() -> list[dict[str, str]]:
        return [{"prompt": "a"}]

    task = Task(name="sums", train=(Example(key="1", prompt="1+1="),))
    for source, name in ((mine, "mine"), (task, "sums"), ([{"prompt": "a"}], "rows")):
        config, given = of_keywords({"task": source})
        assert config.task.name == f"python:{name}"
        assert given.task == source


def test_rows_of_a_generator_are_kept_for_a_second_reading() -> None:
    _, given = of_keywords({"task": ({"prompt": str(n)} for n in range(2))})
    assert given.task == [{"prompt": "0"}, {"prompt": "1"}]


def test_rows_by_split_are_no_settings() -> None:
    splits = {"train": [{"prompt": "a"}], "test": [{"prompt": "b"}]}
    config, given = of_keywords({"task": splits})
    assert (config.task.name, given.task) == ("python:rows", splits)


def test_what_is_no_task_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="task must be a name, a Task, a function or rows, got int"
    ):
        of_keywords({"task": 7})


def test_a_function_that_is_given_again_keeps_its_name_though_it_can_be_imported_by_then() -> None:
    functions: dict[str, Any] = {}
    assert name_object(length, functions, replace=True) == "python:length"
    assert functions == {"python:length": length}


class Local:
    """An environment of this file, which no other process can import."""

    def step(self, answer: str) -> None:
        """Nothing."""


def test_tools_and_environments_are_named_as_rewards_are() -> None:
    local = Local()
    config, given = of_keywords({"tools": [calculator, len, local.step], "environment": Guess})
    path = "grpo_engine.environments"
    assert config.task.environment == f"{path}.guess:Guess"
    assert config.task.tools[0] == f"{path}.calculator:calculator"
    # a built-in function has no source file, and a method belongs to an object of this process
    assert dict(given.environments) == {"python:len": len, "python:step": local.step}
    assert config.task.tools[1:] == ("python:len", "python:step")


def test_a_name_a_tool_alone_and_classes_by_name_are_taken() -> None:
    made, _ = of_keywords({"tools": calculator, "task": "gsm8k", "environment": None})
    assert made.task.tools == ("grpo_engine.environments.calculator:calculator",)
    assert (made.task.name, made.task.environment) == ("gsm8k", "")
    instance = Local()
    config, given = of_keywords(
        {"task": {"environment": {"a": Guess, "b": instance, "c": "c.py:C"}}}
    )
    assert config.task.environment == {
        "a": "grpo_engine.environments.guess:Guess",
        "b": "python:Local",
        "c": "c.py:C",
    }
    assert given.environments == {"python:Local": instance}


def test_a_server_is_given_by_its_address_or_with_the_settings_beside_it() -> None:
    url = "http://localhost:8000"
    config, _ = settings_of(None, None, {"model": "org/model", "remote": url})
    assert (config.remote.url, config.remote.model) == (url, "")
    beside = {"url": url, "model": "name", "key_env": "MY_KEY"}
    for keywords in (
        {"remote": beside},
        {"remote": RemoteConfig(**beside)},
        {"remote": url, "remote.model": "name", "remote.key_env": "MY_KEY"},
    ):
        config, _ = settings_of(None, None, {"model": "org/model", **keywords})
        assert config.remote == RemoteConfig(**beside)
    with pytest.raises(ConfigError, match=r"algorithm\.signal cannot be used with remote\.url"):
        settings_of(None, None, {"model": "org/model", "remote": url, "algorithm": "ppo"})
