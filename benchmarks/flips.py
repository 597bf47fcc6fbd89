"""Counts sampled tokens that change with the other rows of their batch; same seeds, same weights.

    python -m benchmarks.flips MODEL [--tokens 20000] [--rows 8] [--compute graph] [--ways order]

Rows are sampled in a batch that they leave as they end; then one at a time, in another order, and
in a smaller batch that waiting rows join. A row is compared up to its first other token, which is
one flip: what follows has other inputs.
"""

import argparse
import random
import sys
from dataclasses import dataclass

import grpo_engine  # noqa: F401 - puts a fast BLAS in place before MLX
from benchmarks.graph import loaded
from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts.decode import sample_groups
from grpo_engine.rollouts.types import PromptRows, Rollout, Sampling

TOKENS_OF_ROW = 96
QUESTION = "What is {} {} {}? Explain {}, then give the number."
WAYS = ("in one sentence", "step by step", "briefly", "to a child, in two or three sentences")

Answers = dict[tuple[str, int], tuple[int, ...]]


@dataclass(slots=True)
class Count:
    """Tokens compared, and those that were the first other one of their row."""

    tokens: int = 0
    flips: int = 0

    def compare(self, expected: Answers, others: Answers) -> None:
        """Count the tokens of every row up to the first difference."""
        for key, ids in expected.items():
            pairs = list(zip(ids, others[key], strict=False))
            same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
            flipped = same < len(pairs) or len(ids) != len(others[key])
            self.tokens += same + flipped
            self.flips += flipped


def questions(policy: Policy, batch: int, rows: int) -> list[PromptRows]:
    """Questions of different length, two answers each."""
    source = random.Random(batch)
    prompts = []
    for group in range(max(1, rows // 2)):
        text = QUESTION.format(
            source.randrange(10 ** source.randrange(1, 6)), source.choice("+-*"),
            source.randrange(1000), source.choice(WAYS),
        )  # fmt: skip
        ids = policy.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True
        )
        prompts.append(
            PromptRows(key=f"{batch}:{group}", group=group, ids=tuple(ids), rows=min(2, rows))
        )
    return prompts


def sampled(policy: Policy, prompts: list[PromptRows], seed: int, max_rows: int = 0) -> Answers:
    """The answers by prompt and number."""
    sampling = Sampling(max_new_tokens=TOKENS_OF_ROW, max_rows=max_rows)
    decoding = sample_groups(policy, prompts, sampling, seed=seed, step=0)
    rollouts: list[Rollout] = []
    while True:
        try:
            next(decoding)
        except StopIteration as finished:
            rollouts = finished.value
            return {(rollout.key, rollout.index): rollout.ids for rollout in rollouts}


@dataclass(frozen=True, slots=True)
class Way:
    """Another way to sample the same rows."""

    shuffled: bool
    max_rows: int  # 0: all rows at once

    def sample(self, policy: Policy, prompts: list[PromptRows], batch: int) -> Answers:
        """The answers of a batch in this way."""
        if self.shuffled:
            prompts = random.Random(batch).sample(prompts, len(prompts))
        return sampled(policy, prompts, batch, self.max_rows)


def main() -> None:
    """Compare batches until enough tokens were sampled; print the counts after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=20_000, help="compared in each way")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--compute", default="graph")
    parser.add_argument("--ways", default="single,order,joining")
    options = parser.parse_args()
    ways = {
        "single": Way(shuffled=False, max_rows=1),
        "order": Way(shuffled=True, max_rows=0),
        "joining": Way(shuffled=True, max_rows=max(2, options.rows * 5 // 8)),
    }
    ways = {name: ways[name] for name in options.ways.split(",")}
    policy = loaded(options.model, options.dtype, compute=options.compute)
    counts = {name: Count() for name in ways}
    batch = 0
    while min(count.tokens for count in counts.values()) < options.tokens:
        prompts = questions(policy, batch, options.rows)
        expected = sampled(policy, prompts, batch)
        for name, way in ways.items():
            counts[name].compare(expected, way.sample(policy, prompts, batch))
        batch += 1
        line = ", ".join(f"{name} {c.flips} of {c.tokens:,}" for name, c in counts.items())
        sys.stdout.write(f"{batch} batches: {line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
