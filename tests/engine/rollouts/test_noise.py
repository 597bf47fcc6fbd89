"""Noise: no two answers of a step share it, and it does not depend on how a step is computed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_engine.config.settings import ModelConfig
from grpo_engine.cpu import draw
from grpo_engine.distributed.ranks import Ranks
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts.decode import SampleRows, make_rows, sample_groups
from grpo_engine.rollouts.noise import late_keys, late_times, token_keys
from grpo_engine.rollouts.prompts import RenderedPrompt
from grpo_engine.rollouts.types import PromptRows, Sampling, Trajectory
from grpo_engine.tasks.base import Example
from grpo_engine.training.sampling import SampleRequest, rows_to_sample
from tests.engine.policy.helpers import drain
from tests.engine.tiny import write_model

DTYPES = ("float32", "bfloat16")
STEP = st.lists(st.sampled_from("abc"), min_size=1, max_size=7)  # prompts of a step, by key
SAMPLING = Sampling(max_new_tokens=6)


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Policy]:
    folder = write_model(tmp_path_factory.mktemp("models") / "tiny")
    return {
        dtype: load_policy(ModelConfig(path=str(folder), dtype=dtype), seed=0) for dtype in DTYPES
    }


def asked(keys: Sequence[str], *, rows: int = 2, attempt: int = 0) -> list[PromptRows]:
    """The rows of a step with these prompts, each of which is its key."""
    examples = [Example(key=key, prompt=key) for key in keys]
    prompts = [RenderedPrompt(ids=tuple(key.encode()), text=key, prompt=key) for key in keys]
    request = SampleRequest(examples=examples, sampling=SAMPLING, rows=rows, attempt=attempt)
    return rows_to_sample(request, prompts)


def sampled(
    policy: Policy, prompts: Sequence[PromptRows], sampling: Sampling = SAMPLING
) -> list[Trajectory]:
    found: list[Trajectory] = drain(sample_groups(policy, prompts, sampling, seed=1, step=2))[1]
    return found


def by_prompt(rollouts: Sequence[Trajectory]) -> Counter[tuple[str, int, tuple[int, ...]]]:
    """How often each answer occurs, whatever the places of the prompts."""
    return Counter((rollout.key, rollout.index, rollout.ids) for rollout in rollouts)


@given(STEP, st.integers(1, 4), st.integers(0, 2))
def test_no_two_answers_of_a_step_share_their_noise(
    policies: dict[str, Policy], keys: list[str], rows: int, refills: int
) -> None:
    prompts = [row for turn in range(refills + 1) for row in asked(keys, rows=rows, attempt=turn)]
    whole = SampleRows(prompts=prompts, sampling=SAMPLING, seed=3, noise_step=4)
    made = make_rows(policies["float32"], whole)
    assert len({row.key for row in made}) == len(prompts) * rows


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=12)
@given(data=st.data(), keys=STEP, ranks=st.integers(1, 3), at_a_time=st.integers(0, 5))
def test_answers_do_not_depend_on_order_ranks_or_batches(
    policies: dict[str, Policy],
    dtype: str,
    data: st.DataObject,
    keys: list[str],
    ranks: int,
    at_a_time: int,
) -> None:
    policy = policies[dtype]
    whole = sampled(policy, asked(keys))

    moved = sampled(policy, asked(data.draw(st.permutations(keys))))
    assert by_prompt(moved) == by_prompt(whole)

    batched = sampled(policy, asked(keys), replace(SAMPLING, max_rows=at_a_time))
    assert by_prompt(batched) == by_prompt(whole)

    class Share(Ranks):
        rank, size = 0, ranks

    shared = []
    for rank in range(ranks):
        Share.rank = rank
        shared += sampled(policy, [row for _, row in Share().assigned(asked(keys))])
    shared.sort(key=lambda rollout: (rollout.group, rollout.index))
    assert [rollout.ids for rollout in shared] == [rollout.ids for rollout in whole]


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=3), st.integers(1, 300))
def test_numpy_and_mlx_give_each_token_the_same_time(rows: list[int], width: int) -> None:
    keys = token_keys(rows, [0] * len(rows))
    tokens = np.tile(np.arange(width), len(rows))
    own = draw.late_times(np.repeat(np.array(late_keys(keys)), width, axis=0), tokens, width)
    expected = np.array(late_times(keys, width)).reshape(-1)
    np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)
