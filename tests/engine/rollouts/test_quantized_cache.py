"""Rows decoded from a quantised cache equal mlx-lm's own of one row, in a fraction of the bytes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.cache import QuantizedKVCache

from grpo_engine.config.parse import build
from grpo_engine.config.settings import ModelConfig
from grpo_engine.errors import ModelError
from grpo_engine.events import ModelLoaded, NoteWritten, StepFinished
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.memory import Sizes, estimate_memory
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.quantized import GROUP, bits_of
from grpo_engine.rollouts import decode
from grpo_engine.rollouts.batches import batch_for, check_cache_bits
from grpo_engine.rollouts.decode import sample_groups
from grpo_engine.rollouts.types import PromptRows, Sampling, Trajectory
from tests.engine.policy.helpers import drain, made_up_rows
from tests.engine.rollouts.dialogues import Scripted, dialogues, said
from tests.engine.runs import events_of, of, settings, write_world
from tests.engine.tiny import MAMBA, QWEN3_5, write_model

PROMPTS = [
    PromptRows(key=f"p{group}", group=group, ids=row.prompt_ids, rows=3)
    for group, row in enumerate(made_up_rows([(5, (1,)), (12, (1,)), (1, (1,)), (7, (1,))]))
]
SAMPLING = Sampling(max_new_tokens=30, stop=("a", "e", "o", "1", " "))
# a rounding that goes the other way moves a number by a step of its group
TOLERANCE = {"8": 2e-3, "4": 2e-2}


def load(folder: Path, bits: str, **changes: Any) -> Policy:
    path = write_model(folder / bits, scale=1.0, **{"head_dim": 32, **changes})
    return load_policy(ModelConfig(path=str(path), kv_bits=bits), seed=0)


def sample(policy: Policy, prompts: Sequence[PromptRows] = PROMPTS, **options: Any) -> Any:
    return drain(sample_groups(policy, prompts, SAMPLING, seed=1, step=2, **options))[1]


def by_mlx_lm(policy: Policy, rollout: Trajectory, bits: int) -> list[float]:
    """The row's log-probabilities from mlx-lm's cache, the prompt in one piece."""
    caches = [QuantizedKVCache(GROUP, bits) for _ in policy.model.layers]
    logprobs, piece = [], list(rollout.prompt_ids)
    for token in rollout.ids:
        logits = policy.model(mx.array([piece]), cache=caches)[0, -1]
        logprobs.append(float(nn.log_softmax(logits.astype(mx.float32))[token]))
        piece = [token]
    return logprobs


@pytest.mark.parametrize("batching", ["graph", "separate"])
@pytest.mark.parametrize("bits", ["8", "4"])
def test_a_batch_has_the_log_probabilities_of_mlx_lms_cache_of_one_row(
    tmp_path: Path, bits: str, batching: str
) -> None:
    policy = load(tmp_path, bits)
    policy.batching = batching
    rollouts = sample(policy)
    assert len({len(rollout.ids) for rollout in rollouts}) > 2  # rows leave at different times
    for rollout in rollouts:
        expected = by_mlx_lm(policy, rollout, int(bits))
        assert rollout.raw_logprobs == pytest.approx(expected, abs=TOLERANCE[bits])


@pytest.mark.parametrize("bits", ["8", "4"])
def test_rows_leave_a_quantised_batch_and_come_back(
    tmp_path: Path, bits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "PATIENCE", 60.0)
    policy = load(tmp_path, bits)
    replies = {
        (row, turn): said("x" * (1 + 5 * row % 7 + turn)) for row in range(12) for turn in range(3)
    }
    together = sample(policy, dialogues=dialogues(Scripted(replies)))
    policy.batching = "separate"
    alone = sample(policy, dialogues=dialogues(Scripted(replies)))
    assert max(len(rollout.spans) for rollout in together) >= 3
    for one, other in zip(together, alone, strict=True):
        assert one.ids == other.ids
        assert one.raw_logprobs == pytest.approx(other.raw_logprobs, abs=TOLERANCE[bits])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("bits", "expected"), [("8", (10, 9)), ("4", (6, 5))])
def test_the_cache_takes_the_bytes_that_the_plan_counts(
    tmp_path: Path, dtype: str, bits: str, expected: tuple[int, int]
) -> None:
    """A number has its bits, and a share of a scale and a bias for 32: 2 * 32 / 32 or 2 * 16 / 32.

    So 8 bits take 10 of 32, or 9 of 16, and 4 bits take 6 or 5.
    """
    path = write_model(tmp_path / "model", head_dim=32)
    sizes = {}
    for chosen in ("off", bits):
        config = ModelConfig(path=str(path), kv_bits=chosen, dtype=dtype, compute="graph")
        policy = load_policy(config, seed=0)
        batch = batch_for(policy)
        batch.add(batch.prefill([tuple(range(1, 9))] * 4))
        mx.eval(batch.step(mx.array([1, 2, 3, 4])))
        sizes[chosen] = sum(cache.nbytes for cache in batch.caches)
        counted = estimate_memory(
            policy, rows=4, micro_rows=1, prompt_tokens=0, new_tokens=256
        ).sampling
        widths = Sizes.of(policy)
        copied = sizes[chosen] / widths.layers if chosen != "off" else 0
        logits = 4 * 4 * widths.vocabulary * 4
        assert counted == sizes[chosen] + copied + logits
    usual, few = (32, expected[0]) if dtype == "float32" else (16, expected[1])
    assert sizes[bits] * usual == sizes["off"] * few
    assert bits_of(policy.model, int(bits), usual) == few


def test_layers_without_keys_and_values_stay_as_they_are(tmp_path: Path) -> None:
    """Of a hybrid's layers some have states: the others are quantised, and counted."""
    policy = load(tmp_path, "4", **{**QWEN3_5, "head_dim": 32})
    check_cache_bits(policy)
    kinds = [type(cache).__name__ for cache in batch_for(policy).empty()]
    assert set(kinds) == {"ArraysCache", "QuantizedCache"}
    share = kinds.count("QuantizedCache") / len(kinds)
    assert bits_of(policy.model, 4, 32) == pytest.approx(share * 6 + (1 - share) * 32)
    assert all(np.isfinite(rollout.logprobs).all() for rollout in sample(policy, PROMPTS[:1]))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"head_dim": 8}, "group size"), (MAMBA, "its layers keep no keys and values")],
    ids=["narrow heads", "states"],
)
def test_a_model_without_a_cache_to_quantise_is_refused(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    policy = load(tmp_path, "8", **changes)
    with pytest.raises(
        ModelError, match=rf"model\.kv_bits 8 .*{reason}.*; set it to off"
    ) as raised:
        check_cache_bits(policy)
    assert raised.value.settings == ("model.kv_bits",)


def test_a_run_shows_the_gap_and_corrects_for_it_by_itself(tmp_path: Path) -> None:
    world = write_world(tmp_path)
    write_model(world / "model", head_dim=32, scale=1.0)
    (loaded, *_), notes, steps = outcome(world, tmp_path / "few", kv_bits="4")
    assert loaded.settled == {
        "algorithm.importance_cap": 3.0,
        "algorithm.importance_mode": "sequence_mask",
    }
    assert "sampler and trainer cannot agree exactly" in notes
    _, usual_notes, usual = outcome(world, tmp_path / "usual")
    assert "cannot agree" not in usual_notes
    name = "sampling/sampling_logp_difference/mean"
    assert max(step[name] for step in usual) < 1e-4 < min(step[name] for step in steps)


def outcome(world: Path, folder: Path, **model: Any) -> tuple[list[Any], str, list[Any]]:
    events = events_of(settings(world, steps=2, model=model), folder)
    notes = "\n".join(event.text for event in of(NoteWritten, events))
    steps = [event.metrics for event in of(StepFinished, events)]
    return of(ModelLoaded, events), notes, steps


@pytest.mark.parametrize("value", [8, "8"])
def test_bits_are_a_choice_that_may_be_written_as_a_number(value: Any) -> None:
    assert build({"model": {"kv_bits": value}}).model.kv_bits == "8"
