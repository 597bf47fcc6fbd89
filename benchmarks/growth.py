"""How time and memory of a step grow with group size, prompt, answer and model.

    python -m benchmarks.growth [--model FOLDER ...] [--out docs/growth.csv]

Each measurement is shown with the law that it should follow, fitted once over all points of a
model: rollout = c0 * decode steps + k * work, update = c0 + k * work, with work in floating-point
operations of products and attention; memory is what the preflight check estimates.
"""

import argparse
import csv
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from grpo_engine.config.settings import ModelConfig
from grpo_engine.cpu import blas
from grpo_engine.policy.batch import TokenRow, micro_batches
from grpo_engine.policy.forward import token_scores
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.memory import Sizes, estimate_memory
from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts.decode import sample_groups
from grpo_engine.rollouts.types import PromptRows, Sampling
from grpo_tui.app.text.table import table_lines

BASE = {"group": 8, "prompt": 64, "answer": 32}
AXES = {
    "group": (4, 8, 16, 32, 64),
    "prompt": (32, 64, 128, 256, 448),
    "answer": (16, 32, 64, 128, 256),
}
MICRO_ROWS = 8
GIGABYTE = 1e9


@dataclass
class Point:
    """A measured step of one size; law and estimate are filled in later."""

    model: str
    axis: str
    value: int
    steps: int
    work: float  # floating-point operations of one forward over prompt and answers
    rollout: float
    update: float
    memory: float  # GB
    estimate: float  # GB
    law: dict[str, float] = field(default_factory=dict)


def work_of(sizes: Sizes, group: int, prompt: int, answer: int) -> float:
    """Return 2 * weights * tokens, with the head at answers only, plus causal attention."""
    weights = sizes.layers * sizes.hidden * (2 * sizes.hidden + sizes.kv_width + 3 * sizes.inner)
    tokens = group * answer
    seen = prompt * prompt / 2 + tokens * (prompt + answer / 2)
    products = 2 * weights * (prompt + tokens) + 2 * sizes.vocabulary * sizes.hidden * tokens
    return products + 4 * sizes.hidden * sizes.layers * seen


def measure(policy: Policy, name: str, axis: str, value: int, rounds: int) -> Point:
    """Sample and train one step of this size."""
    size = {**BASE, axis: value} if axis in BASE else dict(BASE)
    dice = random.Random(value)
    ids = tuple(dice.randrange(3, policy.vocabulary) for _ in range(size["prompt"]))
    prompt = PromptRows(key="p", group=0, ids=ids, rows=size["group"])
    sampling = Sampling(max_new_tokens=size["answer"], ignore_end=True)
    rollouts, updates = [], []
    mx.clear_cache()
    policy.forget_peak_memory()
    for turn in range(rounds + 1):
        begun = time.perf_counter()
        rows = sampled(policy, prompt, sampling, turn)
        middle = time.perf_counter()
        learn(policy, rows)
        if turn:  # the first warms up
            rollouts.append(middle - begun)
            updates.append(time.perf_counter() - middle)
    estimate = estimate_memory(
        policy,
        rows=size["group"],
        micro_rows=min(MICRO_ROWS, size["group"]),
        prompt_tokens=size["prompt"],
        new_tokens=size["answer"],
    )
    return Point(
        model=name,
        axis=axis,
        value=value,
        steps=size["answer"],
        work=work_of(Sizes.of(policy), **size),
        rollout=median(rollouts),
        update=median(updates),
        memory=policy.peak_memory / GIGABYTE,
        estimate=estimate.peak / GIGABYTE,
    )


def sampled(policy: Policy, prompt: PromptRows, sampling: Sampling, turn: int) -> list[TokenRow]:
    """Sample answers to the prompt."""
    decoding = sample_groups(policy, [prompt], sampling, seed=0, step=turn)
    while True:
        try:
            next(decoding)
        except StopIteration as end:
            return [TokenRow(rollout.prompt_ids, rollout.ids) for rollout in end.value]


def learn(policy: Policy, rows: Sequence[TokenRow]) -> None:
    """Run forward and backward over the answers, with one evaluation per micro-batch."""
    for batch in micro_batches(rows, max_rows=MICRO_ROWS):

        def loss(batch: Any = batch) -> Any:
            return (token_scores(policy, batch, temperature=1.0).logprobs * batch.mask_BT).sum()

        mx.eval(nn.value_and_grad(policy.module, loss)())


def fit(points: Sequence[Point]) -> None:
    """Fit by least squares of relative errors over all points of one model."""
    for phase in ("rollout", "update"):
        fixed = np.array([p.steps if phase == "rollout" else 1.0 for p in points])
        work = np.array([p.work for p in points])
        seconds = np.array([getattr(p, phase) for p in points])
        terms = np.stack([fixed, work], axis=1) / seconds[:, None]
        weights = np.linalg.lstsq(terms, np.ones(len(points)), rcond=None)[0]
        for position, point in enumerate(points):
            point.law[phase] = float(weights[0] * fixed[position] + weights[1] * work[position])


def show(points: Sequence[Point]) -> None:
    """Print the measurements of each axis beside the law."""
    for axis in dict.fromkeys(point.axis for point in points):
        chosen = [p for p in points if p.axis == axis]
        print(f"\n{chosen[0].model}: seconds by {axis}")
        rows = [
            {
                axis: p.value,
                "rollout": p.rollout,
                "law of rollouts": p.law["rollout"],
                "update": p.update,
                "law of updates": p.law["update"],
            }
            for p in chosen
        ]
        print(*table_lines(rows), sep="\n")


def write(points: Sequence[Point], out: Path) -> None:
    """Write one line per point."""
    with out.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(
            [
                "model",
                "axis",
                "value",
                "rollout_s",
                "rollout_law_s",
                "update_s",
                "update_law_s",
                "peak_gb",
                "estimated_gb",
                "gflop",
            ]
        )
        for p in points:
            numbers = (p.rollout, p.law["rollout"], p.update, p.law["update"], p.memory, p.estimate)
            lines.writerow(
                [p.model, p.axis, p.value, *(f"{n:.4g}" for n in numbers), f"{p.work / 1e9:.4g}"]
            )


def main() -> None:
    """Measure every model on every axis; a large model at two sizes of each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--model", action="append", default=[], help="a model folder, beside the starter"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="default: all cores")
    parser.add_argument("--out", type=Path, help="CSV file")
    options = parser.parse_args()
    state = blas.ensure()
    blas.set_threads(options.threads or max(1, state.threads))
    points: list[Point] = []
    for path in ["starter", *options.model]:
        policy = load_policy(ModelConfig(path=path), seed=0)
        name = f"{Path(path).name} ({policy.parameters / 1e6:.3g} M)"
        axes = AXES if path == "starter" else {a: v[:4:3] for a, v in AXES.items()}
        series = [
            measure(policy, name, axis, value, options.rounds if path == "starter" else 1)
            for axis, values in axes.items()
            for value in values
        ]
        fit(series)
        points += series
        show(series)
    if options.out:
        write(points, options.out)
    for p in points:
        rollout = f"rollout {p.rollout:7.3f} s ({p.law['rollout']:7.3f})"
        update = f"update {p.update:7.3f} s ({p.law['update']:7.3f})"
        memory = f"{p.memory:5.2f} GB ({p.estimate:5.2f})"
        print(f"{p.model:22} {p.axis:7}{p.value:5}  {rollout}  {update}  {memory}")


if __name__ == "__main__":
    main()
