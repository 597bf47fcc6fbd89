"""Test oracle for the batched sampler: one row at a time, a whole forward per token, no cache."""

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
import pytest

from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts.decode import SampleRows, make_rows
from grpo_engine.rollouts.noise import token_keys
from grpo_engine.rollouts.row import DecodingRow
from grpo_engine.rollouts.sampler import draw
from grpo_engine.rollouts.types import PromptRows, Sampling, Trajectory


def sample_one_by_one(
    policy: Policy, prompts: Sequence[PromptRows], sampling: Sampling, *, seed: int, step: int
) -> list[Trajectory]:
    """The expected result of `sample_groups`, up to float ties; without a think budget."""
    asked = SampleRows(prompts=prompts, sampling=sampling, seed=seed, noise_step=step)
    rows = make_rows(policy, asked)
    policy.module.eval()
    for row in rows:
        while row.finish is None:
            take_one(policy, row, sampling)
    return [row.trajectory() for row in rows]


def assert_same(ours: list[Trajectory], theirs: list[Trajectory], tolerance: float = 1e-3) -> None:
    """Assert equal tokens, texts and endings; log-probabilities to tolerance (large logits)."""
    bare = [[replace(row, logprobs=(), raw_logprobs=()) for row in rows] for rows in (ours, theirs)]
    assert bare[0] == bare[1]
    for row, other in zip(ours, theirs, strict=True):
        assert row.logprobs == pytest.approx(other.logprobs, abs=tolerance)
        assert row.raw_logprobs == pytest.approx(other.raw_logprobs, abs=tolerance)


def take_one(policy: Policy, row: DecodingRow, sampling: Sampling) -> None:
    """Sample a row's next token from a forward over all before it."""
    ids = row.context
    logits = policy.model(mx.array([ids]))[:, -1]
    seen = None
    if sampling.repetition_penalty != 1:
        seen = mx.zeros(logits.shape, mx.bool_)
        seen[0, mx.array(sorted(set(ids)))] = True
    keys = token_keys([row.key], [len(row.ids)])
    token, logprob, raw = (x.item() for x in draw(logits, sampling, keys, seen_BV=seen))
    row.append(int(token), float(logprob), float(raw))  # type: ignore[arg-type]
    row.settle(sampling, [])
