"""What the hooks saw in TRL, as `tests/tools/trl_runs.py` wrote it, becomes the record of a run."""

import dataclasses
import importlib.metadata
import json
import lzma
import math
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from grpo_engine import events as ev
from grpo_engine.config.trl_config import of_trainer
from grpo_engine.policy.embedded import EMBEDDED
from grpo_engine.rewards.right import Right
from grpo_tui import record
from grpo_tui.app.inspector.stored import load_group, load_step
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.recorded_events import events_after
from grpo_tui.trl import hooks, steps
from grpo_tui.trl.hooks import _finished
from tests.record.payloads import unpacked

CONTENT = json.loads(lzma.decompress((Path(__file__).parent / "trl.json.xz").read_bytes()))
STEPS, TRAINER = unpacked(CONTENT)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of_trl(tmp_path_factory.mktemp("trl") / "s.db")


def run_of_trl(path: Path) -> Path:
    """A store with the run `watched` of TRL."""
    settings, _ = of_trainer(CONTENT["settings"])
    with record.run("watched", trainer="TRL", settings=settings, store=path) as run:
        for step, batches in STEPS:
            _finished(run, step, batches, TRAINER)
    return path


def test_answers_are_those_of_trl_with_their_rewards(store: Path) -> None:
    with StoreReader(store) as reader:
        events = [e.event for e in events_after(reader, reader.resolve("watched").key)]
    groups = [event.group for event in events if isinstance(event, ev.GroupScored)]
    rewards = np.concatenate([batch.rewards for _, [batch] in STEPS])
    answers = [answer for group in groups for answer in group.rollouts]
    assert len(groups) == len(rewards) / TRAINER.group_size
    for answer, expected in zip(answers, rewards, strict=True):
        values = [math.nan if r.value is None else r.value for r in answer.rewards]
        assert np.array_equal(np.array(values, np.float32), expected, equal_nan=True)
        assert len(answer.ends) == len(answer.ids)
        assert answer.ends[-1:] == (len(answer.text),)
    assert {answer.finish for answer in answers} <= {"stop", "length"}
    finished = [event for event in events if isinstance(event, ev.StepFinished)]
    assert [event.step for event in finished] == [1, 2, 3]
    assert {"kl", "entropy", "reward", "rewards/digits/mean", "grad_norm"} <= set(
        finished[0].metrics
    )


def test_the_tokens_shares_add_up_to_the_loss_of_trl(store: Path) -> None:
    with StoreReader(store) as reader:
        run = reader.resolve("watched").key
        for step, [batch] in STEPS:
            base = load_step(reader, run, step)
            sums: dict[int, float] = defaultdict(float)
            for group in base.groups:
                detail = load_group(reader, base, group, history=False)
                assert detail.missing == ""
                for answer in detail.completions:
                    assert answer.row is not None
                    minibatch = answer.row.updates[-1].minibatch
                    sums[minibatch] += math.fsum(token.contribution for token in answer.losses)
            of_update: dict[int, float] = defaultdict(float)
            for micro in batch.micro_batches:
                of_update[micro.update] += micro.loss
            last = len(batch.updates) - len(sums)
            losses = {update - last: -of_update[update] for update in of_update if update >= last}
            assert sums == pytest.approx(losses, abs=1e-5)


def test_ratios_of_the_second_pass_are_not_1_by_construction(store: Path) -> None:
    with StoreReader(store) as reader:
        base = load_step(reader, reader.resolve("watched").key, 1)
        detail = load_group(reader, base, base.groups[0], history=False)
    ratios = [token.ratio for answer in detail.completions for token in answer.losses]
    assert max(abs(ratio - 1) for ratio in ratios) > 1e-3


