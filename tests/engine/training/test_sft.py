"""Recipe sft trains on the data's own answers: the loss is that of mlx-lm's own trainer."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_lm.tuner.datasets import CacheDataset, ChatDataset, CompletionsDataset
from mlx_lm.tuner.trainer import default_loss, iterate_batches

from grpo_engine.config.recipes import recipe
from grpo_engine.config.settings import ModelConfig, RolloutConfig, TaskConfig
from grpo_engine.errors import DataError, RecipeError
from grpo_engine.events import (
    AlertRaised,
    EvaluationFinished,
    RunFailed,
    StepFinished,
)
from grpo_engine.maths.weight import totals_of
from grpo_engine.policy.batch import micro_batches
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.trees import flatten
from grpo_engine.rewards.scoring import Scores
from grpo_engine.rollouts.prompts import PromptRenderer
from grpo_engine.rollouts.row import decoder, demonstration
from grpo_engine.rollouts.types import PromptRows
from grpo_engine.run.local import gradient
from grpo_engine.tasks.files import build as build_task
from grpo_engine.training.advantages import step_advantages
from grpo_engine.training.loss import LossInputs, loss, reads_of
from grpo_engine.training.samples import Experience, OldScores, gather
from tests.engine.runs import events_of, failure, groups_of, notes, of, settings
from tests.engine.training.builders import sampled
from tests.smollm2 import model_folder

SFT = recipe("sft")
LOGSUMEXP = mx.logsumexp
ROWS = [
    {"prompt": "What is 2 + 2?", "completion": "4"},
    {"prompt": "Name two colours, please.", "completion": "Red, and then blue."},
    {"prompt": "Count to five.", "completion": "1 2 3 4 5"},
]
CHATS = [
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": row["prompt"]},
            {"role": "assistant", "content": "What do you mean?"},
            {"role": "user", "content": "As I said."},
            {"role": "assistant", "content": row["completion"]},
        ]
    }
    for row in ROWS
]
LISTS = [
    {
        "prompt": [{"role": "user", "content": row["prompt"]}],
        "completion": [{"role": "assistant", "content": row["completion"]}],
    }
    for row in ROWS
]


def written(folder: Path, rows: Sequence[Any]) -> str:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def renderer(policy: Policy, path: str, **changes: Any) -> PromptRenderer:
    config = TaskConfig(name=path, held_out_size=0, **changes)
    return PromptRenderer(
        tokenizer=policy.tokenizer,
        task=build_task(config),
        config=config,
        max_new_tokens=64,
        vocabulary=policy.vocabulary,
        demonstrates=True,
    )


@pytest.fixture(
    scope="module", params=["starter", pytest.param("smollm2", marks=pytest.mark.slow), "kernels"]
)
def policy(request: pytest.FixtureRequest) -> Policy:
    path = str(model_folder()) if request.param == "smollm2" else "starter"
    compute = "auto" if request.param == "kernels" else "graph"
    policy = load_policy(ModelConfig(path=path, compute=compute, lora_rank=4), seed=0)
    key = mx.random.key(1)  # adapters begin at 0, where half of the gradient is 0
    policy.load_trainable(
        {
            name: value + 0.02 * mx.random.normal(value.shape, key=key)
            for name, value in policy.snapshot().items()
        }
    )
    return policy


def ours(policy: Policy, path: str, micro_rows: int = 8) -> tuple[float, dict[str, mx.array]]:
    """The loss of a step on all rows of the data, and its gradient, by the engine's parts."""
    render, decode = renderer(policy, path), decoder(policy)
    groups = []
    for index, example in enumerate(render.task.train):
        ids = render(example).ids
        row = PromptRows(key=example.key, group=index, ids=ids, rows=1)
        answer = demonstration(row, render.completion_ids(example), decode)
        groups.append(sampled(index, [answer], Scores(rewards=((),)), example))
    samples = gather(groups, SFT)
    rollouts, mask_BT = samples.rollouts, samples.mask_BT
    inputs = LossInputs(
        experience=Experience(
            samples=samples,
            old=OldScores(),
            trained_rows=[*range(len(rollouts))],
            advantages=step_advantages(samples, OldScores(), SFT, 1),
        ),
        recipe=SFT,
        rollout=RolloutConfig(),
        targets=None,
        is_first=True,
        step=1,
    )
    value, total = 0.0, None
    for batch in micro_batches(rollouts, max_rows=micro_rows, pad_id=policy.pad_id):
        batch_loss = partial(loss, inputs=inputs, totals=totals_of(mask_BT), batch=batch)
        outputs, gradients = gradient(policy, batch, batch_loss, reads_of(inputs))
        flat = flatten(gradients["model"])
        total = flat if total is None else {name: total[name] + flat[name] for name in flat}
        value += float(outputs["loss"])
    assert total is not None
    return value, total


