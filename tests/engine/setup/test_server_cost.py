"""Requests and tokens of a step on a server, before a run."""

from typing import Any

from grpo_engine.config.parse import build
from grpo_engine.config.settings import RunConfig
from grpo_engine.policy.memory import Lengths
from grpo_engine.setup.server_cost import ServerCost


def config(**changes: Any) -> RunConfig:
    # 4 prompts with 8 answers each: 32 rows
    rollout = {"prompts": 4, "group_size": 8, "max_new_tokens": 50}
    return build({"rollout": rollout, "remote": {"url": "http://localhost:1"}, **changes})


LENGTHS = Lengths(prompt=100, completion=50)  # 32 rows of 150 tokens: 4,800


def test_a_step_with_two_passes_and_a_reference() -> None:
    cost = ServerCost.of(config(algorithm={"recipe": "grpo", "beta": 0.04, "passes": 2}), LENGTHS)
    assert cost == ServerCost(
        samples=4,
        scores=4,  # the reference, both passes, and the first group after the update
        updates=2,
        read=400,  # 4·100
        sampled=1600,  # 32·50
        scored=15_600,  # 3·4,800 + 8·150
        trained=9600,  # 2·4,800
    )
    assert cost.calls == 13  # 4 + 4 + 2·2 + new weights


def test_without_a_reference_and_recorded_tokens_only_the_update_is_scored() -> None:
    changes = {"algorithm": {"recipe": "dr-grpo"}, "record": {"tokens": "none"}}
    cost = ServerCost.of(config(**changes), LENGTHS)
    assert (cost.scores, cost.scored, cost.updates, cost.calls) == (1, 4800, 1, 8)


def test_further_turns_read_what_is_before_them() -> None:
    task = {"tools": ["calculator"], "max_turns": 3}
    cost = ServerCost.of(config(task=task), Lengths(prompt=100, completion=80))
    assert cost.samples == 68  # 4 + 32·2
    assert cost.read == 11_920  # 400 + 64·180
    assert cost.sampled == 1600


def test_answers_of_the_data_are_not_sampled() -> None:
    changes = {"algorithm": {"recipe": "sft"}}
    cost = ServerCost.of(config(**changes), LENGTHS)
    assert (cost.samples, cost.read, cost.sampled) == (0, 0, 0)
    assert cost.trained == 600  # 4·150: one answer per prompt


def test_advantages_of_tokens_are_scored_before_the_update() -> None:
    chosen = {"recipe": "distill", "passes": 1, "minibatches": 2}
    cost = ServerCost.of(config(algorithm=chosen), LENGTHS)
    assert cost.scores == 4  # before, in both minibatches and after; the teacher scores here
    assert cost.scored == 10_800  # 2·4,800, half of it for each minibatch, and 8·150
    assert (cost.updates, cost.trained) == (2, 4800)
