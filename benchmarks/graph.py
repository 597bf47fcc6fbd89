"""Counts what the graph does on any device: operations, waits, bytes.

    python -m benchmarks.graph MODEL [--rows 8] [--dtype bfloat16] [--times | --training 100]

MODEL is a folder, or `starter`. With `--times` the same work is timed, beside mlx-lm's. With
`--training` it is trained for so many steps, for memory that grows. Operations are nodes of MLX's
graph without views; a step's are compared with those of mlx-lm's own step of the bare model. Waits
are told by the order of `async_eval` and reads.
"""

import argparse
import gc
import io
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

import grpo_engine  # noqa: F401 - puts a fast BLAS in place before MLX
from grpo_engine.config.settings import ModelConfig, RunConfig
from grpo_engine.control import Control
from grpo_engine.events import RunFailed, StepFinished
from grpo_engine.policy.batch import TokenBatch, TokenRow, make_batch
from grpo_engine.policy.forward import token_scores
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts.batches import batch_for
from grpo_engine.rollouts.decode import sample_groups
from grpo_engine.rollouts.noise import token_keys
from grpo_engine.rollouts.sampler import draw
from grpo_engine.rollouts.types import PromptRows, Sampling
from grpo_engine.trainer import run

VIEWS = frozenset({
    "Broadcast", "BroadcastAxes", "Slice", "Reshape", "Transpose", "ExpandDims", "Squeeze",
    "Flatten", "Unflatten", "Split", "StopGradient", "AsStrided", "Copy", "Depends",
})  # fmt: skip
NODE = re.compile(r'shape=rectangle[^\]]*\]|label ?="([^"]+)", shape=rectangle')
PROMPT = tuple(range(5, 45))


def loaded(path: str, dtype: str, *, compute: str = "graph") -> Policy:
    """The model with LoRA of rank 8 on all layers."""
    settings = loaded_settings(path, dtype, compute=compute)
    return load_policy(ModelConfig.model_validate(settings), seed=0)


def loaded_settings(path: str, dtype: str, *, compute: str = "graph") -> dict[str, Any]:
    """The settings of such a model."""
    settings: dict[str, Any] = {"path": path, "dtype": dtype, "lora_rank": 8}
    if "compute" in ModelConfig.model_fields:
        settings["compute"] = compute
    return settings


def operations(*arrays: mx.array) -> Counter[str]:
    """The operations that would compute these arrays, by name, without views."""
    text = io.StringIO()
    mx.export_to_dot(text, *arrays)
    names = re.findall(r'\[label ?="([^"]*)", shape=rectangle\]', text.getvalue())
    return Counter(name for name in names if name.split(" ")[0] not in VIEWS)


def bare_model(policy: Policy, rows: int) -> Callable[[mx.array], mx.array]:
    """mlx-lm's step of the model without adapters: the tokens of all rows to their logits."""
    import mlx_lm

    model, *_ = mlx_lm.load(str(policy.folder))
    model.set_dtype(getattr(mx, policy.dtype))
    caches = [
        type(c).merge([make_prompt_cache(model)[i] for _ in range(rows)])
        for i, c in enumerate(make_prompt_cache(model))
    ]
    model(mx.array([PROMPT] * rows), cache=caches)
    mx.eval([cache.state for cache in caches], model.parameters())

    def step(tokens: mx.array) -> mx.array:
        logits: mx.array = model(tokens[:, None], cache=caches)[:, -1]
        return logits

    return step


def bare_step(policy: Policy, rows: int) -> Counter[str]:
    """The operations of mlx-lm's step."""
    return operations(bare_model(policy, rows)(mx.array([7] * rows)))


def our_step(policy: Policy, rows: int) -> Counter[str]:
    """A decode step of the policy."""
    with policy.for_sampling():
        batch = batch_for(policy)
        (prefilled,) = batch.prefill([PROMPT])
        batch.add([prefilled] * rows)
        mx.eval(batch.step(mx.array([7] * rows)))
        mx.eval([cache.state for cache in batch.caches])
        return operations(batch.step(mx.array([7] * rows)))


def our_draw(vocabulary: int, rows: int) -> Counter[str]:
    """A draw of one token per row."""
    logits = mx.random.normal((rows, vocabulary))
    keys = token_keys(list(range(rows)), [3] * rows)
    mx.eval(logits, keys)
    return operations(*draw(logits, Sampling(), keys))