def exact_logsumexp(values: mx.array, axis: int, **_: Any) -> mx.array:
    """log Σ e^x, in two stages: MLX sums 49,152 numbers one by one, which loses 1e-4 in float32."""
    assert axis == -1
    count = values.shape[-1]
    parts = values.reshape(*values.shape[:-1], -1, 64 if count % 64 == 0 else count)
    return LOGSUMEXP(LOGSUMEXP(parts, axis=-1), axis=-1)


def norm(values: Mapping[str, mx.array]) -> float:
    return float(np.sqrt(sum(float((value * value).sum()) for value in values.values())))


def mlx_lm(policy: Policy, dataset: Any, count: int) -> tuple[float, dict[str, mx.array]]:
    """The same by mlx-lm's data set, batches and loss.

    Its mask counts one token of padding after each row, which is no part of the data.
    """
    batch, lengths = next(iterate_batches(CacheDataset(dataset), count, 2048))
    lengths = lengths - mx.array([0, 1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mx, "logsumexp", exact_logsumexp)
        value_and_grad = nn.value_and_grad(policy.model, default_loss)
        (loss, _), gradients = value_and_grad(policy.model, batch, lengths)
        mx.eval(loss, gradients)
    return float(loss), flatten(gradients)


@pytest.mark.parametrize("form", ["text", "lists", "messages"])
@pytest.mark.parametrize("micro_rows", [1, 8])
def test_loss_and_gradient_are_those_of_mlx_lms_trainer(
    policy: Policy, tmp_path: Path, form: str, micro_rows: int
) -> None:
    tokenizer = policy.tokenizer._tokenizer
    rows: Any = {"text": ROWS, "lists": LISTS, "messages": CHATS}[form]
    loss, gradients = ours(policy, written(tmp_path, rows), micro_rows)
    if form == "messages":
        dataset: Any = ChatDataset(rows, tokenizer, mask_prompt=True)
    else:
        dataset = CompletionsDataset(ROWS, tokenizer, "prompt", "completion", mask_prompt=True)
    expected, theirs = mlx_lm(policy, dataset, len(rows))
    assert loss == pytest.approx(expected, rel=1e-5)
    assert gradients.keys() == theirs.keys()
    apart = {name: gradients[name] - value for name, value in theirs.items()}
    # the head's gradient sums 49,152 products in float32: both are 1e-4 from the float64 one
    assert norm(apart) <= (3e-4 if policy.vocabulary > 10_000 else 1e-5) * norm(theirs)


def test_a_completion_after_a_text_ends_with_the_end_token(policy: Policy, tmp_path: Path) -> None:
    rows = [{"prompt": "2 + 2 = ", "completion": "4"}]
    render = renderer(policy, written(tmp_path, rows), options={"chat": False})
    ids = render.completion_ids(render.task.train[0])
    assert ids[-1] == policy.tokenizer.eos_token_id
    assert ids[:-1] == tuple(policy.tokenizer.encode("4", add_special_tokens=False))
    assert render(render.task.train[0]).text == "2 + 2 = "


def test_a_prefill_begins_the_completion(policy: Policy, tmp_path: Path) -> None:
    path = written(tmp_path, [{"prompt": "What is 2 + 2?", "completion": "It is 4."}])
    plain, prefilled = (renderer(policy, path, prefill=text) for text in ("", "It"))
    rest = written(tmp_path, [{"prompt": "What is 2 + 2?", "completion": " is 4."}])
    prefilled = renderer(policy, rest, prefill="It")
    (one,), (other,) = plain.task.train, prefilled.task.train
    texts = [
        policy.tokenizer.decode([*render(example).ids, *render.completion_ids(example)])
        for render, example in ((plain, one), (prefilled, other))
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            [{"prompt": "a", "answer": "4", "kind": "sum"}],
            "data.jsonl:1: there is no answer to "
            "learn; the columns beside the prompt are answer, kind. Give each row a `completion`, "
            "name the column with the answer in task.columns.completion, or end `messages`",
        ),
        ([{"messages": [{"role": "user", "content": "a"}]}], "there is no answer to learn"),
        (
            [{"prompt": "a", "completion": [{"role": "user", "content": "b"}]}],
            "a completion is text or one message of the assistant",
        ),
        (
            [{"prompt": "a", "completion": "word " * 100}],
            r"data.jsonl:1: the completion has \d+ tokens, more than rollout.max_new_tokens 64 "
            "allows; raise it",
        ),
    ],
)
def test_a_row_that_cannot_be_learned_is_refused_in_words(
    policy: Policy, tmp_path: Path, rows: list[Any], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        renderer(policy, written(tmp_path, rows)).usable()


def test_rows_that_cannot_be_learned_are_skipped_on_request(policy: Policy, tmp_path: Path) -> None:
    rows = [*ROWS, {"prompt": "x", "completion": "word " * 100}, {"prompt": "y"}]
    usable, notes = renderer(policy, written(tmp_path, rows), bad_rows="skip").usable()
    assert len(usable.task.train) == len(ROWS)
    assert "2 of 5 rows are skipped" in notes[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ratio": "token"}, "ratio=token re-weights answers by the policy that sampled them"),
        ({"refill_rounds": 2}, "refill_rounds=2 replaces groups without a signal"),
        ({"overlong_buffer": 0.2}, "has no effect: it is read only with answers that are sampled"),
        (
            {"beta": 0.1, "anchor_place": "reward"},
            "subtracts the distance from the reward, which signal=demonstration does not read",
        ),
    ],
)
def test_what_only_sampled_answers_need_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        recipe("sft", **changes)


