"""Tools and environments as TRL's documentation writes them; loss and gradient as TRL's own."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from grpo_engine.config.parse import build
from grpo_engine.config.settings import ModelConfig, RolloutConfig, TaskConfig
from grpo_engine.config.trl_config import translate
from grpo_engine.environments.adapters import ToolEpisodes
from grpo_engine.events import Event, GroupScored, RunFinished, StepFinished
from grpo_engine.maths.advantage import advantages
from grpo_engine.maths.weight import totals_of
from grpo_engine.policy.batch import make_batch
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.trees import flatten
from grpo_engine.rewards.right import Right
from grpo_engine.rewards.scoring import Scores
from grpo_engine.rollouts.prompts import PromptRenderer
from grpo_engine.rollouts.replies import reply_tokens
from grpo_engine.rollouts.types import Trajectory
from grpo_engine.run.local import gradient
from grpo_engine.tasks.base import Example, Task
from grpo_engine.training.loss import LossInputs, loss, reads_of
from grpo_engine.training.samples import Experience, OldScores, SampledGroup, gather
from tests.engine.environments.trl_files import END, TOOLS, write_qwen
from tests.engine.runs import events_of, settings, write_world
from tests.smollm2 import model_folder

DATA = Path(__file__).parent / "data" / "trl_tools.npz"
STOPS = ["a", "e", "i", "o", "u", " ", "1", "2", "3"]
CASES: list[dict[str, Any]] = [
    {"loss_type": "dapo", "beta": 0.0},
    {"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": False},
    {"loss_type": "dr_grpo", "beta": 0.0, "epsilon_high": 0.28},
]


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
    events = events_of(config, folder)
    assert isinstance(events[-1], RunFinished), events[-1]
    return events


def groups(events: list[Event]) -> list[GroupScored]:
    return [e for e in events if isinstance(e, GroupScored) and e.group.origin == "train"]


def check_tools(events: list[Event]) -> None:
    """Two arguments each of `multiply` and `later`, one of `query`: 5; three results: + 30."""
    called = [one for event in groups(events) for one in event.group.rollouts if len(one.spans) > 1]
    assert called
    for one in called:
        values = {reward.name: reward.value for reward in one.rewards}
        assert values["called"] == 35.0
    assert any("⚙ query(select) → [(6, 'row')]" in one.text for one in called)
    assert any("→ 42" in one.text and "→ 13" in one.text for one in called)
    metrics = next(event.metrics for event in events if isinstance(event, StepFinished))
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


def rollouts(stored: Any) -> list[Trajectory]:
    """The dialogues of the file; two of each prompt."""
    found = []
    for row, length in enumerate(stored["lengths"]):
        forced = np.flatnonzero(stored["tool_mask"][row, :length] == 0)
        prompt = stored["prompts"][row]
        found.append(
            Trajectory(
                key=str(row // 2),
                group=row // 2,
                index=row % 2,
                attempt=0,
                prompt_ids=tuple(prompt[prompt >= 0].tolist()),
                ids=tuple(stored["ids"][row, :length].tolist()),
                logprobs=tuple(stored["old"][row, :length].tolist()),
                raw_logprobs=tuple(stored["old"][row, :length].tolist()),
                finish="stop",
                text="",
                forced=tuple(forced.tolist()),
            )
        )
    return found


def experience_of(stored: Any, how: Any) -> Experience:
    made = rollouts(stored)
    scores = Scores(rewards=((), ()))
    pairs = [
        SampledGroup(
            index=place,
            example=Example(key=str(place), prompt=""),
            prompt_ids=(),
            prompt_text="",
            attempt=0,
            rollouts=made[2 * place : 2 * place + 2],
            scores=scores,
            right=Right(""),
            format="",
        )
        for place in range(len(made) // 2)
    ]
    values = stored["advantages"]
    made_up = advantages([[0.0]] * len(values), [0] * len(values), how)
    return Experience(
        samples=gather(pairs, how),
        old=OldScores(
            logprobs_BT=mx.array(stored["old"]), reference_logprobs_BT=mx.array(stored["ref"])
        ),
        advantages=replace(made_up, values=mx.array(values)),
        trained_rows=list(range(len(made))),
    )


@pytest.mark.parametrize("number", range(len(CASES)))
def test_loss_and_gradient_of_dialogues_with_tools_are_those_of_trl(
    tmp_path: Path, number: int
) -> None:
    """All weights of the model by `_compute_loss` with `tool_mask`, to 1e-5 of the largest."""
    stored = np.load(DATA)
    assert 0 < stored["tool_mask"].sum() < stored["tool_mask"].size
    folder = write_qwen(tmp_path)
    weights = {
        name.removeprefix("weight:"): mx.array(stored[name])
        for name in stored.files
        if name.startswith("weight:")
    }
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    policy = load_policy(ModelConfig(path=str(folder), tuning="full"), seed=0)
    tree, _ = translate(CASES[number])
    how = build({"algorithm": tree["algorithm"]}).algorithm.resolved()
    experience = experience_of(stored, how)
    samples = experience.samples
    assert samples.mask_BT.tolist() == stored["tool_mask"].tolist()
    inputs = LossInputs(
        experience=experience,
        recipe=how,
        targets=None,
        rollout=RolloutConfig(max_new_tokens=11),
        is_first=False,
        step=1,
    )
    batch = make_batch(samples.rollouts, range(len(samples.rollouts)))
    batch_loss = partial(loss, inputs=inputs, totals=totals_of(samples.mask_BT), batch=batch)
    outputs, gradients = gradient(policy, batch, batch_loss, reads_of(inputs))
    expected = float(stored[f"loss:{number}"])
    assert abs(expected) > 1e-3
    assert float(outputs["loss"].item()) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    found = {name.removeprefix("model."): np.array(g) for name, g in flatten(gradients).items()}
    theirs = {
        name.removeprefix(f"gradient:{number}:"): stored[name]
        for name in stored.files
        if name.startswith(f"gradient:{number}:")
    }
    assert theirs.keys() == found.keys()
    scale = max(np.abs(value).max() for value in theirs.values())
    for name, value in theirs.items():
        off = np.abs(found[name] - value).max()
        assert off <= 1e-5 * scale, name


def test_a_tool_that_raises_without_a_word_has_failed_and_its_result_is_as_trl_writes_it() -> None:
    def silent() -> None:
        raise ValueError

    episodes = ToolEpisodes(lambda function, **arguments: function(**arguments), {"silent": silent})
    (done,) = episodes.step(call("silent"))["calls"]
    assert done["failed"]
    assert done["result"] == str({"error": ""})
