"""Numbers of a server of `skyrl_server` beside ours: python -m tests.tools.skyrl_checks MODEL

MODEL is the folder that the server serves. Prints by how much log-probabilities of its base model
differ from those of the same folder in MLX, by how much sampled ones differ from scored ones, and
how far a step of Adam moved them.
"""

import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm import load

from grpo_engine.remote.protocol import Adam, Connection, Prompt, Row
from grpo_engine.remote.service import connect

ADAM = Adam(learning_rate=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, max_grad_norm=0.0)


def ours(model: Any, ids: tuple[int, ...]) -> np.ndarray:
    logits = model(mx.array([ids[:-1]])).astype(mx.float32)[0]  # [T,V]
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return np.array(mx.take_along_axis(logprobs, mx.array(ids[1:])[:, None], axis=-1)[:, 0])


def main(folder: Path, url: str) -> None:
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


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if sys.argv[2:] else "http://127.0.0.1:8123")