LEARN: dict[str, Any] = {
    "algorithm": {"recipe": "sft"},
    "task": {"columns": {"completion": "answer"}, "options": {"chat": False}},
    "rollout": {"prompts": 6, "group_size": 8, "temperature": 0.5},
}


@pytest.mark.slow
def test_a_run_learns_the_data_without_sampling_it(world: Path, tmp_path: Path) -> None:
    more = {"steps": 30, "evaluation": {"before_and_after": True, "pinned": 1, "pinned_every": 15}}
    events = events_of(settings(world, **LEARN, **more), tmp_path)
    assert not of(RunFailed, events), events[-1]
    groups = groups_of(events)
    assert len(groups) == 30 * 6
    for group in groups:
        (answer,) = group.rollouts
        assert (answer.text, answer.advantage, answer.reward) == (group.target, 1.0, None)
        assert not answer.sampler_logprobs
        assert not answer.rewards
        assert answer.finish == "stop"
    steps = [e.metrics for e in of(StepFinished, events)]
    assert steps[-1]["loss"] < 0.5 * steps[0]["loss"]
    for metrics in steps:  # one pass: the loss is the mean surprise per token, before the update
        for name in ("frac_reward_zero_std", "reward", "tokens_per_second"):
            assert name not in metrics
        assert not any(name.startswith("sampling/") for name in metrics)
    pinned = groups_of(events, "pinned")
    assert {len(group.rollouts) for group in pinned} == {1}
    assert sum(isinstance(e, EvaluationFinished) for e in events) == 4
    texts = notes(events)
    assert any("rollout.group_size and rollout.temperature are not read" in note for note in texts)
    assert not any("no effect" in note for note in texts)
    assert not [e for e in of(AlertRaised, events) if e.rule != "gradient_spike"]


def test_a_run_without_rewards_trains_and_says_that_nothing_is_evaluated(
    world: Path, tmp_path: Path
) -> None:
    path = written(tmp_path, [{"prompt": f"say {n}", "reply": str(n)} for n in range(20)])
    task = {"name": path, "options": {"chat": False}, "columns": {"completion": "reply"}}
    more = {"task": task, "rewards": {"functions": []}, "evaluation": {"before_and_after": True}}
    events = events_of(settings(world, **{**LEARN, **more}), tmp_path / "run")
    assert not [e for e in events if isinstance(e, RunFailed | EvaluationFinished)], events[-1]
    texts = notes(events)
    assert any("without a reward function, held-out answers are sampled" in n for n in texts)


def test_a_curriculum_without_pass_rates_is_refused(world: Path, tmp_path: Path) -> None:
    task: dict[str, Any] = {"curriculum": "half", **LEARN["task"]}
    assert (
        "task.curriculum half needs pass rates, and none are measured"
        in failure(settings(world, **{**LEARN, "task": task}), tmp_path).message
    )


def test_tasks_with_tools_are_refused(world: Path, tmp_path: Path) -> None:
    config = settings(world, **{**LEARN, "task": {"name": "calculator"}})
    assert "cannot be trained with recipe sft" in failure(config, tmp_path).message
