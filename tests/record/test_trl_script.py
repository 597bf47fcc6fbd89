"""Settings as a script for TRL: what it says, what it runs, and that no text of theirs is code."""

import ast
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from grpo_engine.config.parse import build
from grpo_engine.config.settings import RunConfig
from grpo_engine.config.trl_config import read, translate
from grpo_engine.config.trl_export import ARGUMENTS, values_of
from grpo_engine.errors import ConfigError
from grpo_engine.policy.embedded import EMBEDDED
from grpo_tui import record, trl
from grpo_tui.app import exit_codes
from grpo_tui.trl.script import script
from tests.app.calls import Cli, caller

SMALL = {"name": "small", "steps": 2, "evaluation": {"problems": 3}}
LINES = st.one_of(
    st.text(),
    st.sampled_from(
        [
            "'",
            '"',
            "\\",
            "\n",
            "'''",
            '"""',
            "\\'); import os\n#",
            "\u2028x",
            "\x85import os",
            "\ud800",
        ]
    ),
).flatmap(lambda text: st.sampled_from([text, f"a{text}", f"{text}b", f"{text}{text}"]))


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Cli:
    monkeypatch.setenv("GRPO_TUI_DB", str(tmp_path / "s.db"))
    return caller(monkeypatch, capfdbinary)


def outline(text: str) -> str:
    """The statements of a script without its texts."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


def hostile(text: str) -> RunConfig:
    return build(
        {
            "name": text,
            "model": {"path": f"m{text}", "adapter": text, "lora_keys": [text]},
            "task": {
                "name": f"t{text}",
                "system_prompt": text,
                "options": {text: [text]},
                "tools": [text],
            },
            "rewards": {"functions": [f"f{text}"], "options": {text: {text: text}}},
            "rollout": {"stop": [text]},
            "teacher": {"path": text},
        }
    )


@settings(deadline=None, max_examples=60)
@given(LINES)
def test_no_text_of_the_settings_is_code(text: str) -> None:
    assume(text.strip())
    try:
        config, tame = hostile(text), hostile("x")
    except ConfigError:
        assume(False)
    written = script(config)
    assert written.isascii()
    assert outline(written) == outline(script(tame))
    constants = {n.value for n in ast.walk(ast.parse(written)) if isinstance(n, ast.Constant)}
    assert {config.name, config.model.path, config.task.system_prompt} <= constants


@pytest.mark.parametrize("recipe", ["grpo", "gspo", "cispo", "sapo", "vespo", "bnpo", "ppo"])
def test_the_written_settings_are_read_back_from_the_script(tmp_path: Path, recipe: str) -> None:
    config = build({**SMALL, "algorithm": {"recipe": recipe}})
    (tmp_path / "a.py").write_text(script(config))
    values = {n: v for n, v in values_of(config).items() if n not in (*ARGUMENTS, "reward_weights")}
    expected = translate(values)[0]
    assert translate(read(tmp_path / "a.py"))[0] == expected


def test_what_has_no_equivalent_is_a_comment() -> None:
    tree = {
        "algorithm": {"recipe": "dapo"},
        "task": {"tools": ["a.py:f"]},
        "stop_when": "entropy > 1",
    }
    notes = [line for line in script(build(tree)).splitlines() if line.startswith("# ")][1:]
    assert notes == [
        '# stop_when = "entropy > 1": no equivalent in TRL, which has ""',
        '# task.tools = ["a.py:f"]: give the functions to GRPOTrainer as tools',
        "# evaluation.greedy = true: TRL samples the answers of its evaluations",
        "# algorithm.refill_rounds = 4: no equivalent in TRL, which has 0",
        "# algorithm.overlong_buffer = 0.2: no equivalent in TRL, which has 0.0",
        "# bf16 = True: mixed precision, faster on a GPU, which grpo-tui does not have",
    ]


def run(file: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the script hands to TRL, which is not there."""
    given = SimpleNamespace(trained=0, watched=None)

    class Trainer:
        def __init__(self, **options: Any) -> None:
            given.__dict__.update(options)

        def train(self) -> None:
            given.trained += 1

    def watch(_: Trainer, name: str, **options: Any) -> None:
        given.watched = (name, options)

    monkeypatch.setattr(trl, "watch", watch)
    dataset = SimpleNamespace(from_list=lambda rows: rows)
    arguments = SimpleNamespace(GRPOConfig=lambda **v: SimpleNamespace(**v), GRPOTrainer=Trainer)
    adapters = SimpleNamespace(LoraConfig=lambda **values: values)
    modules = {"datasets": SimpleNamespace(Dataset=dataset), "trl": arguments, "peft": adapters}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    runpy.run_path(str(file))
    return given


def test_the_script_hands_the_problems_and_the_rewards_to_trl(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "train.py"
    (tmp_path / "a.yaml").write_text("{name: small, steps: 2, evaluation: {problems: 3}}")
    made = cli("config", "export", str(tmp_path / "a.yaml"), str(file), "--to", "trl")
    assert made.err == f"wrote {file}\n"
    given = run(file, monkeypatch)
    assert (given.trained, given.model) == (1, str(EMBEDDED["starter"]))
    assert given.peft_config == {"r": 8, "lora_alpha": 16.0, "target_modules": "all-linear"}
    name, options = given.watched
    assert (name, options["accuracy"]) == ("small", "numeric_answer >= 1.0")
    assert given.args.reward_weights == [1.0, 1.0]
    assert len(given.eval_dataset) == 3
    row = given.train_dataset[0]
    assert row["grpo_tui_key"] == f"arithmetic {row['prompt'][0]['content'].split('out ')[1][:-1]}"
    numeric, form = given.reward_funcs
    assert [numeric.__name__, form.__name__] == ["numeric_answer", "format_all"]
    answer = [{"role": "assistant", "content": f"<answer>{row['answer']}</answer>"}]
    columns = {column: [row[column]] for column in row if column != "prompt"}
    scored = numeric(prompts=[row["prompt"]], completions=[answer], trainer_state=None, **columns)
    assert scored == [1.0]


def test_settings_of_a_run_and_of_another_trainers_are_written(cli: Cli, tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    given = {"algorithm.beta": 0.3, "their.own": 1}
    with record.run("theirs", trainer="loop", settings=given, steps=7, store=store):
        pass
    made = cli("config", "export", "theirs", "--set", "seed=5")
    assert "    beta=0.3,\n" in made.out
    assert "    seed=5,\n" in made.out
    (tmp_path / "a.py").write_text("")
    refused = cli("config", "export", "theirs", str(tmp_path / "a.py"))
    assert (refused.code, (tmp_path / "a.py").read_text()) == (exit_codes.USAGE, "")
    assert "a.py already exists; use --force to overwrite it" in refused.err
    with record.run("bare", trainer="loop", store=store):
        pass
    assert (
        "without settings of an algorithm; give a YAML file" in cli("config", "export", "bare").err
    )


def test_functions_get_their_options_and_texts_and_no_columns_that_they_lack(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text(
        "def plus(completions, more=0):\n    return [len(text) + more for text in completions]\n"
    )
    name = f"{tmp_path / 'mine.py'}:plus"
    rewards = {"functions": [name], "options": {"plus": {"more": 5}}, "completions": "text"}
    data = trl.problems({"task": {"name": "arithmetic"}, "rewards": rewards})
    answers = [[{"role": "assistant", "content": "abc"}]]
    (function,) = data.functions
    assert function(prompts=["p"], completions=answers, answer=["1"]) == [8]
    assert (function.__name__, data.accuracy) == ("plus", "")
