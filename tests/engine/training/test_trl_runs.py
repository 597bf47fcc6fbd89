"""Whole runs against TRL 1.16's own GRPOTrainer, with random GRPOConfigs from `make_trl_runs.py`.

Each configuration goes through the translation of `config init --from-trl`. The run is the
engine's; its answers come from the script, its order of rows is TRL's random one.
"""

import json
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map

from grpo_engine import trainer
from grpo_engine.config.parse import build, merge
from grpo_engine.config.settings import RunConfig
from grpo_engine.config.trl_config import translate
from grpo_engine.control import Control
from grpo_engine.events import Event, Group, GroupScored, RunFinished, StepFinished
from grpo_engine.policy.batch import TokenBatch, make_batch
from grpo_engine.policy.optimizer import Learner
from grpo_engine.rollouts.types import PromptRows, Trajectory
from grpo_engine.run.backend import Norms, StepContext
from grpo_engine.run.local import LocalBackend
from grpo_engine.run.session import EngineRun
from grpo_engine.training import sampling, update
from grpo_engine.training.logprobs import score_tokens
from grpo_engine.training.loss import MicroBatchResult
from tests.engine.runs import of
from tests.engine.training import trl_world
from tests.engine.training.trl_world import END, flat, ids_of, prompts, write_model

FILE = Path(os.environ.get("TRL_RUNS", Path(__file__).parent / "data" / "trl_runs.npz"))
PAGE = Path(__file__).parents[3] / "docs" / "maths.md"
with np.load(FILE, allow_pickle=False) as _file:
    CASES: list[dict[str, Any]] = json.loads(str(_file["cases"]))
    ARRAYS = {name: _file[name] for name in _file.files if name != "cases"}


@dataclass(slots=True)
class Ours:
    """What our run did, update by update."""

    case: Mapping[str, Any]
    generation: int = 0
    results: list[list[MicroBatchResult]] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)
    weights: Any = None
    events: list[Event] = field(default_factory=list)

    def sample(
        self, run: EngineRun, step: int, rows: Sequence[PromptRows]
    ) -> Generator[Event, None, list[Trajectory]]:
        """The answers of the script, with the policy's log-probabilities."""
        texts = iter(self.case["answers"][self.generation])
        self.generation += 1
        plain = [
            _rollout(prompt, index, next(texts)) for prompt in rows for index in range(prompt.rows)
        ]
        scored = yield from score_tokens(run, step, plain)
        rows_of_logprobs = [
            tuple(row[: len(one.ids)])
            for row, one in zip(np.array(scored.logprobs).tolist(), plain, strict=True)
        ]
        return [
            replace(one, logprobs=logprobs, raw_logprobs=logprobs)
            for one, logprobs in zip(plain, rows_of_logprobs, strict=True)
        ]

    def order(self, *_: Any) -> list[int]:
        order: list[int] = self.case["generations"][self.generation - 1]["order"]
        return order

    def batches(self, run: EngineRun, rollouts: Any, rows: Sequence[int]) -> list[TokenBatch]:
        """TRL's micro-batches: consecutive rows of its order."""
        position = {row: index for index, row in enumerate(self.order())}
        parts: dict[int, list[int]] = {}
        for row in rows:
            parts.setdefault(position[row] // run.plan.micro_rows, []).append(row)
        return [make_batch(rollouts, part, pad_id=run.policy.pad_id) for part in parts.values()]


def _rollout(prompt: PromptRows, index: int, text: str) -> Trajectory:
    return Trajectory(
        key=prompt.key,
        group=prompt.group,
        index=index,
        attempt=0,
        prompt_ids=prompt.ids,
        ids=ids_of(text),
        logprobs=(),
        raw_logprobs=(),
        finish="stop" if text.endswith(END) else "length",
        text=text.removesuffix(END),
    )


def configured(case: Mapping[str, Any], world: Path) -> RunConfig:
    """The settings that the importer makes, with the model, the prompts and the rewards."""
    tree, _ = translate(case["settings"])
    rewards = [f"{trl_world.__file__}:{name}" for name in case["rewards"]]
    added: dict[str, dict[str, Any]] = {
        "model": {"path": str(world / "model")},
        "task": {"name": str(world / "prompts.jsonl"), "held_out_size": 0},
        "rewards": {"functions": rewards},
        "evaluation": {"before_and_after": False, "pinned": 0},
        "checkpoint": {"every": 0},
        "record": {"tokens": "none"},
    }
    weights = case["settings"].get("reward_weights")
    if weights:
        added["rewards"]["weights"] = weights
    return build(merge(tree, added))


def executed(case: Mapping[str, Any], world: Path, folder: Path) -> Ours:
    """Our run of a case."""
    ours = Ours(case)
    held: list[EngineRun] = []
    with pytest.MonkeyPatch.context() as patch:
        finish, take, step = update._pass_finished, LocalBackend.apply, Learner.step

        def sample(run: EngineRun, step: int, _request: Any, rows: Sequence[PromptRows]) -> Any:
            held[:] = [run]
            return ours.sample(run, step, rows)

        def finished(*given: Any) -> Any:
            ours.results.append(given[2].results)
            return finish(*given)

        def taken(
            self: LocalBackend, total: Any, norms: Norms, rate: float, context: StepContext
        ) -> Generator[Event, None, float | None]:
            ours.norms.append(norms.policy)
            ours.rates.append(rate)
            return (yield from take(self, total, norms, rate, context))

        def stepped(self: Learner, gradients: Any, weights: Any) -> Any:
            theirs = case["updates"][len(ours.gradients)]
            ours.gradients.append(flat(gradients))
            if theirs["grad_norm"] == 0:  # Adam would make a step of what rounding leaves here
                assert np.abs(ours.gradients[-1]).max() < 1e-6
                gradients = tree_map(mx.zeros_like, gradients)
            return step(self, gradients, weights)

        patch.setattr(trainer, "check_itself", lambda _: iter(()))
        patch.setattr(sampling, "_sampled", sample)
        patch.setattr(update, "row_order", ours.order)
        patch.setattr(update, "batches_of", ours.batches)
        patch.setattr(update, "_pass_finished", finished)
        patch.setattr(LocalBackend, "apply", taken)
        patch.setattr(Learner, "step", stepped)
        ours.events = list(trainer.run(configured(case, world), Control(), folder=folder))
    end = ours.events[-1]
    assert isinstance(end, RunFinished), end
    ours.weights = flat(held[0].policy.snapshot())
    return ours


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    write_model(folder / "model")
    rows = [json.dumps({"prompt": text}) for text in prompts()]
    (folder / "prompts.jsonl").write_text("\n".join(rows))
    return folder


def minibatches(settings: Mapping[str, Any]) -> int:
    return int(settings["steps_per_generation"]) // int(settings["gradient_accumulation_steps"])


def updates_per_step(settings: Mapping[str, Any]) -> int:
    return int(settings["num_iterations"]) * minibatches(settings)


# What docs/maths.md lists as different on purpose, and which settings it needs.
LISTED: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "tokens of a minibatch": lambda s: (
        s["loss_type"] in ("dapo", "cispo", "vespo") and minibatches(s) > 1
    ),
    "quantile of the update": lambda s: s["top_entropy_quantile"] < 1,
    "entropy of the update": lambda s: (
        s["gradient_accumulation_steps"] > 1
        and bool(s["entropy_coef"] or s.get("use_adaptive_entropy"))
    ),
    "entropy control by step": lambda s: (
        bool(s.get("use_adaptive_entropy")) and updates_per_step(s) > 1
    ),
}


