"""A server of `skyrl_server` beside this program.

    python -m tests.tools.skyrl_checks numbers MODEL [URL]
    python -m tests.tools.skyrl_checks curves MODEL FOLDER [URL]

MODEL is the folder that the server serves. `numbers` prints by how much log-probabilities of its
base model differ from those of the same folder in MLX, by how much sampled ones differ from scored
ones, and how far a step of Adam moved them. `curves` trains the same settings there and here, with
three seeds, and prints held-out accuracies as a table; runs that the store in FOLDER has are kept.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm import load

from grpo_engine.remote.protocol import Adam, Connection, Prompt, Row
from grpo_engine.remote.service import connect
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.reader import StoreReader

URL = "http://127.0.0.1:8123"
SEEDS = (1, 2, 3)
EVERY, STEPS = 10, 40
# The scale of LoRA is SkyRL's, 32 / rank, and clipping is off, since SkyRL has none.
SETTINGS = f"""\
steps: {STEPS}
rewards: {{functions: [numeric_answer, format_all], weights: [1.0, 2.0]}}
rollout: {{prompts: 8, group_size: 8, max_new_tokens: 32}}
algorithm: {{recipe: grpo}}
optimizer: {{learning_rate: 7.0e-4, max_grad_norm: 0.0}}
evaluation: {{problems: 128, every: {EVERY}, greedy: false, pinned: 0}}
checkpoint: {{every: 0}}
"""
WHERE = {"server": [], "here": ["model.lora_scale=4.0"]}
ADAM = Adam(learning_rate=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, max_grad_norm=0.0)


def ours(model: Any, ids: tuple[int, ...]) -> np.ndarray:
    logits = model(mx.array([ids[:-1]])).astype(mx.float32)[0]  # [T,V]
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return np.array(mx.take_along_axis(logprobs, mx.array(ids[1:])[:, None], axis=-1)[:, 0])


def numbers(folder: Path, url: str) -> None:
    model, tokenizer = load(str(folder))[:2]
    vocab_size = len(tokenizer.get_vocab())
    service = connect(
        Connection(url=url, model=str(folder), rank=8, seed=1, vocab_size=vocab_size)
    ).result()
    print(service.capabilities)
    service.begin().result()
    texts = ("What is 12 + 30?", "1 + 1 =", "The answer is 7.")
    prompts = [tuple(tokenizer.encode(text)) for text in texts]
    futures = [
        service.sample(Prompt(ids=ids, count=4, max_tokens=24, stop_ids=(), seed=4 * index))
        for index, ids in enumerate(prompts)
    ]
    samples = [
        (ids, one) for ids, future in zip(prompts, futures, strict=True) for one in future.result()
    ]
    sequences = [(*ids, *sample.ids) for ids, sample in samples]
    scored = service.logprobs(sequences).result()
    base = service.logprobs(sequences, base=True).result()
    gaps = [np.abs(ours(model, ids) - row).max() for ids, row in zip(sequences, base, strict=True)]
    print(f"base model, server's against ours: at most {max(gaps):.2e} nats")
    gaps = [
        np.abs(np.array(sample.logprobs) - row[len(ids) - 1 :]).max()
        for (ids, sample), row in zip(samples, scored, strict=True)
    ]
    print(f"sampled against scored: at most {max(gaps):.2e} nats")
    rows = [
        Row(
            ids=ids[:-1],
            targets=ids[1:],
            weights=(1.0,) * len(row),
            logprobs=row,
            advantages=(1.0,) * len(row),
        )
        for ids, row in zip(sequences, scored, strict=True)
    ]
    service.accumulate(rows).result()
    print(f"norm of the gradient: {service.step(ADAM).result()}")
    moved = service.logprobs(sequences).result()
    change = max(
        np.abs(np.subtract(new, old)).max() for new, old in zip(moved, scored, strict=True)
    )
    print(f"moved by a step of Adam: at most {change:.3f} nats")
    service.close()


def curves(model: Path, folder: Path, url: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    settings, store = folder / "settings.yaml", folder / "s.db"
    settings.write_text(SETTINGS)
    env = os.environ | {"GRPO_TUI_DB": str(store)}
    for seed in SEEDS:
        for where, own in WHERE.items():
            name = f"{where}-{seed}"
            if accuracies(store, name):
                continue
            changes = [f"model.path={model}", f"seed={seed}", f"name={name}", *own]
            changes += [f"remote.url={url}"] if where == "server" else []
            words = [word for change in changes for word in ("--set", change)]
            program = (sys.executable, "-m", "grpo_tui", "train", settings)
            subprocess.run([*map(str, program), *words], env=env, check=True)
    steps = range(0, STEPS + 1, EVERY)
    print(f"| held-out accuracy after step | {' | '.join(map(str, steps))} |")
    print("| --- " * (len(steps) + 1) + "|")
    for where in WHERE:
        runs = [accuracies(store, f"{where}-{seed}") for seed in SEEDS]
        for seed, run in zip(SEEDS, runs, strict=True):
            print(f"| {where}, seed {seed} | {cells(run)} |")
        print(f"| {where}, mean | {cells(np.mean(runs, axis=0))} |")


def cells(values: Any) -> str:
    return " | ".join(f"{value:.0%}" for value in values)


def accuracies(store: Path, name: str) -> list[float]:
    """A run's evaluations in order; none of a run that is not complete."""
    try:
        with StoreReader(store) as reader:
            run = reader.resolve(name)
            views = reader.evaluations(run.key) if run.status == "completed" else ()
    except StoreError:
        return []
    return [view.metrics["eval/accuracy"] for view in views]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["numbers", model, *url]:
            numbers(Path(model), *url or [URL])
        case ["curves", model, folder, *url]:
            curves(Path(model).resolve(), Path(folder).resolve(), *url or [URL])
        case _:
            raise SystemExit(__doc__)
