"""Batched sampling matches sampling one row at a time, for every way an answer can end."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from grpo_engine.control import Control
from grpo_engine.errors import DataError
from grpo_engine.events import RunPaused, RunResumed
from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts import graph
from grpo_engine.rollouts.decode import pause_or_stop, sample_groups
from grpo_engine.rollouts.types import PromptRows, Sampling, Trajectory
from tests.engine.conftest import MakePolicy
from tests.engine.policy.helpers import COMPUTES, drain, made_up_rows, move_weights
from tests.engine.rollouts.oracle import assert_same, sample_one_by_one
from tests.engine.tiny import END, STOP

PROMPTS = [
    PromptRows(key=f"p{group}", group=group, ids=row.prompt_ids, rows=3)
    for group, row in enumerate(made_up_rows([(5, (1,)), (12, (1,)), (1, (1,)), (7, (1,))]))
]


def sample(
    policy: Policy, sampling: Sampling, prompts: Sequence[PromptRows] = PROMPTS, **options: Any
) -> list[Trajectory]:
    settings = {"seed": 1, "step": 2, **options}
    rollouts: list[Trajectory] = drain(sample_groups(policy, prompts, sampling, **settings))[1]
    return rollouts


SAMPLINGS = {
    "plain": Sampling(max_new_tokens=24),
    "cut": Sampling(max_new_tokens=12, temperature=0.8, top_k=20, top_p=0.8),
    "penalised": Sampling(max_new_tokens=10, min_p=0.1, repetition_penalty=1.3),
    "greedy": Sampling(max_new_tokens=8, temperature=0),
    "waiting rows": Sampling(max_new_tokens=24, max_rows=3, stop=("a", "zz", "e")),
    "storage that grows": Sampling(max_new_tokens=70, ignore_end=True),
}
ONE_BY_ONE: dict[str, list[Trajectory]] = {}


@pytest.mark.slow
@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("name", SAMPLINGS)
def test_batched_sampling_equals_one_row_at_a_time(
    make_policy: MakePolicy, name: str, compute: str
) -> None:
    policy = make_policy(compute=compute)
    move_weights(policy, 0.1)
    if name not in ONE_BY_ONE:
        ONE_BY_ONE[name] = sample_one_by_one(policy, PROMPTS, SAMPLINGS[name], seed=1, step=2)
    assert_same(sample(policy, SAMPLINGS[name]), ONE_BY_ONE[name])


def test_rows_leave_a_batch_that_is_asynchronous_by_quarters(
    make_policy: MakePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[tuple[int, int]] = []
    select = graph.GraphBatch.select

    def noted(batch: graph.GraphBatch, indices: Sequence[int]) -> None:
        left.append((batch.caches[0].offset.size, len(indices)))
        select(batch, indices)

    monkeypatch.setattr(graph.GraphBatch, "select", noted)
    policy = make_policy(compute="graph")
    prompts = [replace(prompt, rows=16) for prompt in PROMPTS]
    rollouts = sample(policy, Sampling(max_new_tokens=60, stop=("a", "e", "i")), prompts)
    assert len({len(rollout.ids) for rollout in rollouts}) > 10
    assert 3 <= len(left) <= 20
    assert all(before - after >= before / 4 for before, after in left)


def test_the_graph_and_the_kernels_draw_the_same_tokens(make_policy: MakePolicy) -> None:
    policy = make_policy()
    move_weights(policy, 0.1)
    graph_policy = replace(policy, kernels=None)
    prompts = [replace(prompt, rows=16) for prompt in PROMPTS]
    one, other = (sample(p, Sampling(max_new_tokens=40), prompts) for p in (policy, graph_policy))
    same = sum(a.ids == b.ids for a, b in zip(one, other, strict=True))
    assert same >= len(one) - 1  # another rounding may flip a token once in 100,000


def test_answers_end_with_any_end_token_which_is_part_of_them(make_policy: MakePolicy) -> None:
    policy = make_policy()
    prompts = [replace(prompt, rows=16) for prompt in PROMPTS]
    rollouts = sample(policy, Sampling(max_new_tokens=150), prompts)
    stopped = [rollout for rollout in rollouts if rollout.finish == "stop"]
    assert {rollout.ids[-1] for rollout in stopped} == {END, STOP}
    for rollout in stopped:
        assert not {END, STOP} & set(rollout.ids[:-1])
        assert rollout.text == policy.tokenizer.decode(
            list(rollout.ids[:-1]), skip_special_tokens=True
        )
    for rollout in rollouts:
        if rollout.finish == "length":
            assert len(rollout.ids) == 150
            assert not {END, STOP} & set(rollout.ids)


def test_a_think_budget_closes_the_thought_and_marks_what_it_set(make_policy: MakePolicy) -> None:
    policy = make_policy()
    rollouts = sample(policy, Sampling(max_new_tokens=40, think_budget=10))
    mark = tuple(policy.tokenizer.encode("</think>", add_special_tokens=False))
    long = [rollout for rollout in rollouts if len(rollout.ids) > 10]
    assert long
    for rollout in long:
        assert rollout.ids[10 : 10 + len(mark)] == mark
        assert rollout.forced == tuple(range(10, 10 + len(mark)))
        assert rollout.logprobs[10] == 0
        assert rollout.raw_logprobs[10] < 0


def test_a_pause_holds_decoding_until_it_ends(make_policy: MakePolicy) -> None:
    control = Control()
    control.ask("pause")
    policy = make_policy()
    decoding = sample_groups(
        policy,
        PROMPTS,
        Sampling(max_new_tokens=20),
        seed=1,
        step=2,
        requests=partial(pause_or_stop, control, 2),
    )
    assert isinstance(next(decoding), RunPaused)
    threading.Timer(0.1, lambda: control.ask("continue")).start()  # the next event waits for it
    events, rollouts = drain(decoding)
    assert isinstance(events[0], RunResumed)
    assert_same(rollouts, sample(policy, Sampling(max_new_tokens=20)))


def test_prompts_that_do_not_fit_the_context_are_named(make_policy: MakePolicy) -> None:
    prompt = PromptRows(key="long one", group=0, ids=(1,) * 256, rows=1)
    with pytest.raises(DataError, match="prompt of long one has 256 tokens"):
        sample(make_policy(), Sampling(), [prompt])


def test_answers_stop_where_the_context_ends(make_policy: MakePolicy) -> None:
    prompt = PromptRows(key="p", group=0, ids=(1,) * 250, rows=2)
    rollouts = sample(make_policy(), Sampling(max_new_tokens=64, ignore_end=True), [prompt])
    assert [len(rollout.ids) for rollout in rollouts] == [6, 6]
