"""Settings: one tree, read from YAML and `--set`; errors name the value and the remedy."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from grpo_engine.config.aliases import MEANT
from grpo_engine.config.parse import (
    build,
    merge,
    parse_sets,
    problems,
    read_yaml,
    settings,
    write_yaml,
)
from grpo_engine.errors import ConfigError


def test_what_is_no_option_of_a_rule_is_refused_among_them() -> None:
    with pytest.raises(ConfigError, match=r"clip_low is no option; it is algorithm\.clip_low"):
        build({"algorithm": {"options": {"clip_low": 0.1}}})
    with pytest.raises(ConfigError, match="no option 'lamb'; did you mean lam"):
        build({"algorithm": {"options": {"lamb": 0.1}}})
    with pytest.raises(ConfigError, match="lam must be a number ≥ 0 and ≤ 1"):
        build({"algorithm": {"recipe": "ppo", "options": {"lam": 2}}})


def test_a_problem_names_the_settings_that_could_be_changed() -> None:
    assert problems({"rollout": {"prompts": 3}}) == ()
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"rollout": {"temperature": 0}}, {"rollout.temperature"}),
        ({"rewards": {"functions": ["a", 1]}}, {"rewards.functions"}),
        ({"algorithm": {"clip_low": 7}}, {"algorithm.clip_low"}),
        (
            {"algorithm": {"ratio": "none"}},
            {"algorithm.ratio", "algorithm.trust", "algorithm.recipe"},
        ),
        (
            {"algorithm": {"minibatches": 100}},
            {"algorithm.minibatches", "rollout.prompts", "rollout.group_size", "algorithm.recipe"},
        ),
    ]
    for tree, changeable in cases:
        (problem,) = problems(tree)
        assert set(problem.settings) == changeable


def test_set_values_take_the_settings_own_type() -> None:
    tree = parse_sets(
        [
            "seed=3",
            "name=007",
            "optimizer.learning_rate=1e-5",
            "rollout.stop=a,b",
            "algorithm.recipe=dapo",
            "algorithm.clip_high=0.3",
            "task.options.low=2",
        ]
    )
    config = build(tree)
    assert (config.seed, config.name, config.optimizer.learning_rate) == (3, "007", 1e-5)
    assert config.rollout.stop == ("a", "b")
    assert config.algorithm.resolved().clip_high == 0.3
    assert config.task.options == {"low": 2}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rollout.groupsize=4"], "did you mean rollout.group_size"),
        (["seed"], "has no `=`"),
        (["learning_rate=1"], "did you mean optimizer.learning_rate"),
        (["algorithm.iterations=2"], r"; did you mean algorithm\.passes\?"),
        (["epsilon=2"], r"; did you mean algorithm\.clip_low\?"),
        (["algorithm.quux=2"], r"'algorithm\.quux'; `grpo-tui config init --full` lists"),
    ],
)
def test_a_wrong_word_names_the_nearest_setting(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_sets(words)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"rollout": {"group_size": 1}}, "rollout.group_size must be >= 2 .* got 1"),
        ({"rollout": {"temperature": 0}}, "rollout.temperature: must be a number > 0 .* got 0"),
        ({"rolout": {}}, "no setting 'rolout'"),
        ({"algorithm": {"recipe": "gppo"}}, "there is no recipe 'gppo'; did you mean .*grpo"),
        ({"algorithm": {"clip_low": 7}}, "algorithm.clip_low: must be a number ≥ 0 .* got 7"),
        ({"algorithm": {"anchor": "k4"}}, "algorithm.anchor: must be one of none, k1, k2, k3"),
        ({"algorithm": {"ref_mix": 0.5, "ref_refresh_every": 5}}, "needs model.tuning full"),
        ({"rewards": {"functions": ["a"], "weights": [1, 2]}}, "2 values for 1"),
        ({"steps": True}, "steps: must be a whole number ≥ 1 and ≤ 10,000,000 steps, such as"),
        ({"rollout": {"temperature": False}}, "must be a number > 0 and ≤ 10, such as 1; got"),
        ({"algorithm": {"beta": True}}, "beta: must be a number ≥ 0, such as 0.04; got True"),
        ({"algorithm": {"passes": True}}, "must be a whole number ≥ 1, such as 1; got True"),
        ({"name": "@last"}, "name: a name must not begin with @, which marks references"),
        ({"rollout": {"stop": ["a", ""]}}, "rollout.stop: an empty text would end every answer"),
        ({"rollout": {"stop": 1}}, "rollout.stop: must be a list, each item text, such as"),
    ],
)
def test_a_wrong_value_is_refused_in_words(tree: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(tree)


@pytest.mark.parametrize("text", ["-1e12", "0.5", ".nan", ".inf", "abc", "true"])
def test_a_number_is_refused_in_the_words_of_new_run_by_set_and_in_a_file(
    text: str, tmp_path: Path
) -> None:
    file = tmp_path / "c.yaml"
    for path, setting in settings().items():
        if not setting.number:
            continue
        file.write_text(_as_yaml(path, text))
        for tree in (parse_sets([f"{path}={text}"]), read_yaml(file)):
            wrong = [problem for problem in problems(tree) if problem.at.startswith(path)]
            assert bool(wrong) >= (not setting.accepts(text)), path
            for problem in wrong:
                assert f"must be {setting.allowed}, such as " in problem.text


def _as_yaml(path: str, text: str) -> str:
    section, _, name = path.rpartition(".")
    return f"{section}:\n  {name}: {text}\n" if section else f"{name}: {text}\n"


@given(st.text(st.sampled_from("a \n\t:#'\"é\u200b|-"), max_size=12))
@example("two\nlines\n")
@example(" a\n b \n\n")
def test_any_text_comes_back_from_yaml(text: str) -> None:
    config = build({"task": {"system_prompt": text}})
    assert build(yaml.safe_load(write_yaml(config))) == config


def test_every_name_of_another_program_leads_to_a_setting() -> None:
    paths = {".".join(path.split(".")[:2]) for path in MEANT.values()}
    assert paths <= set(settings())


def test_weights_go_with_their_functions_and_options_with_their_task() -> None:
    base = {
        "rewards": {"functions": ["a", "b"], "weights": [1.0, 2.0], "time_limit": 5.0},
        "task": {"name": "countdown", "options": {"numbers": 4}, "held_out_size": 9},
    }
    other = merge(base, {"rewards": {"functions": ["c"]}, "task": {"name": "gsm8k"}})
    assert other["rewards"] == {"functions": ["c"], "time_limit": 5.0}
    assert other["task"] == {"name": "gsm8k", "held_out_size": 9}
    same = merge(base, {"rewards": {"functions": ["a", "b"]}, "task": {"held_out_size": 3}})
    assert same["rewards"] == base["rewards"]
    assert same["task"]["options"] == {"numbers": 4}


def test_a_single_entry_of_a_mapping_leaves_the_others() -> None:
    base = {"task": {"name": "gsm8k", "options": {"prefix": "Q: ", "seed": 1}}}
    one = merge(base, parse_sets(["task.options.seed=2", "task.options.path=x"]))
    assert one["task"]["options"] == {"prefix": "Q: ", "seed": 2, "path": "x"}
    whole = merge(base, parse_sets(["task.options={seed: 2}"]))
    assert whole["task"]["options"] == {"seed": 2}
    other = merge(base, parse_sets(["task.options.low=2", "task.name=arithmetic"]))
    assert other["task"] == {"name": "arithmetic", "options": {"low": 2}}
    assert build(other).task.options == {"low": 2}
