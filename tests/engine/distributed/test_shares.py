"""How rows are divided among local workers, and what they send each other."""

import socket
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.distributed.messages import ClosedError, receive, send
from grpo_engine.distributed.shares import owners_of, parts_of_prompts, parts_of_rows
from grpo_engine.policy.batch import micro_batches
from grpo_engine.rollouts.types import PromptRows


def prompts_of(rows: list[int]) -> list[PromptRows]:
    return [
        PromptRows(key=f"p{place}", group=place, ids=(1, 2), rows=count)
        for place, count in enumerate(rows)
    ]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 5))
def test_every_row_of_every_prompt_is_sampled_once_and_in_order(
    rows: list[int], parts: int
) -> None:
    divided = parts_of_prompts(prompts_of(rows), parts)
    found = [
        (prompt.group, prompt.first_index + row)
        for part in divided
        for prompt in part
        for row in range(prompt.rows)
    ]
    assert found == [(group, row) for group, count in enumerate(rows) for row in range(count)]
    sizes = [sum(prompt.rows for prompt in part) for part in divided]
    assert max(sizes) - min(sizes) <= 1


def test_a_prompt_is_cut_where_a_part_is_full() -> None:
    # 3 + 5 rows in two parts of 4: the second prompt gives one row to the first part
    first, second = parts_of_prompts(prompts_of([3, 5]), 2)
    assert [(p.group, p.first_index, p.rows) for p in first] == [(0, 0, 3), (1, 0, 1)]
    assert [(p.group, p.first_index, p.rows) for p in second] == [(1, 1, 4)]


def rollout(prompt: int, tokens: int) -> Any:
    return SimpleNamespace(prompt_ids=(prompt,) * 4, ids=(1,) * tokens, forced=())


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20)), min_size=1, max_size=30),
    st.integers(1, 4),
)
def test_every_row_is_scored_once_and_parts_cost_about_the_same(
    drawn: list[tuple[int, int]], parts: int
) -> None:
    rollouts = [rollout(prompt, tokens) for prompt, tokens in drawn]
    rows = list(range(len(rollouts)))
    divided = parts_of_rows(rollouts, rows, parts)
    assert sorted(row for part in divided for row in part) == rows
    sizes = Counter(prompt for prompt, _ in drawn)
    cost = [tokens + 4 / sizes[prompt] for prompt, tokens in drawn]
    # a cut is at most half a row from where parts would cost the same, at both ends of a part
    for part in divided:
        assert sum(cost[row] for row in part) <= sum(cost) / parts + max(cost) + 1e-6


def test_the_largest_batch_goes_first_and_to_the_worker_with_the_least_work() -> None:
    # rows x width + prompt: 2 x 10 + 4, 1 x 3 + 4, 1 x 9 + 4 -> 24, 7, 13
    rollouts = [rollout(0, 10), rollout(0, 10), rollout(1, 3), rollout(2, 9)]
    batches = [micro_batches(rollouts, rows_at_most=4, only=rows)[0] for rows in ([0, 1], [2], [3])]
    assert owners_of(batches, 2) == [0, 1, 1]
    assert owners_of(batches, 1) == [0, 0, 0]


arrays = st.dictionaries(
    st.text(max_size=5),
    st.lists(st.floats(width=32), max_size=6).map(lambda values: np.array(values, np.float32)),
    max_size=3,
)


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5)), arrays)
def test_a_message_arrives_as_it_was_sent(value: dict[str, Any], sent: dict[str, Any]) -> None:
    here, there = socket.socketpair()
    with here, there:
        send(here, value, sent)
        found, received = receive(there)
    assert found == value
    assert received.keys() == sent.keys()
    for name, array in sent.items():
        np.testing.assert_array_equal(received[name], array)


def test_a_scalar_and_an_empty_array_keep_their_shape() -> None:
    here, there = socket.socketpair()
    with here, there:
        send(here, {}, {"scalar": np.array(2.5, np.float32), "empty": np.zeros((0, 3), np.int32)})
        _, received = receive(there)
    assert received["scalar"].shape == ()
    assert received["scalar"] == 2.5
    assert (received["empty"].shape, received["empty"].dtype) == ((0, 3), np.int32)


def test_a_closed_connection_is_named() -> None:
    here, there = socket.socketpair()
    with there:
        here.close()
        with pytest.raises(ClosedError):
            receive(there)
