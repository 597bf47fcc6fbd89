"""The expected number of sampled tokens that change with the other rows of their batch.

    python -m benchmarks.flips MODEL [--tokens 4000] [--rows 8] [--compute graph]

Answers are sampled in a batch that they leave as they end. The same tokens are then fed to all rows
together, to a smaller batch that waiting rows join, and to one row at a time. Both draws of a token
would share their noise, so the probability that they differ follows from the two logits; counting
flips would need a thousand times as many tokens.
"""

import argparse
import random
import sys

import mlx.core as mx
import numpy as np

import grpo_engine  # noqa: F401 - puts a fast BLAS in place before MLX
from benchmarks.graph import loaded
from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts.batches import batch_for
from grpo_engine.rollouts.decode import sample_groups
from grpo_engine.rollouts.types import PromptRows, Sampling, Trajectory

TOKENS_OF_ROW = 96
QUESTION = "What is {} {} {}? Explain {}, then give the number."
WAYS = ("in one sentence", "step by step", "briefly", "to a child, in two or three sentences")

Fed = tuple[tuple[int, ...], tuple[int, ...]]  # prompt and completion


def flip_probability(first: np.ndarray, second: np.ndarray) -> float:
    """How often a race with the same times has another winner under other logits.

    Token i wins both where its time is the shortest even at the larger of each two ratios of
    probabilities: 1 - sum_i 1 / sum_j max(p_j / p_i, q_j / q_i), summed in the order of p / q.
    """
    p, q = (np.exp(logits.astype(float) - logits.max()) for logits in (first, second))
    p, q = p / p.sum(), q / q.sum()
    order = np.argsort(-p / q)
    p, q = p[order], q[order]
    return float(1 - (1 / (p.cumsum() / p + (1 - q.cumsum()) / q)).sum())


def questions(policy: Policy, batch: int, rows: int) -> list[PromptRows]:
    """Questions of different length, two answers each."""
    source = random.Random(batch)
    prompts = []
    for group in range(max(1, rows // 2)):
        text = QUESTION.format(
            source.randrange(10 ** source.randrange(1, 6)),
            source.choice("+-*"),
            source.randrange(1000),
            source.choice(WAYS),
        )
        ids = policy.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True
        )
        prompts.append(
            PromptRows(key=f"{batch}:{group}", group=group, ids=tuple(ids), rows=min(2, rows))
        )
    return prompts


def answered(policy: Policy, prompts: list[PromptRows], seed: int) -> list[Fed]:
    """The prompts with their sampled answers."""
    sampling = Sampling(max_new_tokens=TOKENS_OF_ROW)
    decoding = sample_groups(policy, prompts, sampling, seed=seed, step=0)
    rollouts: list[Trajectory] = []
    while True:
        try:
            next(decoding)
        except StopIteration as finished:
            rollouts = finished.value
            return [(rollout.prompt_ids, rollout.ids) for rollout in rollouts]


def logits_of(policy: Policy, rows: list[Fed], max_rows: int) -> list[list[np.ndarray]]:
    """The logits that each token was drawn from, at most so many rows at once."""
    logits: list[list[np.ndarray]] = [[] for _ in rows]
    waiting, active = list(range(len(rows))), list[int]()
    with policy.for_sampling():
        batch = batch_for(policy)
        while waiting or active:
            joining, waiting = waiting[: max_rows - len(active)], waiting[max_rows - len(active) :]
            if joining:
                prefilled = batch.prefill([rows[row][0] for row in joining])
                batch.add(prefilled)
                for row, prompt in zip(joining, prefilled, strict=True):
                    logits[row].append(np.array(prompt.logits.astype(mx.float32)))
                active += joining
            left = [i for i, row in enumerate(active) if len(logits[row]) < len(rows[row][1])]
            if len(left) < len(active):
                batch.select(left)
                active = [active[i] for i in left]
                continue
            tokens = mx.array([rows[row][1][len(logits[row]) - 1] for row in active])
            for row, values in zip(active, batch.step(tokens).astype(mx.float32), strict=True):
                logits[row].append(np.array(values))
    return logits


def main() -> None:
    """Print the expected flips of a million tokens after each batch, until there are enough."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--compute", default="graph")
    options = parser.parse_args()
    policy = loaded(options.model, options.dtype, compute=options.compute)
    ways = {"joining": max(2, options.rows * 5 // 8), "single": 1}
    flips, tokens, batch = dict.fromkeys(ways, 0.0), 0, 0
    while tokens < options.tokens:
        rows = answered(policy, questions(policy, batch, options.rows), batch)
        together = logits_of(policy, rows, len(rows))
        for name, max_rows in ways.items():
            for first, second in zip(together, logits_of(policy, rows, max_rows), strict=True):
                flips[name] += sum(map(flip_probability, first, second))
        tokens += sum(len(ids) for _, ids in rows)
        batch += 1
        line = ", ".join(f"{name} {1e6 * total / tokens:.2f}" for name, total in flips.items())
        sys.stdout.write(f"{tokens:,} tokens: expected flips of a million: {line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
