"""A step that cannot fit is refused with numbers and settings that would help."""

from dataclasses import replace
from pathlib import Path

import pytest

from grpo_engine import preflight
from grpo_engine.errors import MemoryLimitError
from grpo_engine.policy import Policy, choose_micro_rows, estimate_memory, load_policy
from tests.engine.runs import settings, write_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def policy(world: Path) -> Policy:
    return load_policy(settings(world).model, seed=0)


def test_more_rows_and_longer_answers_need_more(policy: Policy) -> None:
    small = estimate_memory(policy, rows=8, micro_rows=2, prompt_tokens=8, new_tokens=12)
    rows = estimate_memory(policy, rows=16, micro_rows=4, prompt_tokens=8, new_tokens=12)
    longer = estimate_memory(policy, rows=8, micro_rows=2, prompt_tokens=8, new_tokens=24)
    assert rows.update == 2 * small.update
    assert rows.sampling > small.sampling
    assert longer.update > small.update
    assert small.weights == (26_944 + 4_096) * 4  # the model and its adapter in float32
    assert small.optimizer == 4_096 * 4 * 3  # gradients and two moments of what is trained


def test_chosen_rows_fit_the_budget(policy: Policy) -> None:
    for budget in (300_000, 1_000_000, 10_000_000):
        rows = choose_micro_rows(policy, rows=64, prompt_tokens=8, new_tokens=12, budget=budget)
        found = estimate_memory(policy, rows=0, micro_rows=rows, prompt_tokens=8, new_tokens=12)
        assert rows == 1 or found.weights + found.optimizer + found.update <= budget
    assert rows == 64


@pytest.mark.parametrize(
    ("part", "remedy"),
    [
        ("update", "optimizer.micro_rows=2"),
        ("sampling", "rollout.max_rows=4"),
        ("weights", "model.tuning=lora"),
    ],
)
def test_a_step_that_cannot_fit_is_refused_with_what_would_help(
    world: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch, part: str, remedy: str
) -> None:
    real = estimate_memory(policy, rows=8, micro_rows=4, prompt_tokens=8, new_tokens=12)
    huge = replace(real, **{part: 10**13})
    monkeypatch.setattr(preflight, "estimate_memory", lambda *_, **__: huge)
    with pytest.raises(MemoryLimitError, match=remedy) as refused:
        preflight.check_memory(settings(world), policy, 8, 4)
    assert "10000.0 GB" in str(refused.value)
