"""A step that cannot fit is refused, with numbers and with settings that would help."""

import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from benchmarks.models import tiny_config
from grpo_engine.config.settings import ModelConfig
from grpo_engine.errors import MemoryLimitError
from grpo_engine.policy import memory
from grpo_engine.policy.batch import TokenRow, micro_batches
from grpo_engine.policy.forward import token_scores
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.memory import (
    Lengths,
    MemoryEstimate,
    MemoryPlan,
    Sizes,
    choose_head_chunk,
    choose_plan,
    estimate_memory,
)
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.shapes import describe
from grpo_engine.rollouts.decode import sample_groups
from grpo_engine.rollouts.prompts import RenderedPrompt
from grpo_engine.rollouts.types import PromptRows, Sampling
from grpo_engine.setup import preflight
from grpo_engine.tasks.base import Example, load_task
from tests.engine.policy.helpers import drain, made_up_rows
from tests.engine.runs import settings
from tests.engine.tiny import write_model

PLAN = MemoryPlan(4, False, 64, 8)


@pytest.fixture(scope="module")
def policy(world: Path) -> Policy:
    return load_policy(settings(world).model, seed=0)


def test_more_rows_and_longer_answers_need_more(policy: Policy) -> None:
    small = estimate_memory(policy, rows=8, micro_rows=2, prompt_tokens=8, new_tokens=12)
    rows = estimate_memory(policy, rows=16, micro_rows=4, prompt_tokens=8, new_tokens=12)
    longer = estimate_memory(policy, rows=8, micro_rows=2, prompt_tokens=8, new_tokens=24)
    assert 1.5 * small.update < rows.update < 2 * small.update  # the prompt is processed once
    assert rows.sampling > small.sampling
    assert longer.update > small.update
    assert small.weights == (26_944 + 4_096) * 4  # the model and its adapter in float32
    assert small.optimizer == 4_096 * 4 * 4  # two gradients and two moments of the trained weights


def planned(policy: Policy, budget: int, setting: str = "auto", **changes: int) -> MemoryPlan:
    config = policy.config.model_copy(update={"grad_checkpoint": setting})
    sizes = {"rows": 64, "prompt_tokens": 8, "new_tokens": 12, **changes}
    return choose_plan(replace(policy, config=config), budget=budget, **sizes)


def training(policy: Policy, plan: MemoryPlan) -> int:
    return estimate_memory(
        plan.under(policy), rows=64, micro_rows=plan.micro_rows, prompt_tokens=8, new_tokens=12
    ).training


def test_chosen_rows_fit_the_budget(policy: Policy) -> None:
    for budget in (400_000, 1_000_000, 10_000_000):
        plan = planned(policy, budget)
        assert training(policy, plan) <= budget
    assert plan.micro_rows == 64


