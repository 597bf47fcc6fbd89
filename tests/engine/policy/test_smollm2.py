"""A real model: SmolLM2 agrees with transformers, from import to adapter."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo_engine.config.settings import ModelConfig
from grpo_engine.policy.batch import TokenRow, micro_batches
from grpo_engine.policy.forward import token_scores
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.policy import Policy
from tests.engine.policy.helpers import COMPUTES
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
