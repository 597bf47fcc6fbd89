"""One of mlx-lm-lora's training steps per turn: python peer_mlx_lm_lora.py MODEL WORK.

It makes one pass (mu is 1), and scores the policy and the reference lazily inside its update, so
their times cannot be separated from outside.
"""

import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks import gate, work
else:  # run by its path, without the package
    import gate
    import work

os.environ.setdefault("HF_HUB_OFFLINE", "1")

if os.environ.get("BENCH_BLAS") == "same":
    # This project's import hook loads the BLAS it uses; nothing else of the project is used.
    from grpo_engine.cpu import blas

    blas.ensure()
    blas.set_threads(int(os.environ.get("BENCH_THREADS", "2")))

import mlx.core as mx
import mlx.optimizers as optim
from mlx_lm import load
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm_lora.trainer import grpo_trainer
from mlx_lm_lora.trainer.grpo_trainer import GRPOTrainingArgs, train_grpo

KEYS = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
]


def main(model_path: str, name: str) -> None:
    """Train one step for every `go`."""
    chosen = work.WORKS[name]
    if chosen.passes > 1:
        raise SystemExit("mlx-lm-lora makes one pass over its answers")
    model, tokenizer = load(model_path)[:2]
    reference = load(model_path)[0]
    for each in (model, reference):
        each.set_dtype(mx.float32)
        each.freeze()
    settings = {"rank": work.RANK, "scale": work.SCALE, "dropout": 0.0, "keys": KEYS}
    linear_to_lora_layers(model, len(model.layers), settings)
    mx.eval(model.parameters(), reference.parameters())
    data = []
    for text in chosen.prompts:
        message = [{"role": "user", "content": text}]
        ids = tokenizer.apply_chat_template(message, add_generation_prompt=True)
        data.append((ids, [0], text, ""))
    if chosen.ignore_end:
        tokenizer.eos_token_ids = set()
    spent = {"rollout": 0.0, "sampled": 0}
    generate = grpo_trainer.generate_grpo

    def timed(*args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        answers = generate(*args, **kwargs)
        spent["rollout"] += time.perf_counter() - begun
        spent["sampled"] += sum(len(ids) for ids in answers[0])
        return answers

    grpo_trainer.generate_grpo = timed

    def batches(**_: Any) -> Iterator[Any]:
        columns = tuple(list(column) for column in zip(*data, strict=True))
        gate.send(ready=True)
        while True:
            gate.wait()
            spent.update(rollout=0.0, sampled=0)
            begun = time.perf_counter()
            yield (*columns, None)
            total = time.perf_counter() - begun
            gate.send(
                seconds=total,
                rollout=spent["rollout"],
                logprobs=None,
                update=total - spent["rollout"],
                sampled=spent["sampled"],
                memory=gate.peak_gigabytes(),
                mlx_memory=mx.get_peak_memory() / 1e9,
            )

    def letters(prompts: Any, completions: Any, answer: Any, types: Any = None) -> list[float]:
        return [work.reward(text) for text in completions]

    train_grpo(
        model,
        reference,
        tokenizer,
        optim.AdamW(learning_rate=work.LEARNING_RATE),
        data,
        reward_funcs=[letters],
        iterate_batches=batches,
        end_answer_token="",
        args=GRPOTrainingArgs(
            batch_size=len(data),
            iters=1000,
            steps_per_report=10**6,
            steps_per_save=10**6,
            adapter_file="/dev/null",
            group_size=work.GROUP,
            beta=work.BETA,
            epsilon=0.2,
            max_completion_length=chosen.new_tokens,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
        ),
    )


if __name__ == "__main__":
    main(*sys.argv[1:3])
