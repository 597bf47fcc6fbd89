"""A lower bound on step time: its matrix products at measured rates.

    python -m benchmarks.floor MODEL

A decode step of n rows is one product of n rows with every weight; training and reference are the
same products with a few hundred rows. Norms, attention, softmax, sampling, LoRA's thin products and
all bookkeeping count as zero, so no implementation with these products can be faster.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np

from grpo_engine.cpu import blas

MANY = 512  # rows of a product in training
ROWS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Rates:
    """Seconds of one pass over all weights, by rows, and bytes per second of plain reading."""

    layers: dict[int, float]  # forward
    head: dict[int, float]
    layer_gradients: float  # gradients of the inputs, MANY rows
    head_gradients: float
    bandwidth: float  # bytes / s
    weights: int  # bytes

    def decode(self, rows: int) -> float:
        """Return the seconds of a decode step's products, interpolated between measured rows."""
        return _between(self.layers, rows) + _between(self.head, rows)

    def forward(self, tokens: int, scored: int) -> float:
        """Return the seconds of a forward pass over `tokens`, with the head at `scored` of them."""
        return tokens / MANY * self.layers[MANY] + scored / MANY * self.head[MANY]

    def backward(self, tokens: int, scored: int) -> float:
        """Return the seconds of the backward pass, for gradients of activations only."""
        return tokens / MANY * self.layer_gradients + scored / MANY * self.head_gradients


@dataclass(frozen=True)
class Floor:
    rollout: float
    logprobs: float
    update: float
    bandwidth: float  # of the rollout if only reading the weights took time

    @property
    def seconds(self) -> float:
        """Total of the step."""
        return self.rollout + self.logprobs + self.update


def floor_of(
    rates: Rates, prompts: Sequence[int], lengths: Sequence[int], *, passes: int, looks: int
) -> Floor:
    """Return a step's floor for prompt lengths, answer lengths, passes and no-gradient forwards."""
    steps = [sum(length > step for length in lengths) for step in range(1, max(lengths))]
    scored = sum(lengths)
    tokens = sum(prompts) + scored
    rollout = rates.forward(sum(prompts), len(prompts)) + sum(map(rates.decode, steps))
    forward = rates.forward(tokens, scored)
    return Floor(
        rollout=rollout,
        logprobs=looks * forward,
        update=passes * (forward + rates.backward(tokens, scored)),
        bandwidth=len(steps) * rates.weights / rates.bandwidth,
    )


def _between(measured: dict[int, float], rows: int) -> float:
    """Interpolate linearly between measurements; beyond them scale in proportion."""
    counts = sorted(measured)
    if rows >= counts[-1]:
        return measured[counts[-1]] * rows / counts[-1]
    above = next(n for n in counts if n >= rows)
    below = max((n for n in counts if n <= rows), default=above)
    if above == below:
        return measured[above]
    share = (rows - below) / (above - below)
    return measured[below] * (1 - share) + measured[above] * share


def measure(folder: Path, threads: int) -> Rates:
    """Time the products of a llama-shaped model."""
    blas.ensure()
    blas.set_threads(threads)
    import mlx.core as mx

    config = json.loads((folder / "config.json").read_text())
    wide, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    kv = config.get("num_key_value_heads", heads) * config.get("head_dim", wide // heads)
    shapes = [(wide, wide), (wide, kv), (wide, kv), (wide, wide)]
    shapes += [(wide, inner), (wide, inner), (inner, wide)]
    layers = [
        [mx.random.normal((out, into)) for into, out in shapes]
        for _ in range(config["num_hidden_layers"])
    ]
    head = mx.random.normal((config["vocab_size"], wide))
    mx.eval(layers, head)

    def through(rows: int, *, transposed: bool = False) -> float:
        inputs = {n: mx.random.normal((rows, n)) for n in {wide, kv, inner}}
        mx.eval(inputs)

        def run() -> None:
            durations = []
            for layer in layers:
                for (into, out), w in zip(shapes, layer, strict=True):
                    durations.append(inputs[out] @ w if transposed else inputs[into] @ w.T)
                    if len(durations) >= len(shapes):
                        mx.eval(durations)
                        durations = []

        return _typical(run)

    def through_head(rows: int, *, transposed: bool = False) -> float:
        x = mx.random.normal((rows, config["vocab_size"] if transposed else wide))
        mx.eval(x)
        return _typical(lambda: mx.eval(x @ head if transposed else x @ head.T))

    block = np.ones(64 << 20, dtype=np.float32)  # larger than any cache
    reading = _typical(lambda: float(block.sum()))
    weights = sum(w.nbytes for layer in layers for w in layer) + head.nbytes
    return Rates(
        layers={rows: through(rows) for rows in (*ROWS, MANY)},
        head={rows: through_head(rows) for rows in (*ROWS, MANY)},
        layer_gradients=through(MANY, transposed=True),
        head_gradients=through_head(MANY, transposed=True),
        bandwidth=block.nbytes / reading,
        weights=weights,
    )


def _typical(run: Callable[[], object]) -> float:
    run()
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return median(times)


def rates_of(text: str) -> Rates:
    """Parse the rates from this script's JSON output."""
    values = json.loads(text)
    for name in ("layers", "head"):
        values[name] = {int(rows): seconds for rows, seconds in values[name].items()}
    return Rates(**values)


if __name__ == "__main__":
    threads = int(os.environ.get("BENCH_THREADS", "2"))
    print(json.dumps(asdict(measure(Path(sys.argv[1]), threads))))
