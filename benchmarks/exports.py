"""Each export of a model with an adapter, opened by the program it is for: do they agree?

    python -m benchmarks.exports write MODEL OUT      writes every export to OUT
    PEER/bin/python benchmarks/exports.py read OUT    prints the table; with transformers and peft

The reference are the log-probabilities of a text as training computes them, with LoRA matrices that
are random and large enough to matter. All compute in float32, so that what was stored is compared.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TEXT = (
    "The quick brown fox jumps over the lazy dog. Seven times eight is fifty-six, and the capital "
    "of Norway is Oslo.\n"
)
EXPORTS = (
    ("mlx", "float32"),
    ("mlx", "float16"),
    ("mlx", "bfloat16"),
    ("hf", "float32"),
    ("hf", "float16"),
    ("hf", "bfloat16"),
    ("peft", "float32"),
    ("gguf", "float32"),
    ("gguf", "float16"),
    ("gguf", "q8_0"),
)
FACTS = "facts.json"


def write(model: str, out: Path) -> None:
    """Export in every form; note what the trained model says, and what mlx-lm says of its own."""
    import mlx.core as mx
    import mlx_lm

    from grpo_engine.config.settings import ModelConfig
    from grpo_engine.models.export import export
    from grpo_engine.policy.load import load_policy

    def logprobs_of(model: Any, ids: list[int]) -> list[float]:
        logits = model(mx.array([ids[:-1]])).astype(mx.float32)[0]
        chances = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        return list(map(float, mx.take_along_axis(chances, mx.array(ids[1:])[:, None], -1)))

    policy = load_policy(ModelConfig(path=model, dtype="float32"), seed=3)
    policy.load_trainable(
        {
            name: value + 0.003 * mx.random.normal(value.shape, key=mx.random.key(index))
            for index, (name, value) in enumerate(sorted(policy.snapshot().items()))
        }
    )
    policy.save_adapter(out / "adapter")
    ids = policy.tokenizer.encode(TEXT)
    with policy.as_reference():
        base = logprobs_of(policy.model, ids)
    logprobs: dict[str, Any] = {"ids": ids, "trained": logprobs_of(policy.model, ids), "base": base}
    logprobs |= {"path": str(policy.folder), "mlx": {}}
    config = ModelConfig(path=model, adapter=str(out / "adapter"))
    for to, format_ in EXPORTS:
        export(config, out / f"{to}-{format_}", to, format_)  # type: ignore[arg-type]  # from the table
        if to == "mlx":
            opened = mlx_lm.load(str(out / f"{to}-{format_}"))[0]
            opened.set_dtype(mx.float32)
            logprobs["mlx"][format_] = logprobs_of(opened, ids)
    (out / FACTS).write_text(json.dumps(logprobs))


def read(out: Path) -> Iterator[str]:
    """The rows of the table: how far the log-probabilities of each export are from the trained."""
    logprobs = json.loads((out / FACTS).read_text())
    for to, format_ in EXPORTS:
        reopened = logprobs["mlx"][format_] if to == "mlx" else _other(out, to, format_, logprobs)
        gaps = [abs(a - b) for a, b in zip(reopened, logprobs["trained"], strict=True)]
        yield f"| {to} | {format_} | {sum(gaps) / len(gaps):.1e} | {max(gaps):.1e} |"
    gaps = [abs(a - b) for a, b in zip(logprobs["base"], logprobs["trained"], strict=True)]
    yield f"| without the adapter | | {sum(gaps) / len(gaps):.1e} | {max(gaps):.1e} |"


def _other(out: Path, to: str, format_: str, logprobs: dict[str, Any]) -> list[float]:
    import torch
    from transformers import AutoModelForCausalLM

    target, options = out / f"{to}-{format_}", {"dtype": torch.float32}
    if to == "gguf":
        options["gguf_file"] = next(target.glob("*.gguf")).name
    if to == "peft":
        from peft import PeftModel

        model = AutoModelForCausalLM.from_pretrained(logprobs["path"], **options)
        model = PeftModel.from_pretrained(model, target)
    else:
        model = AutoModelForCausalLM.from_pretrained(target, **options)
    ids = torch.tensor([logprobs["ids"]])
    with torch.no_grad():
        logs = torch.log_softmax(model(ids[:, :-1]).logits[0].float(), -1)
    reopened: list[float] = logs.gather(1, ids[0, 1:, None])[:, 0].tolist()
    return reopened


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], Path(sys.argv[3]))
    else:
        print("| export | format | mean, nats | largest |\n| --- | --- | --- | --- |")
        for row in read(Path(sys.argv[2])):
            print(row, flush=True)