def test_no_more_rows_are_chosen_than_help_on_a_cpu(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen(prompt_tokens: int, new_tokens: int) -> int:
        return planned(
            policy, 10**12, rows=4096, prompt_tokens=prompt_tokens, new_tokens=new_tokens
        ).micro_rows

    hidden = Sizes.of(policy).hidden
    assert chosen(8, 64) == 2**19 // hidden // 64
    assert chosen(8, 2**19) == 1
    assert chosen(4000, 64) == 500  # 8 x 4,000 tokens of answers for each time that it runs
    monkeypatch.setattr(memory, "on_cpu", lambda: False)
    assert chosen(8, 64) == 4096


def test_layers_are_recomputed_only_where_that_is_faster(graph: Policy) -> None:
    """Kept layers cost 3 forwards of a token and recomputed ones 4, and each pass its prompt.

    With room for 2 of 64 rows of 8 tokens after a prompt of 500, 32 passes run 516 tokens each:
    32 * 516 * 3 = 49,536. Recomputed, 7 rows fit: 10 passes of 556 are 22,240. With room for all
    rows, layers are kept.
    """
    sizes: dict[str, Any] = {"prompt_tokens": 500, "new_tokens": 8}
    kept = estimate_memory(graph, rows=64, micro_rows=2, **sizes).training
    assert planned(graph, 10**12, **sizes).grad_checkpoint is False
    plan = planned(graph, kept, **sizes)
    assert plan.grad_checkpoint
    assert plan.micro_rows > 2
    assert planned(graph, kept, "off", **sizes)[:2] == (2, False)
    assert planned(graph, 10**12, "on", **sizes).grad_checkpoint is True


def test_set_rows_are_kept_and_layers_recomputed_if_they_need_it(graph: Policy) -> None:
    room = training(graph, MemoryPlan(8, False, graph.head_chunk, 64))
    assert planned(graph, 10 * room, micro_rows=8)[:2] == (8, False)
    assert planned(graph, room - 10**5, micro_rows=8)[:2] == (8, True)
    assert planned(graph, room - 10**5, "off", micro_rows=8)[:2] == (8, False)


def test_the_smaller_plan_is_chosen_where_none_fits(graph: Policy) -> None:
    assert planned(graph, 1, micro_rows=8).grad_checkpoint


@pytest.fixture(scope="module")
def untraceable(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """A model that reads numbers while its graph is built."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "config.json").write_text(json.dumps(tiny_config("dbrx")))
    return describe(ModelConfig(path=str(folder)))


def test_a_pass_has_one_row_where_its_memory_is_not_known(untraceable: Policy) -> None:
    assert planned(untraceable, 10**12)[:2] == (1, True)
    assert planned(untraceable, 10**12, "off", micro_rows=8)[:2] == (8, False)


def test_an_unknown_memory_is_said_and_refuses_nothing(
    world: Path, untraceable: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "memory_limit", lambda: 1)
    estimate = preflight.check_memory(settings(world), untraceable, Lengths(8, 12), PLAN)
    assert str(estimate).startswith("the memory of a step is not known, ")


def test_as_many_rows_are_decoded_at_a_time_as_fit(graph: Policy) -> None:
    def decoding(rows: int) -> int:
        return estimate_memory(
            graph, rows=rows, micro_rows=1, prompt_tokens=8, new_tokens=12
        ).decoding

    assert planned(graph, decoding(64)).max_rows == 64
    assert planned(graph, decoding(20)).max_rows == 20
    assert planned(graph, decoding(20) - 1).max_rows == 19
    assert planned(graph, 1).max_rows == 1
    assert planned(graph, decoding(20), max_rows=40).max_rows == 40
    assert planned(graph, decoding(64), max_rows=90).max_rows == 64


def test_a_head_takes_as_many_positions_as_memory_and_vocabulary_allow(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 * 2^20 logits of 49,152 tokens are 64 positions; 2^25 on a GPU are 672, a multiple of 16.

    Of 200 MB beside the weights an eighth, 25 MB, is for 4 arrays of 4 bytes: 1.6 million logits,
    which are 33 positions, and 32 as a multiple of 16. Fewer than 16 are never taken.
    """
    large = replace(policy, vocabulary=49_152)
    assert choose_head_chunk(large, 10**12) == 64
    assert choose_head_chunk(replace(policy, vocabulary=98_304), 10**12) == 32
    assert choose_head_chunk(large, 200 * 2**20) == 32
    assert choose_head_chunk(large, 10**6) == 16
    monkeypatch.setattr(memory, "on_cpu", lambda: False)
    assert choose_head_chunk(large, 10**12) == 672


@pytest.fixture(scope="module")
def wider(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose activations are larger than the other memory that MLX holds."""
    return write_model(
        tmp_path_factory.mktemp("models") / "wider",
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
    )


def on_the_graph(path: Path, **changes: Any) -> Policy:
    return load_policy(ModelConfig(path=str(path), **{"compute": "graph", **changes}), seed=0)


@pytest.fixture(scope="module")
def graph(wider: Path) -> Policy:
    return on_the_graph(wider)


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(
        tmp_path_factory.mktemp("models") / "flat",
        hidden_size=192,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
    )


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["wider", pytest.param("flat", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        *(
            pytest.param(changes, marks=pytest.mark.slow)
            for changes in (
                {"grad_checkpoint": "on"},
                {"dtype": "bfloat16"},
                {"compute": "rows"},
                {"tuning": "full"},
                {"tuning": "dora"},
                {"lora_layers": 3},
                {"dtype": "bfloat16", "grad_checkpoint": "on"},
            )
        ),
    ],
    ids=str,
)
def test_the_estimate_is_near_the_measured_peaks_of_the_graph(
    request: pytest.FixtureRequest, shape: str, changes: dict[str, Any]
) -> None:
    policy = on_the_graph(request.getfixturevalue(shape), **changes)
    long = estimate_memory(policy, rows=1, micro_rows=1, prompt_tokens=60, new_tokens=1000)
    # a processor runs up to ten operations ahead of the memory that they free
    assert update_bytes(policy, made_up_rows([(60, [1000])])) == pytest.approx(long.update, rel=0.3)
    rows = made_up_rows([(60, [48] * 8)])
    estimate = estimate_memory(policy, rows=8, micro_rows=8, prompt_tokens=60, new_tokens=48)
    assert update_bytes(policy, rows) == pytest.approx(estimate.update, rel=0.2)
    prompts = [PromptRows(key="p", group=0, ids=rows[0].prompt_ids, rows=8)]
    sampling = Sampling(max_new_tokens=48, ignore_end=True)
    assert measured(
        lambda: drain(sample_groups(policy, prompts, sampling, seed=0, step=0))
    ) == pytest.approx(estimate.sampling, rel=0.2)


def test_the_estimate_is_near_the_peak_of_compiled_passes(wider: Path) -> None:
    policy = load_policy(ModelConfig(path=str(wider)), seed=0)
    rows = made_up_rows([(60, [48] * 8)])
    estimate = estimate_memory(policy, rows=8, micro_rows=8, prompt_tokens=60, new_tokens=48)
    policy.forget_peak_memory()
    in_mlx = update_bytes(policy, rows)
    in_kernels = policy.kernels.peak_memory if policy.kernels else 0
    assert in_mlx + in_kernels == pytest.approx(estimate.update, rel=0.4)


def update_bytes(policy: Policy, rows: Sequence[TokenRow]) -> int:
    """Peak of a backward pass over some rows, without the gradient that it returns."""
    (batch,) = micro_batches(rows, max_rows=len(rows))

    def loss() -> tuple[mx.array, mx.array | None]:
        scores = token_scores(policy, batch, temperature=1.0, entropy=True)
        return scores.logprobs.sum(), scores.entropy

    gradient = sum(int(array.nbytes) for array in policy.snapshot().values())
    limit = mx.set_memory_limit(1)  # one operation at a time
    try:
        return measured(lambda: mx.eval(nn.value_and_grad(policy.module, loss)())) - gradient
    finally:
        mx.set_memory_limit(limit)


def measured(work: Callable[[], object]) -> int:
    """Peak memory of MLX during some work, in bytes beyond what it held before."""
    gc.collect()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    work()
    return int(mx.get_peak_memory() - before)


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
    change: Any = {part: 10**13}
    huge = replace(real, **change)
    monkeypatch.setattr(preflight, "estimate_memory", lambda *_, **__: huge)
    with pytest.raises(MemoryLimitError, match=remedy) as refused:
        preflight.check_memory(settings(world), policy, Lengths(8, 12), PLAN)
    assert "10000.0 GB" in str(refused.value)


def test_a_dialogue_is_estimated_with_its_replies(world: Path) -> None:
    """Prompts of 8 tokens, as `say 12: `, and 12 of the model in at most 3 turns.

    Two replies of 64 tokens follow them: 12 + 2 * 64 = 140. A limit of 100 leaves 100 - 8 = 92, a
    context of 64 leaves 64 - 8 = 56.
    """

    def answer(context: int = 1000, environment: str = "game.py:Game", most: int = 0) -> int:
        config = settings(
            world, task={"environment": environment, "max_turns": 3}, rollout={"max_context": most}
        )

        def render(example: Example) -> RenderedPrompt:
            return RenderedPrompt(ids=(1,) * 8, text=str(example.prompt), prompt=example.prompt)

        found = preflight.longest(config, load_task(config.task), context, render)
        assert found.prompt == 8
        return found.completion

    assert answer(environment="") == 12
    assert answer() == 140
    assert answer(most=100) == 92
    assert answer(context=64) == 56
    assert answer(context=64, most=100) == 56


def test_a_dialogue_that_does_not_fit_is_told_to_limit_its_context(world: Path) -> None:
    """Half of the 140 tokens after the prompt of 8: 8 + 70."""
    estimate = MemoryEstimate(weights=1, optimizer=1, sampling=5, update=10)
    said = preflight.remedy(settings(world), estimate, PLAN, Lengths(8, 140))
    assert "or rollout.max_context=78." in said
    said = preflight.remedy(settings(world), estimate, PLAN, Lengths(8, 12))
    assert "or rollout.max_new_tokens=6." in said


class Metal:
    """A device of 16 GB, of which Metal may use 11; it notes what is wired."""

    def __init__(self) -> None:
        self.wired = [0]

    def set_wired_limit(self, limit: int) -> int:
        self.wired.append(limit)
        return self.wired[-2]


@pytest.fixture(name="metal")
def fixture_metal(monkeypatch: pytest.MonkeyPatch) -> Metal:
    metal = Metal()
    info = {"max_recommended_working_set_size": 11 << 30}
    monkeypatch.setattr(mx, "device_info", lambda: info)
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "set_wired_limit", metal.set_wired_limit)
    monkeypatch.setattr(preflight, "on_cpu", lambda: False)
    monkeypatch.setattr(preflight, "local_engines", lambda: 1)
    return metal


def of_peak(peak: int) -> MemoryEstimate:
    return MemoryEstimate(weights=peak, optimizer=0, sampling=0, update=0)


def test_what_a_step_needs_is_wired_with_1_gb_more_and_given_back(metal: Metal) -> None:
    with preflight.wired(of_peak(3 << 30)):
        assert metal.wired == [0, 4 << 30]
    assert metal.wired == [0, 4 << 30, 0]


def test_the_last_2_gb_that_metal_may_use_are_never_wired_and_engines_share_the_rest(
    metal: Metal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with preflight.wired(of_peak(10 << 30)):
        assert metal.wired[-1] == 9 << 30
    monkeypatch.setattr(preflight, "local_engines", lambda: 3)
    with preflight.wired(of_peak(10 << 30)):
        assert metal.wired[-1] == 3 << 30


def test_nothing_is_wired_where_metal_may_use_less_or_is_not_there(
    metal: Metal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": 1 << 30})
    with preflight.wired(of_peak(1 << 30)):
        pass
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    monkeypatch.setattr(mx, "device_info", dict)
    with preflight.wired(of_peak(1 << 30)):
        pass
    assert metal.wired == [0]