@contextmanager
def watched(log: list[str]) -> Iterator[None]:
    """Note when the host queues work and when it waits."""
    queue, wait = mx.async_eval, mx.eval

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arrays: Any) -> Any:
            log.append(name)
            return call(*arrays)

        return run

    mx.async_eval, mx.eval = noted("queue", queue), noted("wait", wait)
    try:
        yield
    finally:
        mx.async_eval, mx.eval = queue, wait


def order(policy: Policy, rows: int, tokens: int) -> str:
    """How many steps were queued before the last one was read."""
    log: list[str] = []
    prompts = [PromptRows(key="p", group=0, ids=PROMPT, rows=rows)]
    sampling = Sampling(max_new_tokens=tokens, ignore_end=True)
    with watched(log):
        for _ in sample_groups(policy, prompts, sampling, seed=1, step=0):
            pass
    text = "".join("q" if name == "queue" else "w" for name in log)
    return f"{text.count('q')} queued, {text.count('w')} waits in {tokens} tokens: {text[:60]}"


def growth(policy: Policy, rows: int) -> list[int]:
    """Active memory after each of some samplings, in bytes."""
    prompts = [PromptRows(key="p", group=0, ids=PROMPT, rows=rows)]
    sizes = []
    for step in range(8):
        for _ in sample_groups(policy, prompts, Sampling(max_new_tokens=24), seed=1, step=step):
            pass
        sizes.append(int(mx.get_active_memory()))
    return sizes


def kept_bytes(policy: Policy, lengths: tuple[int, int] = (64, 192)) -> float:
    """Bytes per token and layer at the peak of a backward pass, by the difference of two lengths.

    What does not depend on the length, such as a chunk of the head, cancels.
    """
    policy.head_chunk = min(lengths) // 2
    peaks = []
    for length in lengths:
        rows = [TokenRow(PROMPT[:9], (PROMPT * 8)[:length])]

        def loss(batch: TokenBatch) -> mx.array:
            return token_scores(policy, batch, temperature=1.0).logprobs.sum()

        gc.collect()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        mx.eval(nn.value_and_grad(policy.module, loss)(make_batch(rows, [0])))
        peaks.append(mx.get_peak_memory() - before)
    shorter, longer = lengths
    return (peaks[1] - peaks[0]) / (longer - shorter) / len(policy.model.layers)


