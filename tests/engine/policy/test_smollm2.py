"""A real model: SmolLM2 agrees with transformers, from import to adapter."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from benchmarks.flips import flip_probability
from grpo_engine.config.settings import ModelConfig
from grpo_engine.policy.batch import TokenRow, micro_batches
from grpo_engine.policy.forward import token_scores
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts.batches import batch_for
from grpo_engine.rollouts.decode import sample_groups
from grpo_engine.rollouts.noise import token_keys
from grpo_engine.rollouts.sampler import draw
from grpo_engine.rollouts.types import PromptRows, Sampling
from tests.engine.policy.helpers import COMPUTES, drain
from tests.engine.rollouts.oracle import sample_one_by_one
from tests.smollm2 import model_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
SAID = json.loads((Path(__file__).parent / "data" / "hf_smollm2.json").read_text())


@pytest.fixture(scope="module", params=COMPUTES)
def policy(request: pytest.FixtureRequest) -> Policy:
    return load_policy(ModelConfig(path=str(model_folder()), compute=request.param), seed=0)


@pytest.mark.parametrize("case", SAID["texts"], ids=lambda case: case["text"][:12])
def test_ids_of_a_text_are_those_of_transformers(policy: Policy, case: dict[str, Any]) -> None:
    assert policy.tokenizer.encode(case["text"], add_special_tokens=False) == case["ids"]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("max_rows", [1, 2, 5])
def test_log_probabilities_are_those_of_transformers(
    policy: Policy, temperature: float, max_rows: int
) -> None:
    cases = [case for case in SAID["cases"] if case["temperature"] == temperature]
    rows = [TokenRow(tuple(case["prompt"]), tuple(case["ids"])) for case in cases]
    for batch in micro_batches(rows, max_rows=max_rows):
        scores = token_scores(policy, batch, temperature=temperature, gradient=False)
        found = np.array(scores.logprobs)
        for place, row in enumerate(batch.rows):
            length = len(rows[row].ids)
            assert found[place, :length].tolist() == pytest.approx(cases[row]["logprobs"], abs=1e-3)
            assert not found[place, length:].any()


PROMPTS = [
    PromptRows(key=f"p{group}", group=group, ids=tuple(case["prompt"]), rows=2)
    for group, case in enumerate(SAID["cases"][2:4])
]


@pytest.mark.slow
def test_batched_sampling_equals_one_row_at_a_time(policy: Policy) -> None:
    sampling = Sampling(max_new_tokens=16)
    found = drain(sample_groups(policy, PROMPTS, sampling, seed=3, step=1))[1]
    expected = sample_one_by_one(policy, PROMPTS, sampling, seed=3, step=1)
    assert [rollout.ids for rollout in found] == [rollout.ids for rollout in expected]
    for one, other in zip(found, expected, strict=True):
        # prompts that are run together are rounded otherwise, by kernels of OpenBLAS differently
        assert one.logprobs == pytest.approx(other.logprobs, abs=2e-4)


def test_the_chance_of_another_token_is_that_of_races() -> None:
    # p = (.5, .5), q = (.75, .25): token 0 wins both with 1 / (1 + max(1, 1/3)) = 1/2, token 1
    # with 1 / (max(1, 3) + 1) = 1/4, so the winner is another one in 1/4 of the races
    one, other = np.log([0.5, 0.5]), np.log([0.75, 0.25])
    assert flip_probability(one, other) == pytest.approx(0.25)
    times = np.random.default_rng(0).exponential(size=(100_000, 2))
    differ = (np.exp(one) / times).argmax(1) != (np.exp(other) / times).argmax(1)
    assert differ.mean() == pytest.approx(0.25, abs=0.007)  # 5 standard errors


def test_the_size_of_a_batch_changes_fewer_than_one_token_in_a_hundred_thousand(
    policy: Policy,
) -> None:
    """By their chances, which tell rare changes far sooner than counting them would."""
    steps = 8
    prompts = [(*SAID["cases"][0]["prompt"], n) for n in range(1000, 1024)]
    tokens: list[list[int]] = []
    found: dict[int, np.ndarray] = {}
    with policy.for_sampling():
        for size in (24, 8, 1):
            rows = []
            for start in range(0, 24, size):
                batch = batch_for(policy)
                batch.add(batch.prefill([prompt[:-1] for prompt in prompts[start : start + size]]))
                last = [prompt[-1] for prompt in prompts[start : start + size]]
                logits = []
                for step in range(steps):
                    logits.append(np.array(batch.step(mx.array(last))))
                    if size == 24:
                        keys = token_keys([7 << 40 | row for row in range(24)], [step] * 24)
                        drawn = draw(mx.array(logits[-1]), Sampling(), keys)
                        tokens.append(np.array(drawn.tokens).tolist())
                    last = tokens[step][start : start + size]
                rows.append(np.stack(logits, axis=1))
            found[size] = np.concatenate(rows)
    for size in (8, 24):
        if policy.kernels is not None:
            assert np.array_equal(found[size], found[1])
            continue
        assert not np.array_equal(found[size], found[1])  # rounded differently
        chances = np.array(
            [
                flip_probability(found[1][row, step], found[size][row, step])
                for row in range(24)
                for step in range(steps)
            ]
        )
        mean, error = chances.mean(), chances.std() / len(chances) ** 0.5
        assert mean + 3 * error < 1e-5
