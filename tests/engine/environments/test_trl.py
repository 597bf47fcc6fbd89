"""Tools and environments as TRL's documentation writes them; loss and gradient as TRL's own."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from grpo_engine.config.settings import TaskConfig
from grpo_engine.environments.adapters import ToolEpisodes
from grpo_engine.events import Event, GroupScored, StepFinished
from grpo_engine.rollouts.prompts import PromptRenderer
from grpo_engine.rollouts.replies import reply_tokens
from grpo_engine.tasks.base import Example, Task
from tests.engine.environments.trl_files import END, TOOLS, write_qwen
from tests.engine.runs import completed, of, settings, write_world
from tests.smollm2 import model_folder

DATA = Path(__file__).parent / "data" / "trl_tools.npz"
STOPS = ["a", "e", "i", "o", "u", " ", "1", "2", "3"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_world(tmp_path_factory.mktemp("trl"))
    (folder / "trl_tools.py").write_text(TOOLS)
    write_qwen(folder / "qwen")
    with (folder / "mixed.jsonl").open("w") as file:
        for number in range(40):
            row = {"prompt": [{"role": "user", "content": f"say {number}"}], "answer": str(number)}
            file.write(json.dumps({**row, "environment": ("counter", "echo")[number % 2]}) + "\n")
    return folder


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def run(
    world: Path, folder: Path, prefill: str, model: Path | None = None, **changes: Any
) -> list[Event]:
    """One step; a random model calls no tool, so that each answer begins with calls."""
    file = f"{world}/trl_tools.py"
    task = {
        "name": str(world / "mixed.jsonl"),
        "held_out_size": 4,
        "max_turns": 2,
        "tools": [f"{file}:multiply", f"{file}:later", f"{file}:query"],
        "prefill": prefill,
    }
    config = settings(
        world,
        steps=1,
        model={"path": str(model or world / "qwen"), "lora_rank": 4},
        task={**task, **changes.pop("task", {})},
        rewards={"functions": [f"{file}:reward_func", f"{file}:called"]},
        rollout={"stop": STOPS, "max_new_tokens": 24, **changes.pop("rollout", {})},
        evaluation={"problems": 1, "pinned": 0},
        **changes,
    )
    return completed(config, folder)


def groups(events: list[Event]) -> list[GroupScored]:
    return [e for e in of(GroupScored, events) if e.group.origin == "train"]


def check_tools(events: list[Event]) -> None:
    """Two arguments each of `multiply` and `later`, one of `query`: 5; three results: + 30."""
    called = [one for event in groups(events) for one in event.group.rollouts if len(one.spans) > 1]
    assert called
    for one in called:
        values = {reward.name: reward.value for reward in one.rewards}
        assert values["called"] == 35.0
    assert any("⚙ query(select) → [(6, 'row')]" in one.text for one in called)
    assert any("→ 42" in one.text and "→ 13" in one.text for one in called)
    metrics = next(event.metrics for event in of(StepFinished, events))
    assert metrics["tools/failure_frequency"] == 0


THREE = call("multiply", a=6, b=7) + call("later", a=6, b=7) + call("query", sql="select")


@pytest.mark.slow
@pytest.mark.parametrize("template_has_tools", [True, False])
def test_documented_tools_run_with_qwens_template_and_with_one_that_has_none(
    world: Path, tmp_path: Path, template_has_tools: bool
) -> None:
    if template_has_tools:
        events = run(world, tmp_path, THREE)
    else:
        rollout = {"prompts": 1, "group_size": 2, "stop": ["\n", "."]}
        events = run(world, tmp_path, THREE, model_folder(), rollout=rollout)
    check_tools(events)
    prompt = groups(events)[0].group.prompt_text
    assert prompt.startswith("<|im_start|>system\nYou are Qwen") == template_has_tools
    assert ("<tools>\n" in prompt) == template_has_tools
    assert ("You can call the tools below." in prompt) != template_has_tools


@pytest.mark.slow
def test_a_row_chooses_its_environment_and_is_offered_its_tools_alone(
    world: Path, tmp_path: Path
) -> None:
    """`reset` gets all columns but the one that chooses, as in TRL."""
    file = f"{world}/trl_tools.py"
    specs = {"counter": f"{file}:Counter", "echo": f"{file}:Echo"}
    both = call("increment", step=3) + call("increment", step=1) + call("echo", message="hello")
    events = run(world, tmp_path, both, task={"environment": specs})
    seen = set()
    for event in groups(events):
        number = int(event.group.example_key.removeprefix("train-"))
        name, own, other = (("Counter", "increment", "echo"), ("Echo", "echo", "increment"))[
            number % 2
        ]
        assert f'"name": "{own}", "description"' in event.group.prompt_text
        assert f'"name": "{other}", "description"' not in event.group.prompt_text
        assert ("Count up." in event.group.prompt_text) == (name == "Counter")
        for one in event.group.rollouts:
            assert one.finish != "environment_error", one.spans
            if len(one.spans) == 1:
                continue
            seen.add(name)
            values = {reward.name: reward.value for reward in one.rewards}
            if name == "Counter":  # the second call raises, since the game is over
                assert values["reward_func"] == 3.0
                assert "Game over." in one.text
            else:
                assert values["Echo"] == len("hello")
            assert "there is no tool" in one.text
    assert seen


@pytest.mark.parametrize("texts", [["42"], ["42", "13"]], ids=["one result", "two"])
def test_the_tokens_after_a_call_are_those_of_trl(world: Path, texts: list[str]) -> None:
    stored = np.load(DATA)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(world / "qwen")
    task = Task(name="t", description="", train=(), held_out=(), fingerprint="")
    render = PromptRenderer(tokenizer, task, TaskConfig(), model="qwen")
    tools = json.loads(str(stored["tools"]))
    render = render.with_tools(tools)
    made = reply_tokens(render, frozenset({END}), is_plain=False, uses_tools=True)
    messages = [{"role": "tool", "name": "multiply", "content": text} for text in texts]
    assert list(made(messages)) == stored[f"suffix:{len(texts)}"].tolist()
    question = Example(key="q", prompt=({"role": "user", "content": "6 * 7?"},))
    assert render(question).text == str(stored["prompt"])


def test_a_tool_that_raises_without_a_word_has_failed_and_its_result_is_as_trl_writes_it() -> None:
    def silent() -> None:
        raise ValueError

    episodes = ToolEpisodes(lambda function, **arguments: function(**arguments), {"silent": silent})
    (done,) = episodes.step(call("silent"))["calls"]
    assert done["failed"]
    assert done["result"] == str({"error": ""})
