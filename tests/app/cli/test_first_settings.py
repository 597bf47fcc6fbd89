"""What settings begin with where neither a preset nor a file is named."""

import json
from pathlib import Path

import pytest

from grpo_engine.api.settings import settings_of
from grpo_engine.config.parse import build, parse_sets
from grpo_engine.config.safe_yaml import parse_yaml
from grpo_engine.config.settings import RunConfig
from grpo_engine.presets import preset
from grpo_tui.app import exit_codes
from tests.app.calls import Cli

STARTER = "settings: preset starter, as no file, model, task or rewards are named\n"
OF_ONES_OWN = (
    "model.path=starter-guess",
    "task.name=rows.jsonl",
    'task.tools=["tools.py:population"]',
    "task.environment=counter.py:Counter",
    'rewards.functions=["judge:rubric.yaml"]',
)


def test_a_run_that_names_nothing_of_its_own_begins_with_the_starter(
    cli: Cli, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    made = cli("config", "init", "--set", "rollout.prompts=4", "--set", "task.held_out_size=9")
    config = build(parse_yaml(made.out))
    starter = preset("starter").config
    assert (config.rewards, config.optimizer) == (starter.rewards, starter.optimizer)
    assert (config.rollout.prompts, config.task.held_out_size) == (4, 9)
    assert made.err == STARTER
    in_python, _ = settings_of(None, None, {"rollout.prompts": 4, "task.held_out_size": 9})
    assert in_python == config
    assert capfdbinary.readouterr().err.decode() == STARTER


@pytest.mark.parametrize("change", OF_ONES_OWN)
def test_a_run_of_ones_own_begins_with_the_defaults(
    cli: Cli, capfdbinary: pytest.CaptureFixture[bytes], change: str
) -> None:
    made = cli("config", "init", "--set", change, "--set", "steps=3")
    config = build(parse_yaml(made.out))
    assert config == build(parse_sets([change, "steps=3"]))
    assert (config.rollout, config.optimizer) == (RunConfig().rollout, RunConfig().optimizer)
    path, _, value = change.partition("=")
    assert made.err == f"settings: the defaults, as {path} is set and no preset is named\n"
    in_python, _ = settings_of(None, None, {path: parse_yaml(value), "steps": 3})
    assert in_python == config
    assert capfdbinary.readouterr().err == b""  # as Python has it anyway


@pytest.mark.parametrize("verb", ["train", "sweep"])
def test_the_preset_is_said_in_the_first_line_and_not_where_one_is_named(
    cli: Cli, tmp_path: Path, verb: str
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("steps: 3")
    wrong = ("--set", "optimizer.weight_decay=9")
    refused = cli(verb, *wrong)
    assert refused.code == exit_codes.USAGE
    assert refused.err.startswith(STARTER)
    for words in (("--preset", "starter"), (str(file),)):
        assert cli(verb, *words, *wrong).err.startswith("grpo-tui: ")


def test_a_file_made_from_trl_does_not_train_the_starter(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "trl.yaml").write_text("{beta: 0.1, max_steps: 3}")
    made = cli("config", "init", str(tmp_path / "a.yaml"), "--from-trl", str(tmp_path / "trl.yaml"))
    assert "the model is an argument in TRL: set model.path" in made.err
    refused = cli("train", str(tmp_path / "a.yaml"))
    assert refused.code == exit_codes.USAGE
    assert "model.path MODEL is no folder; give starter," in refused.err


def test_each_setting_is_shown_with_its_source(cli: Cli, tmp_path: Path) -> None:
    base, mine = tmp_path / "base.yaml", tmp_path / "mine.yaml"
    base.write_text("extends: starter\nsteps: 9\nname: red\u202e")
    mine.write_text("extends: base.yaml\nrollout: {prompts: 3}")
    rows = json.loads(cli("config", "show", str(mine), "--set", "seed=4", "--json").out)
    assert {row["setting"]: (row["value"], row["from"]) for row in rows}.items() >= {
        "steps": (9, str(base)),
        "rollout.prompts": (3, str(mine)),
        "rollout.group_size": (8, "preset starter"),
        "seed": (4, "the command line"),
    }.items()
    assert len(json.loads(cli("config", "show", str(mine), "--full", "--json").out)) > 100
    assert "\u202e" not in cli("config", "show", str(mine)).out
    assert json.loads(cli("config", "show", "--set", "seed=4", "--json").out)[0]["from"] == (
        "preset starter"
    )
