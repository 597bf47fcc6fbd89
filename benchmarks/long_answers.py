"""Long answers in little memory: a step of SmolLM2 under a limit, or one row's backward pass.

    python -m benchmarks.long_answers step MODEL [--tokens 1024] [--prompts 8] [--group 8]
    python -m benchmarks.long_answers row MODEL [--tokens 4096] [--memory 2] [--dtype bfloat16]

MODEL is a folder, or names a configuration in benchmarks/shapes, for random weights of that shape.
`step` samples answers of so many tokens each and trains on them, with the memory that there is: run
it under a limit (a control group, `ulimit -d`) and without, and compare the digests of tokens and
the losses. `row` is the peak of one row's forward and backward pass beyond the weights, as `auto`
plans it for so many GB; `--memory 0` keeps layers and scores, as plain autodiff does.
"""

import argparse
import gc
import hashlib
import json
import random
import resource
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from grpo_engine.config.settings import ModelConfig, RunConfig
from grpo_engine.control import Control
from grpo_engine.cpu import blas
from grpo_engine.events import (
    GroupScored,
    NoteWritten,
    PassFinished,
    PhaseStarted,
    RunFailed,
    StepFinished,
)
from grpo_engine.policy import attention
from grpo_engine.policy.batch import TokenRow, micro_batches
from grpo_engine.policy.forward import token_scores
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.memory import choose_plan, estimate_memory
from grpo_engine.trainer import run
from tests.engine.tiny import write_config

GIGABYTE = 1e9
SHAPES = Path(__file__).parent / "shapes"
PROMPT = 32  # tokens
REWARD = "benchmarks.long_answers:distinct"


def distinct(completions: Sequence[str], **_: Any) -> list[float]:
    """A reward that differs from answer to answer: the share of different words."""
    words = [text.split() for text in completions]
    return [len(set(of_answer)) / max(1, len(of_answer)) for of_answer in words]


def step(options: Any) -> None:
    """One training step, and the most memory that the process had."""
    config = RunConfig.model_validate(
        {
            "steps": 1,
            "model": {
                "path": options.model,
                "compute": options.compute,
                "dtype": options.dtype,
            },
            "task": {"name": "arithmetic"},
            "evaluation": {"before_and_after": False},
            "rewards": {"functions": [REWARD], "completions": "text"},
            "rollout": {
                "prompts": options.prompts,
                "group_size": options.group,
                "max_new_tokens": options.tokens,
                "options": {"ignore_end": True},
            },
        }
    )
    digest, begun = hashlib.sha256(), time.perf_counter()
    phase, peaks = "load", defaultdict[str, float](float)
    with tempfile.TemporaryDirectory() as folder:
        for event in run(config, Control(), folder=Path(folder)):
            peaks[phase] = max(peaks[phase], mx.get_peak_memory() / GIGABYTE)
            if isinstance(event, PhaseStarted):
                phase = event.phase
                mx.reset_peak_memory()
            elif isinstance(event, NoteWritten | RunFailed):
                print(event.text if isinstance(event, NoteWritten) else event.message, flush=True)
            elif isinstance(event, GroupScored):
                for completion in event.group.rollouts:
                    digest.update(repr(completion.ids).encode())
            elif isinstance(event, PassFinished):
                print(f"loss {event.loss:.8f}, gradient norm {event.grad_norm:.6g}")
            elif isinstance(event, StepFinished):
                print(f"answers of {event.metrics['completions/mean_length']:.0f} tokens")
    print("peak of arrays in GB:", ", ".join(f"{key} {gb:.2f}" for key, gb in peaks.items()))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIGABYTE
    print(
        f"tokens {digest.hexdigest()[:16]}, resident at most {most:.2f} GB, "
        f"{time.perf_counter() - begun:.0f} s"
    )


def row(options: Any) -> None:
    """One row's forward and backward pass."""
    policy = load_policy(
        ModelConfig(path=options.model, dtype=options.dtype, compute=options.compute), seed=0
    )
    answer = options.tokens - PROMPT
    if options.memory:
        plan = choose_plan(
            policy,
            rows=1,
            prompt_tokens=PROMPT,
            new_tokens=answer,
            budget=int(options.memory * GIGABYTE),
        )
        plan.apply(policy)
        print(plan)
    else:
        mx.fast.scaled_dot_product_attention = attention.plain
    estimate = estimate_memory(
        policy, rows=1, micro_rows=1, prompt_tokens=PROMPT, new_tokens=answer
    )
    source = random.Random(1)
    ids = tuple(source.randrange(3, policy.vocabulary) for _ in range(options.tokens))
    (batch,) = micro_batches([TokenRow(ids[:PROMPT], ids[PROMPT:])], max_rows=1)

    def loss() -> mx.array:
        return token_scores(policy, batch, temperature=1.0).logprobs.mean()

    gc.collect()
    mx.clear_cache()
    before, begun = mx.get_active_memory(), time.perf_counter()
    policy.forget_peak_memory()
    value, gradient = nn.value_and_grad(policy.module, loss)()
    mx.eval(value, gradient)
    print(
        f"loss {value.item():.6f}, {(policy.peak_memory - before) / GIGABYTE:.2f} GB above the "
        f"weights (estimate {estimate.update / GIGABYTE:.2f}), "
        f"{time.perf_counter() - begun:.0f} s"
    )


def main() -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=["step", "row"])
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=0, help="1024 for a step, 4096 for a row")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--memory", type=float, default=2.0, help="GB for `row`; 0: plain autodiff")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--compute", default="auto")
    options = parser.parse_args()
    options.tokens = options.tokens or {"step": 1024, "row": 4096}[options.part]
    blas.ensure()
    with tempfile.TemporaryDirectory() as folder:
        shape = SHAPES / f"{options.model}.json"
        if shape.exists():
            config = json.loads(shape.read_text())
            options.model = str(write_config(Path(folder), config, scale=1.0))
        {"step": step, "row": row}[options.part](options)


if __name__ == "__main__":
    main()
