"""Ratios that must not get worse, on the embedded starter: the graph's ways, and the kernels.

    python -m benchmarks.quick [--write]

Each ratio compares two paths timed in turn in one process, so that the speed of the machine
cancels out. `--write` stores the results as the new expectations.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from grpo_engine.config.settings import ModelConfig
from grpo_engine.cpu import blas
from grpo_engine.policy.batch import TokenRow, micro_batches
from grpo_engine.policy.forward import token_scores
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts.decode import sample_groups
from grpo_engine.rollouts.types import PromptRows, Sampling

EXPECTED = Path(__file__).parent / "expected.json"
SLACK = 0.6  # a ratio may fall to this share of the expected one: other programs run too
ROUNDS = 5
ROWS, PROMPT, ANSWER = 32, 96, 48


def prompts_of(policy: Policy) -> list[PromptRows]:
    """Return four made-up prompts with eight answers each."""
    dice = random.Random(0)
    return [
        PromptRows(
            key=f"p{n}",
            group=n,
            rows=ROWS // 4,
            ids=tuple(dice.randrange(3, policy.vocabulary) for _ in range(PROMPT - 8 * n)),
        )
        for n in range(4)
    ]


def sample(policy: Policy) -> None:
    """Decode all rows."""
    sampling = Sampling(max_new_tokens=ANSWER // 3, ignore_end=True)
    for _ in sample_groups(policy, prompts_of(policy), sampling, seed=0, step=1):
        pass


def rows_of(policy: Policy) -> list[TokenRow]:
    """Return answers of different lengths."""
    dice = random.Random(1)
    return [
        TokenRow(prompt.ids, tuple(dice.randrange(3, policy.vocabulary) for _ in range(length)))
        for prompt in prompts_of(policy)
        for length in range(ANSWER - ROWS // 4, ANSWER)
    ]


def learn(policy: Policy, rows: list[TokenRow]) -> None:
    """Run a forward and backward pass over all rows."""
    for batch in micro_batches(rows, max_rows=ROWS):

        def loss(batch: Any = batch) -> Any:
            return (token_scores(policy, batch, temperature=1.0).logprobs * batch.mask_BT).sum()

        mx.eval(nn.value_and_grad(policy.module, loss)())


def score(policy: Policy, rows: list[TokenRow]) -> None:
    """Run a forward pass without gradients."""
    for batch in micro_batches(rows, max_rows=ROWS):
        scores = token_scores(policy, batch, temperature=1.0, gradient=False)
        mx.eval(scores.logprobs)


def policy_with(**settings: Any) -> Policy:
    """The starter with these settings of `model`."""
    return load_policy(ModelConfig(**settings), seed=0)


def cases() -> dict[str, tuple[Callable[[], None], Callable[[], None]]]:
    """Map each name to (slower, faster)."""
    graph, per_row = policy_with(compute="graph"), policy_with(compute="rows")
    separate, kernels = policy_with(compute="graph"), policy_with()
    separate.batching = "separate"
    rows = rows_of(graph)
    return {
        "decode all rows together": (lambda: sample(separate), lambda: sample(graph)),
        "share the prompt in the update": (
            lambda: learn(per_row, rows),
            lambda: learn(graph, rows),
        ),
        "share the prompt in scoring": (lambda: score(per_row, rows), lambda: score(graph, rows)),
        "kernels: decode": (lambda: sample(graph), lambda: sample(kernels)),
        "kernels: update": (lambda: learn(graph, rows), lambda: learn(kernels, rows)),
        "kernels: scoring": (lambda: score(graph, rows), lambda: score(kernels, rows)),
    }


def gain(slow: Callable[[], None], quick: Callable[[], None]) -> float:
    """Return the median over rounds of slow time / quick time, timed in turn."""
    slow()
    quick()
    gains = []
    for _ in range(ROUNDS):
        times = []
        for run in (slow, quick):
            begun = time.perf_counter()
            run()
            times.append(time.perf_counter() - begun)
        gains.append(times[0] / times[1])
    return statistics.median(gains)


def main() -> int:
    """Print every ratio; exit 1 if one is far below its expectation."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="store the ratios as expected")
    options = parser.parse_args()
    blas.ensure()
    blas.set_threads(1)  # spinning threads beside other programs would hide every other effect
    gains = {name: round(gain(*pair), 2) for name, pair in cases().items()}
    if options.write:
        EXPECTED.write_text(json.dumps(gains, indent=1) + "\n")
    expected = json.loads(EXPECTED.read_text())
    worse = 0
    for name, ratio in gains.items():
        bad = ratio < SLACK * expected[name]
        worse += bad
        print(
            f"{name:32} {ratio:6.2f} x   expected {expected[name]:.2f}   {'WORSE' if bad else 'ok'}"
        )
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