def leaving(policy: Policy, rows: int) -> str:
    """What is copied when a quarter of the rows leaves."""
    with policy.for_sampling():
        batch = batch_for(policy)
        (prefilled,) = batch.prefill([PROMPT])
        batch.add([prefilled] * rows)
        mx.eval(batch.step(mx.array([7] * rows)))
        caches = batch.caches
        arrays = [array for cache in caches for array in (cache.keys, cache.values)]
        mx.eval(arrays)
        before = sum(array.nbytes for array in arrays)
        batch.select(range(rows - rows // 4))
        arrays = [array for cache in caches for array in (cache.keys, cache.values)]
        copies = operations(*arrays)
        mx.eval(arrays)
    after = sum(array.nbytes for array in arrays)
    return (
        f"{after / 1e6:.2f} MB of {before / 1e6:.2f} MB by {copies.total()} operations on "
        f"{len(arrays)} arrays of {len(caches)} layers: {dict(copies)}"
    )


def milliseconds(work: Callable[[], object], repeats: int = 20) -> float:
    """The median time of some repetitions after two for warming up."""
    seconds = []
    for _ in range(repeats + 2):
        mx.synchronize()
        started = time.perf_counter()
        work()
        mx.synchronize()
        seconds.append(time.perf_counter() - started)
    return 1000 * statistics.median(seconds[2:])


def bare_update(policy: Policy, answers: Sequence[TokenRow]) -> Callable[[], None]:
    """mlx-lm's loss and gradient of whole rows, with LoRA of rank 8 on all layers."""
    import mlx_lm
    from mlx_lm.tuner.trainer import default_loss
    from mlx_lm.tuner.utils import linear_to_lora_layers

    model, *_ = mlx_lm.load(str(policy.folder))
    model.set_dtype(getattr(mx, policy.dtype))
    model.freeze()
    lora = {"rank": 8, "scale": 2.0, "dropout": 0.0}
    linear_to_lora_layers(model, len(model.layers), lora)
    model.train()
    batch = mx.array([row.prompt_ids + row.ids for row in answers])
    lengths = mx.array([[len(PROMPT), batch.shape[1]]] * len(answers))
    gradient = nn.value_and_grad(model, default_loss)
    return lambda: mx.eval(gradient(model, batch, lengths))


def times(policy: Policy, rows: int, tokens: int = 64) -> Iterator[tuple[str, float]]:
    """What a decode step and its parts take, in milliseconds."""
    last = mx.array([7] * rows)
    bare = bare_model(policy, rows)
    yield "mlx-lm's step of the bare model", milliseconds(lambda: mx.eval(bare(last)))

    def greedy() -> None:
        following = last
        for _ in range(tokens):
            following = bare(following).argmax(-1)
            mx.async_eval(following)

    yield "  the same, greedy, queued ahead, per token", milliseconds(greedy, 3) / tokens
    with policy.for_sampling():
        batch = batch_for(policy)
        (prefilled,) = batch.prefill([PROMPT])
        batch.add([prefilled] * rows)
        yield "our step with LoRA", milliseconds(lambda: mx.eval(batch.step(last)))
        batch.select(range(rows))

    logits = mx.random.normal((rows, policy.vocabulary))
    keys = token_keys(list(range(rows)), [3] * rows)
    yield "a draw", milliseconds(lambda: mx.eval(*draw(logits, Sampling(), keys)))
    prompts = [PromptRows(key="p", group=0, ids=PROMPT, rows=rows)]
    sampling = Sampling(max_new_tokens=tokens, ignore_end=True)

    def sample() -> None:
        for _ in sample_groups(policy, prompts, sampling, seed=1, step=0):
            pass

    yield "sampling, all together, per token", milliseconds(sample, 3) / tokens
    answers = [TokenRow(PROMPT, (PROMPT * 8)[:tokens])] * rows

    def loss(scored: TokenBatch) -> mx.array:
        return token_scores(policy, scored, temperature=1.0).logprobs.sum()

    def update() -> None:
        mx.eval(nn.value_and_grad(policy.module, loss)(make_batch(answers, range(rows))))

    yield f"scores and gradient of {rows} x {tokens} tokens", milliseconds(update, 5)
    theirs = bare_update(policy, answers)
    yield "  the same by mlx-lm's trainer, prompts for each row", milliseconds(theirs, 5)


def training(path: str, dtype: str, steps: int) -> list[int]:
    """Active memory after each step of a real run, in bytes."""
    config = RunConfig.model_validate(
        {
            "steps": steps,
            "model": loaded_settings(path, dtype),
            "rollout": {"prompts": 2, "group_size": 4, "max_new_tokens": 16},
            "evaluation": {"before_and_after": False, "pinned": 0},
            "checkpoint": {"every": 0},
        }
    )
    sizes = []
    with TemporaryDirectory() as folder:
        for event in run(config, Control(), folder=Path(folder)):
            if isinstance(event, RunFailed):
                raise SystemExit(event.message)
            if isinstance(event, StepFinished):
                gc.collect()
                sizes.append(int(mx.get_active_memory()))
    return sizes


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--training", type=int, default=0, metavar="STEPS")
    chosen = parser.parse_args()
    out = sys.stdout.write
    if chosen.training:
        sizes = training(chosen.model, chosen.dtype, chosen.training)
        tenth = sizes[9::10]
        out(f"active memory after every tenth step, in bytes: {tenth}\n")
        out(f"growth from step 10 to {len(sizes)}: {sizes[-1] - sizes[9]} bytes\n")
        return
    policy = loaded(chosen.model, chosen.dtype)
    if chosen.times:
        for name, duration in times(policy, chosen.rows):
            out(f"{name}: {duration:.3f} ms\n")
        return
    bare, ours = bare_step(policy, chosen.rows), our_step(policy, chosen.rows)
    out(
        f"decode step: {ours.total()} operations, mlx-lm's bare {bare.total()}, "
        f"ratio {ours.total() / bare.total():.2f}\n"
    )
    for name, _ in (ours - bare).most_common(12):
        out(f"  {name}: {ours[name]} (bare {bare[name]})\n")
    drawn = our_draw(policy.vocabulary, chosen.rows)
    out(f"draw: {drawn.total()} operations: {dict(drawn.most_common())}\n")
    out(f"order: {order(policy, chosen.rows, 24)}\n")
    sizes = growth(policy, chosen.rows)
    out(f"active memory after each sampling: {sizes}\n")
    out(f"rows that leave: {leaving(policy, chosen.rows)}\n")
    formats = {name: kept_bytes(loaded(chosen.model, name)) for name in ("float32", "bfloat16")}
    out(
        "kept for a backward pass, bytes per token and layer: "
        + ", ".join(f"{name} {size:,.0f}" for name, size in formats.items())
        + f", ratio {formats['bfloat16'] / formats['float32']:.3f}\n"
    )


if __name__ == "__main__":
    main()