def listed(case: Mapping[str, Any]) -> list[str]:
    settings = case["settings"]
    reasons = [reason for reason, applies in LISTED.items() if applies(settings)]
    reads_advantage_alone = not (settings["beta"] or settings["entropy_coef"])
    signals = [max(map(abs, step["advantages"])) > 1e-4 for step in case["generations"]]
    if reads_advantage_alone and not all(signals):
        reasons.append("groups without signal")  # a step of nothing else makes no update
    return reasons


def differences(number: int, ours: Ours) -> Iterator[str]:
    """Losses, norms, gradients and weights of a case that are not TRL's."""
    theirs = CASES[number]["updates"]
    first, last = ARRAYS[f"gradients{number}"]
    pairs = {
        "loss": (
            [sum(one.loss for one in results) for results in ours.results],
            [sum(one["loss"] for one in each["micro"]) for each in theirs],
        ),
        "grad_norm": (ours.norms, [each["grad_norm"] for each in theirs]),
        "learning_rate": (ours.rates, [each["learning_rate"] for each in theirs]),
        "first gradient": (ours.gradients[0], first),
        "last gradient": (ours.gradients[-1], last),
        "weights": (ours.weights, ARRAYS[f"weights{number}"]),
    }
    for name, (mine, expected) in pairs.items():
        if np.shape(mine) != np.shape(expected):
            yield f"{name}: {np.shape(mine)}, TRL {np.shape(expected)}"
        elif not np.allclose(mine, expected, rtol=RTOL, atol=ATOL):
            yield f"{name}: off by {np.abs(np.subtract(mine, expected)).max():.3g}"