def test_without_mlx_tokens_have_their_numbers_and_shares_say_what_to_install(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    with StoreReader(store) as reader:
        base = load_step(reader, reader.resolve("watched").key, 1)
        detail = load_group(reader, base, base.groups[0], history=False)
    assert "pip install" in detail.missing
    assert all(answer.row and answer.row.passes for answer in detail.completions)


def test_two_ranks_are_one_step() -> None:
    _, [batch] = STEPS[0]
    two = replace(TRAINER, processes=2)
    half = replace(batch, rewards=np.concatenate([batch.rewards, batch.rewards]))
    groups, alone = steps.groups_of([half, half], two), steps.groups_of([batch], TRAINER)
    assert len(groups) == 2 * len(alone)
    assert groups[0].numbers[0].updates[0].rows == 2 * alone[0].numbers[0].updates[0].rows
    losses = [update.loss for update in steps.updates_of([half, half], two)]
    assert losses == pytest.approx([u.loss for u in steps.updates_of([batch], TRAINER)])


def test_problems_have_their_keys_and_held_out_answers_are_right_or_wrong(tmp_path: Path) -> None:
    _, [batch] = STEPS[0]
    rewards = np.zeros_like(batch.rewards)
    rewards[:3, 0] = 1.0, 0.95, 0.5  # of the first group's four answers, by the first function
    keys = [f"problem {row // TRAINER.group_size}" for row in range(len(batch.prompts))]
    targets = [f"{key}?" for key in keys]
    judged = replace(batch, rewards=rewards, keys=keys, targets=targets)
    right = Right.of(f"{TRAINER.functions[0]} >= 0.9", "", TRAINER.functions)
    with record.run("held-out", store=tmp_path / "s.db") as run:
        hooks._evaluation(run, 0, [[judged]], {}, TRAINER, right)
        hooks._evaluation(run, 1, [[judged]], {}, TRAINER, Right(""))
    with StoreReader(tmp_path / "s.db") as reader:
        events = [e.event for e in events_after(reader, reader.resolve("held-out").key)]
    before, later = (e for e in events if isinstance(e, ev.EvaluationFinished))
    first, *_ = before.rows
    assert (first.example_key, first.correct, first.samples) == ("problem 0", 2, 4)
    assert before.metrics["eval/accuracy"] == 2 / len(keys)
    assert [row.correct for row in later.rows] == [None] * len(later.rows)
    groups = [e.group for e in events if isinstance(e, ev.GroupScored)]
    assert (groups[0].example_key, groups[0].target) == ("problem 0", "problem 0?")


@pytest.mark.parametrize(
    ("adapters", "folder", "expected"),
    [
        ({}, "org/m", {"path": "org/m", "tuning": "full"}),
        (
            {"default": SimpleNamespace(r=8, lora_alpha=4, use_dora=True)},
            str(EMBEDDED["starter"]),
            {"path": "starter", "tuning": "dora", "lora_rank": 8, "lora_scale": 0.5},
        ),
    ],
)
def test_the_model_and_its_adapter_are_settings_of_the_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    adapters: dict[str, Any],
    folder: str,
    expected: dict[str, Any],
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "1.16.0")
    arguments = dataclasses.make_dataclass("GRPOConfig", [("seed", int), ("beta", float)])
    model = SimpleNamespace(config=SimpleNamespace(_name_or_path=folder), peft_config=adapters)
    trainer = SimpleNamespace(args=arguments(seed=3, beta=0.5), model=model)
    hooks._begin(trainer, "made", tmp_path / "s.db", "sums", ()).close()
    with StoreReader(tmp_path / "s.db") as reader:
        config = reader.run(reader.resolve("made").key).config
    assert expected.items() <= config["model"].items()
    assert (config["algorithm"]["beta"], config["task"]) == (0.5, {"shuffle": True, "name": "sums"})


def test_results_of_tools_are_replies_and_not_in_the_loss() -> None:
    _, [batch] = STEPS[0]
    length = batch.lengths[0]
    tool_mask = np.ones_like(batch.arrays["completion_mask"])
    tool_mask[0, 2:4] = 0
    with_tools = replace(batch, arrays=batch.arrays | {"tool_mask": tool_mask})
    answer = steps.groups_of([with_tools], TRAINER)[0]
    spans = answer.group.rollouts[0].spans
    assert [(span.kind, span.start, span.length, span.turn) for span in spans] == [
        ("model", 0, 2, 0),
        ("environment", 2, 2, 0),
        ("model", 4, length - 4, 1),
    ]
    assert sum(span.chars for span in spans) == len(answer.group.rollouts[0].text)
    assert answer.group.rollouts[0].model_tokens == length - 2
    assert answer.numbers[0].mask[:5] == (1, 1, 0, 0, 1)


class OtherTrainer(SimpleNamespace):
    """A trainer of a version whose methods give something else, and whose arguments lack one."""

    def __init__(self) -> None:
        super().__init__(
            args=SimpleNamespace(steps_per_generation=1, gradient_accumulation_steps=1),
            num_iterations=1,
            state=SimpleNamespace(global_step=0),
            _generate=lambda: None,
            evaluate=lambda: {"eval_loss": 1.0},
            train=lambda: "trained",
        )


def test_an_error_in_watching_is_told_once_and_never_reaches_the_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hooks, "facts_of", lambda _: TRAINER)
    trainer = OtherTrainer()
    hooks.Watch(trainer, record.run("broken", store=tmp_path / "s.db"))
    with pytest.warns(record.RecordWarning, match="no longer watched: TypeError") as warned:
        results = [trainer._generate(), trainer._generate(), trainer.evaluate(), trainer.train()]
    assert results == [None, None, {"eval_loss": 1.0}, "trained"]
    assert len(warned) == 1
    with StoreReader(tmp_path / "s.db") as reader:
        assert reader.resolve("broken").status == "completed"


WORDS = {1: "a", 2: " b", 3: "", 4: "�", 5: "�"}


def decode(ids: list[int]) -> str:
    """Tokens 4 and 5 are one character; a text has no space at its beginning."""
    return "".join(WORDS[i] for i in ids).replace("��", "ü").lstrip(" ")


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([1, 3, 1], ("aa", [1, 1, 2])),
        ([1, 2, 2], ("a b b", [1, 3, 5])),
        ([1, 4, 5, 2], ("aü b", [1, 1, 2, 4])),
        ([1, 4], ("a�", [1, 2])),
        ([], ("", [])),
    ],
)
def test_a_text_is_split_where_its_tokens_end(ids: list[int], expected: object) -> None:
    assert steps.pieces(ids, lambda of: decode(list(of))) == expected
