"""The trained model is the sampled one, and small steps count, in float32 and in 16 bits."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from benchmarks.number_formats import cosine, first_update, sum_of
from grpo_engine.config.settings import ModelConfig, RunConfig
from grpo_engine.events import NoteWritten, PassFinished, StepFinished
from grpo_engine.policy import attention, optimizer
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.memory import estimate_memory
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.trees import flatten
from grpo_engine.rollouts.batches import batch_for
from grpo_engine.setup import self_check
from grpo_engine.training.sampling import SampledGroups
from tests.engine.conftest import MakePolicy
from tests.engine.policy.helpers import largest, move_weights
from tests.engine.runs import completed, events_of, of, settings
from tests.engine.tiny import write_model

GAP = "sampling/sampling_logp_difference/max"
# sums in another order differ by float32 rounding; the same sums do not
EQUAL = {"float32": 1e-4, "bfloat16": 1e-6, "float16": 1e-6}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "tuning"),
    [("float32", "lora"), ("float32", "full"), ("bfloat16", "dora"), ("float16", "full")],
)
def test_the_sampler_agrees_with_the_trainer_at_every_step(
    world: Path, tmp_path: Path, dtype: str, tuning: str
) -> None:
    config = settings(world, steps=3, model={"dtype": dtype, "tuning": tuning})
    events = completed(config, tmp_path)
    gaps = [event.metrics[GAP] for event in of(StepFinished, events)]
    assert len(gaps) == 3
    assert max(gaps) <= EQUAL[dtype]
    norms = [event.grad_norm for event in of(PassFinished, events)]
    assert all(norm and 0 < norm < 1e3 for norm in norms)


def one_update(
    world: Path, folder: Path, given: SampledGroups | None, **model: Any
) -> tuple[SampledGroups, dict[str, mx.array], float]:
    config: RunConfig = settings(
        world, model=model, algorithm={"beta": 0.0}, optimizer={"learning_rate": 1e-6}
    )
    return first_update(config, folder, given)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_full_tuning_moves_16_bit_weights_as_far_as_float32_ones(
    world: Path, tmp_path: Path, dtype: str
) -> None:
    given, whole, _ = one_update(world, tmp_path / "a", None, tuning="full")
    _, half, read = one_update(world, tmp_path / "b", given, tuning="full", dtype=dtype)
    assert sum_of(half, abs) / sum_of(whole, abs) == pytest.approx(1, abs=0.02)
    assert all(value.dtype == mx.float32 for value in half.values())
    # a step of 1e-6 is below half a unit in the last place of nearly all 16-bit weights
    assert read < 0.05


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_adapters_of_16_bit_weights_are_float32(
    make_policy: MakePolicy, tmp_path: Path, dtype: str
) -> None:
    first = make_policy(dtype=dtype)
    move_weights(first)
    halves = {name: value.astype(mx.float16) for name, value in first.snapshot().items()}
    first.save_adapter(tmp_path / "adapter", weights=halves)
    for policy in (first, make_policy(dtype=dtype, adapter=str(tmp_path / "adapter"))):
        assert {value.dtype for value in policy.snapshot().values()} == {mx.float32}
        held = optimizer.Learner(optimizer.build(settings(tmp_path).optimizer), policy.snapshot())
        assert not held.masters


def test_a_saved_full_adapter_takes_the_format_of_the_model(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    whole = make_policy(tuning="full")
    mx.save_safetensors(str(tmp_path / "adapters.safetensors"), whole.snapshot())
    (tmp_path / "adapter_config.json").write_text('{"fine_tune_type": "full", "num_layers": -1}')
    policy = make_policy(tuning="full", dtype="bfloat16", adapter=str(tmp_path))
    assert {value.dtype for value in policy.snapshot().values()} == {mx.bfloat16}


def test_a_reference_that_follows_slowly_is_mixed_in_float32(make_policy: MakePolicy) -> None:
    policy = make_policy(tuning="full", dtype="bfloat16")
    name = "model.norm.weight"
    policy.reference = {n: mx.ones_like(v) for n, v in policy.snapshot().items()}
    policy.load_trainable({n: 1.5 * mx.ones_like(v) for n, v in policy.snapshot().items()})
    for _ in range(10):
        policy.refresh_reference(0.001)
    # 1.5 - .5 x .999^10 = 1.00498; in bfloat16 the next number after 1 is 1.0078
    assert policy.reference[name][0].item() == pytest.approx(1.00498, abs=1e-5)
    with policy.as_reference():
        assert flatten(policy.model.parameters())[name].dtype == mx.bfloat16


def test_memory_counts_float32_copies_moments_and_gradients_of_16_bit_weights(
    make_policy: MakePolicy,
) -> None:
    sizes = {"rows": 4, "micro_rows": 4, "prompt_tokens": 9, "new_tokens": 6}
    half, whole = (
        estimate_memory(make_policy(tuning="full", dtype=dtype), **sizes)
        for dtype in ("bfloat16", "float32")
    )
    copies = 4 * make_policy(tuning="full").parameters
    assert half.optimizer == whole.optimizer + copies


@pytest.mark.slow
def test_an_overflowing_gradient_is_computed_again_with_less_scale(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(world, steps=1, model={"dtype": "float16", "tuning": "full"})

    def passes(most: float) -> list[PassFinished]:
        monkeypatch.setattr(optimizer, "MAX_SCALE", most)
        events = completed(config, tmp_path / str(most))
        return of(PassFinished, events)

    (usual,), (large,) = passes(2.0**16), passes(2.0**44)
    assert large.loss == usual.loss
    assert large.grad_norm == pytest.approx(usual.grad_norm, rel=0.01)


@pytest.mark.slow
def test_the_scale_keeps_gradients_that_float16_would_lose(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # rewards that differ by 1e-4 give logit gradients around 1e-7; 6e-8 is the smallest number
    small = {"signal": "group_mean", "beta": 0.0}
    (world / "small.py").write_text(
        "def small(completions, **_):\n    return [1e-4 * len(set(text)) for text in completions]\n"
    )

    def moved(dtype: str, given: SampledGroups | None, most: float) -> tuple[SampledGroups, Any]:
        monkeypatch.setattr(optimizer, "MAX_SCALE", most)
        config = settings(
            world,
            model={"dtype": dtype, "tuning": "full"},
            algorithm=small,
            rewards={"functions": [f"{world}/small.py:small"]},
            optimizer={"name": "sgd", "learning_rate": 1.0},
        )
        given, change, _ = first_update(config, tmp_path / f"{dtype}{most}", given)
        return given, change

    given, whole = moved("float32", None, 1.0)
    plain, scaled = (cosine(whole, moved("float16", given, most)[1]) for most in (1.0, 2.0**16))
    assert scaled > 0.99
    assert plain < 0.95


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_self_check_passes_with_an_adapter_that_is_not_zero_and_leaves_it_as_it_was(
    world: Path, tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Policy, dict[str, mx.array]]] = []
    plain = self_check.moved_adapter

    def moved(policy: Policy) -> dict[str, mx.array] | None:
        seen.append((policy, policy.snapshot()))
        found = plain(policy)
        assert found is not None
        assert max(largest(v) for n, v in found.items() if n.endswith("lora_b")) > 0.01
        return found

    monkeypatch.setattr(self_check, "moved_adapter", moved)
    config = settings(world, steps=1, model={"dtype": dtype}, optimizer={"learning_rate": 0.0})
    events = events_of(config, tmp_path)
    assert any(isinstance(e, NoteWritten) and "self-check passed" in e.text for e in events)
    ((policy, before),) = seen
    after = policy.snapshot()
    assert all(mx.array_equal(before[name], after[name]) for name in before)


def test_a_model_too_large_for_float16_is_told_to_use_bfloat16(world: Path, tmp_path: Path) -> None:
    large = write_model(tmp_path / "large", scale=3000.0)
    events = events_of(
        settings(world, model={"path": str(large), "dtype": "float16"}), tmp_path / "run"
    )
    assert "model.dtype=bfloat16" in getattr(events[-1], "message", ""), events[-1]


def test_updates_that_float16_cannot_hold_end_with_that_remedy(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizer, "global_norm", lambda _: mx.array(mx.inf))
    events = events_of(settings(world, model={"dtype": "float16"}), tmp_path)
    assert "Set model.dtype to bfloat16" in getattr(events[-1], "message", ""), events[-1]


def rounded_as_on_m5(q: mx.array, *rest: Any, **options: Any) -> mx.array:
    """Attention whose numbers for several rows lie by 2^-8 from those for one row."""
    output: mx.array = attention.plain(q, *rest, **options)
    if q.shape[0] == 1:
        return output
    signs = mx.where(mx.arange(output.size).reshape(output.shape) * 7 % 3 == 0, 1.0, -1.0)
    return output * (1 + 2.0**-8 * signs).astype(output.dtype)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [2, 12, 24])
def test_rows_are_decoded_together_where_attention_differs_as_on_an_m5(
    layers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path / "model", scale=1.0, num_hidden_layers=layers, hidden_size=64)
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", rounded_as_on_m5)
    monkeypatch.setattr(attention, "install", lambda _: None)
    policy = load_policy(ModelConfig(path=str(folder), dtype="bfloat16", compute="graph"), seed=0)
    batch_for(policy)

    assert policy.batching == "graph"
    assert policy.parts is not None
    assert policy.prefix_caches is not None