RTOL, ATOL = 5e-4, 5e-5  # after several updates in float32; loss and gradient alone agree to 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [pytest.param(n, marks=pytest.mark.slow) if n % 2 else n for n in range(len(CASES))],
)
def test_a_run_has_the_advantages_and_reward_metrics_of_trl(
    number: int, world: Path, tmp_path: Path
) -> None:
    case, ours = CASES[number], executed(CASES[number], world, tmp_path)
    scored = [e.group for e in of(GroupScored, ours.events)]
    mine = [rollout.advantage for group in scored for rollout in group.rollouts]
    theirs = [value for step in case["generations"] for value in step["advantages"]]
    np.testing.assert_allclose(np.array(mine, float), theirs, rtol=1e-4, atol=2e-5)
    steps = [event.metrics for event in of(StepFinished, ours.events)]
    for done, (metrics, step) in enumerate(zip(steps, case["generations"], strict=True), 1):
        expected = _reward_metrics(case, step["metrics"], done, scored)
        found = {name: metrics.get(name) for name in expected}
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    if not listed(case):
        assert list(differences(number, ours)) == []
        _assert_metrics_of_updates(case, ours)


def _reward_metrics(
    case: Mapping[str, Any], theirs: Mapping[str, Any], done: int, groups: Sequence[Group]
) -> dict[str, float]:
    """TRL's metrics of a generation, less what docs/maths.md lists."""
    expected = {name: value for name, value in theirs.items() if value is not None}
    if theirs["completions/clipped_ratio"] == 1:  # TRL has 0 where no answer ended
        expected = {n: v for n, v in expected.items() if not n.endswith("terminated_length")}
    settings = case["settings"]
    of_batch = settings["scale_rewards"] == "batch"
    if of_batch or settings["multi_objective_aggregation"] == "normalize_then_sum":
        del expected["frac_reward_zero_std"]
    else:  # TRL's deviation of fewer than two rewards is NaN, which is not zero
        each = len(groups) // len(case["answers"])
        own = groups[(done - 1) * each : done * each]
        few = [sum(one.reward is not None for one in group.rollouts) < 2 for group in own]
        expected["frac_reward_zero_std"] += fmean(few)
    rows = len(case["answers"][0])
    again = rows - rows // settings["num_generations"]  # TRL counts a prompt once for each answer
    return expected | {"num_tokens": theirs["num_tokens"] - done * again * len(prompts()[0])}


def _assert_metrics_of_updates(case: Mapping[str, Any], ours: Ours) -> None:
    """Metrics of the loss: TRL's of each micro-batch, weighted by tokens or answers."""
    every = [abs(value) for step in case["generations"] for value in step["advantages"]]
    rounded = any(0 < value < 1e-4 for value in every)  # equal rewards, which are worth 0 here
    for index, (results, theirs) in enumerate(zip(ours.results, case["updates"], strict=True)):
        sums = update._sums(results)
        complete = sum(len(one.batch.rows) for one in results) == sum(
            one["rows"] for one in theirs["micro"]
        )
        later = index % updates_per_step(case["settings"]) >= minibatches(case["settings"])
        for name, values in theirs["metrics"].items():
            if name == "entropy_coef" or (name == "entropy" and later):
                continue  # another name here; measured in the first pass
            if "clip_ratio" in name and rounded:
                continue
            if complete or name == "kl":
                total, count = sums[name]
                expected = _merged(name, values, theirs["micro"], case["settings"])
                assert total / max(count, 1) == pytest.approx(expected, rel=1e-3, abs=1e-5), name


def _merged(
    name: str,
    values: Sequence[float],
    micro: Sequence[Mapping[str, float]],
    settings: Mapping[str, Any],
) -> float:
    """One value of those of the micro-batches, all answers or tokens counting the same."""
    if name.endswith(("min", "max")):
        known = [value for value in values if value is not None]
        return min(known) if name.endswith("min") else max(known)
    by_answer = settings["importance_sampling_level"] == "sequence" and "clip_ratio" in name
    key = "rows" if by_answer or name == "vespo/phi_seq_mean" else "tokens"
    weights = [one[key] for one in micro]
    return float(np.dot(values, weights) / max(sum(weights), 1))


SHIPPED = pytest.mark.skipif("TRL_RUNS" in os.environ, reason="about the shipped set of runs")


@pytest.mark.slow
@SHIPPED
@pytest.mark.parametrize("reason", LISTED)
def test_what_is_listed_as_different_is_so(reason: str, world: Path, tmp_path: Path) -> None:
    """Else the list, and what the importer tells, would be out of date."""
    alone = [number for number, case in enumerate(CASES) if listed(case) == [reason]]
    assert alone
    assert any(
        list(differences(number, executed(CASES[number], world, tmp_path / str(number))))
        for number in alone[:4]
    )
    told = {"entropy": "entropy", "quantile": "top_entropy_quantile"}
    notes = [note for number in alone for note in translate(CASES[number]["settings"])[1]]
    name = told.get(reason.split()[0])
    assert name is None or any(name in note for note in notes)
    assert reason in PAGE.read_text(encoding="utf-8")
