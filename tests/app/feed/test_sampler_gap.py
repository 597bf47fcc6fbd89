"""The gap between sampler and trainer, from run to screen: weights, notes, settings."""

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.mismatch import can_agree, is_quantized
from grpo_engine.config.settings import RunConfig
from grpo_engine.events import AlertRaised, Event, ModelLoaded, NoteWritten, StepFinished
from grpo_tui.app.inspector.stored import load_group, load_step, run_info
from grpo_tui.experiments.reader import StoreReader
from tests.engine.runs import events_of, settings
from tests.experiments.made import recorded

RATIO = "sampling/importance_sampling_ratio"
ON = {"algorithm.importance_cap": 3.0, "algorithm.importance_mode": "sequence_mask"}


def stored(config: RunConfig, folder: Path) -> tuple[list[Event], StoreReader, int]:
    """Run and record the events."""
    events = events_of(config, folder / "run")
    run = recorded(folder / "store.db", *events, tree=config.model_dump(mode="json"))
    return events, StoreReader(run.path), run.key


def of_steps(events: list[Event]) -> list[StepFinished]:
    return [event for event in events if isinstance(event, StepFinished)]


@pytest.mark.slow
def test_in_16_bits_the_correction_is_on_unless_someone_decided(
    world: Path, tmp_path: Path
) -> None:
    config = settings(world, steps=2, model={"dtype": "bfloat16"})
    events, reader, key = stored(config, tmp_path)
    loaded = next(event for event in events if isinstance(event, ModelLoaded))
    assert loaded.settled == ON
    notes = [event.text for event in events if isinstance(event, NoteWritten)]
    assert [text for text in notes if "algorithm.importance_cap 0 turns this off" in text]
    assert all(f"{RATIO}/mean" in event.metrics for event in of_steps(events))
    detail = reader.run(key)
    assert ON.items() <= detail.settings.items()
    assert detail.settings["algorithm.importance_cap"] == 3.0
    assert detail.config["algorithm"]["importance_cap"] is None  # the stored setting is unchanged
    recipe = run_info(reader, key).recipe
    assert (recipe.importance_cap, recipe.importance_mode) == (3.0, "sequence_mask")


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "cap"), [("float32", None), ("bfloat16", 0.0)])
def test_without_need_nothing_is_corrected_and_a_decision_is_kept(
    world: Path, tmp_path: Path, dtype: str, cap: float | None
) -> None:
    config = settings(world, steps=1, model={"dtype": dtype}, algorithm={"importance_cap": cap})
    events, reader, key = stored(config, tmp_path)
    assert reader.run(key).settings["algorithm.importance_cap"] == cap
    recipe = run_info(reader, key).recipe
    assert (recipe.importance_cap, recipe.importance_mode) == (0, "token_truncate")
    assert not [name for event in of_steps(events) for name in event.metrics if RATIO in name]
    assert not [e for e in events if isinstance(e, NoteWritten) and "importance_cap" in e.text]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"importance_cap": 1.5, "importance_floor": 0.5},
        {"importance_cap": 1.5, "importance_floor": 0.5, "importance_mode": "token_mask"},
        {"importance_cap": 3.0, "importance_floor": 0.05, "importance_mode": "sequence_truncate"},
        {"importance_cap": 3.0, "importance_floor": 0.01, "importance_mode": "sequence_mask"},
    ],
)
def test_the_inspector_shows_the_weights_that_the_engine_used(
    world: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    # top_k 20 of 261 tokens: the sampler's probabilities are higher than the policy's; weights are
    # below 1
    config = settings(
        world,
        steps=1,
        rollout={"top_k": 20},
        algorithm={**changes, "off_policy_mask": 0.15, "passes": 2},
    )
    events, reader, key = stored(config, tmp_path)
    metrics = of_steps(events)[0].metrics
    step = load_step(reader, run_info(reader, key), 1)
    details = [load_group(reader, step, group) for group in step.groups]
    answers = [answer.losses for detail in details for answer in detail.completions]
    if "sequence" in changes.get("importance_mode", ""):
        weights = [answer[0].importance for answer in answers]
        assert all({t.importance for t in answer} == {answer[0].importance} for answer in answers)
    else:
        weights = [term.importance for answer in answers for term in answer]
    assert min(weights) < 0.9
    for name, found in (("min", min), ("mean", statistics.fmean), ("max", max)):
        assert metrics[f"{RATIO}/{name}"] == pytest.approx(found(weights), rel=2e-3, abs=1e-6)
    kept = [term.on_policy for answer in answers for term in answer]
    assert metrics["sampling/masked_ratio"] == pytest.approx(1 - statistics.fmean(kept), abs=1e-6)
    assert 0 < statistics.fmean(kept) < 1


def test_tokens_that_were_set_and_not_drawn_are_in_no_weight(world: Path, tmp_path: Path) -> None:
    # once the thinking budget is spent, the sampler forces `</think>` with probability 1; the
    # policy does not
    config = settings(
        world,
        steps=1,
        rollout={"think_budget": 3, "max_new_tokens": 16},
        algorithm={"importance_cap": 5.0, "importance_mode": "sequence_truncate"},
    )
    events, reader, key = stored(config, tmp_path)
    metrics = of_steps(events)[0].metrics
    step = load_step(reader, run_info(reader, key), 1)
    groups = [load_group(reader, step, group) for group in step.groups]
    assert any("</think>" in answer.text for group in step.groups for answer in group.rollouts)
    weights = [answer.losses[0].importance for group in groups for answer in group.completions]
    assert 0 < metrics[f"{RATIO}/min"] == pytest.approx(min(weights), rel=5e-3)
    assert metrics[f"{RATIO}/mean"] == pytest.approx(statistics.fmean(weights), rel=5e-3)


@pytest.mark.slow
def test_the_off_policy_mask_alone_reads_what_the_sampler_gave(world: Path, tmp_path: Path) -> None:
    # one pass over fresh answers: only the sampler's top_k cut makes answers off-policy
    for top_k, left_out in ((20, True), (0, False)):
        config = settings(
            world, steps=1, rollout={"top_k": top_k}, algorithm={"off_policy_mask": 0.01}
        )
        metrics = of_steps(events_of(config, tmp_path / str(top_k)))[0].metrics
        assert (metrics["sampling/masked_ratio"] > 0) == left_out


def test_packed_weights_are_corrected_for_where_they_are_kept(world: Path, tmp_path: Path) -> None:
    from mlx_lm.convert import convert

    packed = tmp_path / "packed"
    convert(str(world / "model"), str(packed), quantize=True, q_group_size=32, q_bits=8)
    config = settings(
        world, steps=1, model={"path": str(packed), "quantized": "keep", "dtype": "float32"}
    )
    events = events_of(config, tmp_path / "run")
    loaded = next(event for event in events if isinstance(event, ModelLoaded))
    assert loaded.settled == ON


@pytest.mark.parametrize(
    ("algorithm", "severity"), [({}, "error"), ({"importance_cap": 3.0}, "warning")]
)
def test_a_sampler_that_drifts_from_the_trainer_is_an_alert(
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    algorithm: dict[str, Any],
    severity: str,
) -> None:
    from grpo_engine import trainer
    from grpo_engine.training.samples import Samples, gather

    def drifted(*given: Any) -> Samples:
        samples = gather(*given)
        return replace(samples, raw_sampler_logprobs_BT=samples.raw_sampler_logprobs_BT - 0.01)

    monkeypatch.setattr(trainer, "gather", drifted)
    events = events_of(settings(world, steps=1, algorithm=algorithm), tmp_path)
    alerts = [event for event in events if isinstance(event, AlertRaised)]
    assert [(alert.rule, alert.severity) for alert in alerts] == [("sampler_disagrees", severity)]
    assert alerts[0].value == pytest.approx(0.01, rel=1e-2)


def test_only_float32_weights_that_are_not_packed_can_agree() -> None:
    assert can_agree("float32")
    assert not can_agree("float32", quantized=True)
    assert not any(can_agree(dtype) for dtype in ("bfloat16", "float16"))
    assert is_quantized(["model.layers.0.q_proj.linear.scales", "norm.weight"])
    assert not is_quantized(["model.layers.0.q_proj.lora_a", "norm.weight"])
