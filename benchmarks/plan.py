"""The peak of a backward pass beside what `plan` says of it, as a table of Markdown.

    python -m benchmarks.plan [NAME ...]

A random model of each configuration in tests/engine/policy/configs scores two answers to a prompt,
of three lengths, for a gradient; for the longest its layers are recomputed. The plan comes
from config.json alone. One operation runs at a time, so that the peak is of arrays that are in use:
on a CPU MLX runs up to ten operations ahead of the memory that they free. Of the compiled kernels,
which MLX does not count, it is the growth of the resident memory of a process.
"""

import ctypes
import gc
import json
import multiprocessing
import random
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn

from grpo_engine.config.settings import ModelConfig
from grpo_engine.cpu import blas
from grpo_engine.policy.batch import TokenRow, micro_batches
from grpo_engine.policy.forward import token_scores
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.memory import Lengths, estimate_memory
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.shapes import describe
from tests.engine.tiny import write_config

CONFIGS = Path(__file__).parents[1] / "tests" / "engine" / "policy" / "configs"
STEPS = ((Lengths(32, 64), "off"), (Lengths(64, 192), "off"), (Lengths(96, 320), "on"))
ROWS = 2
BY_KERNELS = ("llama", "qwen3")  # also measured by resident memory
HEADER = ("model", "M parameters", "tokens", "layers", "measured MB", "plan MB", "off by")


def planned(config: ModelConfig, lengths: Lengths) -> int:
    """The bytes of an update that `plan` expects, without weights and their gradients."""
    policy = replace(describe(config), grad_checkpoint=config.grad_checkpoint == "on")
    return planned_for(policy, lengths)


def planned_for(policy: Policy, lengths: Lengths) -> int:
    return estimate_memory(
        policy,
        rows=ROWS,
        micro_rows=ROWS,
        prompt_tokens=lengths.prompt,
        new_tokens=lengths.completion,
    ).update


def measured(config: ModelConfig, lengths: Lengths) -> int:
    """MLX's peak of an update's forward and backward pass, without weights and their gradients."""
    policy = load_policy(config, seed=0)
    gc.collect()
    limit, before = mx.set_memory_limit(1), mx.get_active_memory()
    mx.reset_peak_memory()
    run_passes(policy, lengths)
    mx.set_memory_limit(limit)
    return mx.get_peak_memory() - before - gradient_bytes(policy)


def resident(config: ModelConfig, lengths: Lengths) -> tuple[int, int]:
    """What this process grows by at most in the same passes, and what `plan` expects."""
    blas.ensure()
    policy = load_policy(config, seed=0)
    run_passes(policy, Lengths(2, 2))  # loads what is loaded once
    gc.collect()
    mx.clear_cache()
    ctypes.CDLL(None).malloc_trim(0)  # what is free counts as used from the first pass on
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = status("VmRSS")
    run_passes(policy, lengths)
    return status("VmHWM") - before - gradient_bytes(policy), planned_for(policy, lengths)


def status(field: str) -> int:
    """Bytes of this process, as Linux counts them."""
    lines = Path("/proc/self/status").read_text()
    (kilobytes,) = re.findall(rf"{field}:\s+(\d+) kB", lines)
    return 1024 * int(kilobytes)


def run_passes(policy: Policy, lengths: Lengths) -> None:
    """Score answers to a prompt, forward and backward."""
    source = random.Random(1)
    prompt, *answers = (
        tuple(source.randrange(3, 250) for _ in range(count))
        for count in (lengths.prompt, *[lengths.completion] * ROWS)
    )
    (batch,) = micro_batches([TokenRow(prompt, answer) for answer in answers], max_rows=ROWS)

    def loss() -> tuple[mx.array, mx.array | None]:
        scores = token_scores(policy, batch, temperature=1.0, entropy=True)
        return scores.logprobs.mean(), scores.entropy

    (value, entropy), gradient = nn.value_and_grad(policy.module, loss)()
    mx.eval(value, entropy, gradient)


def gradient_bytes(policy: Policy) -> int:
    return 4 * policy.trainable_parameters


def write_random(name: str, folder: Path) -> Path:
    """A random model of one of the configurations."""
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    return write_config(folder / name, config, scale=1.0)


def settings(model: Path, layers: str, compute: str = "graph") -> ModelConfig:
    return ModelConfig(
        path=str(model), compute=compute, dtype="float32", quantized="keep", grad_checkpoint=layers
    )


def rows(name: str, folder: Path) -> Iterator[tuple[str, ...]]:
    """The lines of a model."""
    model = write_random(name, folder)
    parameters = f"{describe(settings(model, 'off')).parameters / 1e6:.1f}"

    def row(lengths: Lengths, kind: str, size: int, plan: int) -> tuple[str, ...]:
        numbers = (f"{size / 1e6:.1f}", f"{plan / 1e6:.1f}", f"{plan / size - 1:+.0%}")
        return (name, parameters, f"{lengths.prompt} + {lengths.completion}", kind, *numbers)

    for lengths, layers in STEPS:
        config = settings(model, layers)
        kind = {"on": "recomputed", "off": "kept"}[layers]
        yield row(lengths, kind, measured(config, lengths), planned(config, lengths))
    if name in BY_KERNELS and blas.products():
        for lengths, _ in STEPS:
            config = settings(model, "off", "kernels")
            with multiprocessing.get_context("spawn").Pool(1) as process:
                yield row(lengths, "kept, kernels", *process.apply(resident, (config, lengths)))


def main(names: list[str]) -> None:
    """Print the table."""
    blas.ensure()
    print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}")
    with tempfile.TemporaryDirectory() as folder:
        for name in names or sorted(path.stem for path in CONFIGS.glob("*.json")):
            for row in rows(name, Path(folder)):
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
