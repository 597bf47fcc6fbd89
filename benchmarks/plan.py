"""MLX's peak of a backward pass beside what `plan` says of it, as a table of Markdown.

    python -m benchmarks.plan [NAME ...]

A random model of each configuration in tests/engine/policy/configs scores two answers to a prompt,
of three lengths, for a gradient; for the longest its layers are recomputed. The plan comes
from config.json alone. One operation runs at a time, so that the peak is of arrays that are in use:
on a CPU MLX runs up to ten operations ahead of the memory that they free.
"""

import gc
import json
import random
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
HEADER = ("model", "M parameters", "tokens", "layers", "measured MB", "plan MB", "off by")


def planned(config: ModelConfig, lengths: Lengths) -> int:
    """The bytes of an update that `plan` expects, without weights and their gradients."""
    policy = replace(describe(config), grad_checkpoint=config.grad_checkpoint == "on")
    return estimate_memory(
        policy,
        rows=ROWS,
        micro_rows=ROWS,
        prompt_tokens=lengths.prompt,
        new_tokens=lengths.answer,
    ).update


def measured(config: ModelConfig, lengths: Lengths) -> int:
    """MLX's peak of an update's forward and backward pass, without weights and their gradients."""
    policy = load_policy(config, seed=0)
    source = random.Random(1)
    prompt, *answers = (
        tuple(source.randrange(3, 250) for _ in range(count))
        for count in (lengths.prompt, *[lengths.answer] * ROWS)
    )
    (batch,) = micro_batches([TokenRow(prompt, answer) for answer in answers], max_rows=ROWS)

    def loss() -> tuple[mx.array, mx.array | None]:
        scores = token_scores(policy, batch, temperature=1.0, entropy=True)
        return scores.logprobs.mean(), scores.entropy

    gc.collect()
    limit, before = mx.set_memory_limit(1), mx.get_active_memory()
    mx.reset_peak_memory()
    (value, entropy), gradient = nn.value_and_grad(policy.module, loss)()
    mx.eval(value, entropy, gradient)
    mx.set_memory_limit(limit)
    return mx.get_peak_memory() - before - gradient_bytes(policy)


def gradient_bytes(policy: Policy) -> int:
    return 4 * policy.trainable_parameters


def write_random(name: str, folder: Path) -> Path:
    """A random model of one of the configurations."""
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    return write_config(folder / name, config, scale=1.0)


def settings(model: Path, layers: str) -> ModelConfig:
    return ModelConfig(
        path=str(model), compute="graph", dtype="float32", quantized="keep", grad_checkpoint=layers
    )


def rows(name: str, folder: Path) -> Iterator[tuple[str, ...]]:
    """The lines of a model."""
    model = write_random(name, folder)
    for lengths, layers in STEPS:
        config = settings(model, layers)
        size, plan = measured(config, lengths), planned(config, lengths)
        yield (
            name,
            f"{describe(config).parameters / 1e6:.1f}",
            f"{lengths.prompt} + {lengths.answer}",
            {"on": "recomputed", "off": "kept"}[layers],
            f"{size / 1e6:.1f}",
            f"{plan / 1e6:.1f}",
            f"{plan / size - 1:+.0%}",
        )


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
