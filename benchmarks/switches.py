"""What each fast path gains: a step with all of them beside a step without that one.

python -m benchmarks.switches MODEL [--group 8] [--prompt 64] [--answer 32]
"""

import argparse
import dataclasses
import random
import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from benchmarks.growth import sampled
from benchmarks.quick import Row, learn, score
from grpo_engine.config.settings import ModelConfig
from grpo_engine.cpu import blas
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.switches import FastPaths
from grpo_engine.rollouts.types import PromptRows, Sampling

PHASES = ("rollout", "score", "update")
TOUCHES = {  # the phases that a switch can change
    "shared_prefix": ("score", "update"), "selective_head": ("score", "update"),
    "head_chunk": ("score", "update"), "fused_head": ("update",), "fast_gate": PHASES,
    "packed": ("score", "update"), "fast_scores": ("score",),
    "fast_attention": PHASES, "batched_prefill": ("rollout",),
    "compiled_passes": ("score", "update"), "batched_decode": ("rollout",),
    "merge_adapter": ("rollout",),
    "transposed_weights": ("rollout",), "shared_decode": ("rollout",), "fast_draw": ("rollout",),
}  # fmt: skip


def timed(policy: Policy, run: Callable[[], object]) -> tuple[float, float]:
    """Return seconds and peak gigabytes."""
    mx.clear_cache()
    policy.forget_peak_memory()
    begun = time.perf_counter()
    run()
    seconds = time.perf_counter() - begun
    return seconds, policy.peak_memory / 1e9


def main() -> None:
    """Print one line per switch and phase."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--answer", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", action="append", choices=list(TOUCHES), help="default: all")
    parser.add_argument("--threads", type=int, default=0)
    asked = parser.parse_args()
    blas.set_threads(asked.threads or blas.ensure().threads)
    policy = load_policy(ModelConfig(path=asked.model), seed=0)
    dice = random.Random(0)
    ids = tuple(dice.randrange(3, policy.vocabulary) for _ in range(asked.prompt))
    prompts = PromptRows(key="p", group=0, ids=ids, rows=asked.group)
    rows = sampled(policy, prompts, Sampling(max_new_tokens=asked.answer, ignore_end=True), 0)
    whole = FastPaths()
    for name in asked.only or TOUCHES:
        off: dict[str, Any] = {name: 0 if name == "head_chunk" else False}
        without = dataclasses.replace(whole, **off)
        for phase in TOUCHES[name]:
            compare(policy, name, phase, (without, whole), rows, prompts, asked.rounds)


def compare(
    policy: Policy, name: str, phase: str, paths: tuple[FastPaths, FastPaths], rows: list[Row],
    prompts: PromptRows, rounds: int,
) -> None:  # fmt: skip
    """Time a phase without and with the switch, in turn."""
    sampling = Sampling(max_new_tokens=len(rows[0].ids), ignore_end=True)

    def run(fast: FastPaths) -> tuple[float, float]:
        policy.fast = fast
        if phase == "rollout":
            return timed(policy, lambda: sampled(policy, prompts, sampling, 1))
        return timed(policy, lambda: (score if phase == "score" else learn)(policy, fast, rows))

    found = [[run(fast) for fast in paths] for _ in range(rounds)]
    slow, quick = (min(turn[i][0] for turn in found) for i in (0, 1))
    large, small = (max(turn[i][1] for turn in found) for i in (0, 1))
    print(f"| `{name}` | {phase} | {slow:.2f} | {quick:.2f} | {slow / quick:.2f} "
          f"| {large:.2f} | {small:.2f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
