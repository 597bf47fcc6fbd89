"""Converts a GGUF file to a model folder that mlx-lm can open, atomically."""

from pathlib import Path

import mlx.core as mx

from grpo_engine.errors import ModelError
from grpo_engine.frozen import frozen
from grpo_engine.models.folders import (
    Dtype,
    appearing,
    require_space,
    write_json,
    write_weights,
)
from grpo_engine.models.gguf import architectures, tokenizers
from grpo_engine.models.gguf.reader import open_gguf
from grpo_engine.policy.tokenizer import load_tokenizer


@frozen
class Imported:
    folder: Path
    architecture: str
    parameters: int
    bytes: int
    formats: tuple[str, ...]  # number formats of the file


def import_gguf(source: Path, folder: Path, *, dtype: Dtype = "float32") -> Imported:
    """Dequantise the weights of `source` and write them with settings and tokenizer to `folder`.

    The folder must not exist. It is created complete and tested, or not at all after an error.
    """
    file = open_gguf(source)
    with appearing(folder) as draft:
        config = architectures.model_config(file)
        names = architectures.weight_names(file)
        content, settings = tokenizers.build(file)
        ids = tokenizers.end_ids(file)
        if not ids:
            raise ModelError(f"{source} has no end token, so answers could not end")
        config["eos_token_id"] = ids if len(ids) > 1 else ids[0]
        for name, key in (("bos", "bos"), ("pad", "padding")):
            config[f"{name}_token_id"] = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
        config["torch_dtype"] = dtype
        require_space(draft, sum(file.tensors[name].n_elements for name in names), dtype)
        write_json(draft / "config.json", config)
        write_json(draft / "tokenizer.json", content)
        write_json(draft / "tokenizer_config.json", settings)
        size = write_weights(
            draft,
            {
                target: mx.array(architectures.weight(file, name), getattr(mx, dtype))
                for name, target in names.items()
            },
        )
        _test(draft, source)
        return Imported(
            folder=folder,
            architecture=config["model_type"],
            bytes=size,
            parameters=sum(tensor.n_elements for tensor in file.tensors.values()),
            formats=tuple(sorted({tensor.tensor_type.name for tensor in file.tensors.values()})),
        )


def _test(folder: Path, source: Path) -> None:
    """Open the folder as mlx-lm does and run a few tokens."""
    from mlx_lm.utils import load_model

    try:
        model, config = load_model(folder, lazy=True)
        tokenizer = load_tokenizer(folder)
        ids = tokenizer.encode("1 + 1 =", add_special_tokens=False)[:4] or [0]
        finite = mx.isfinite(model(mx.array([ids]))).all().item()
    except Exception as error:  # tokenizers raises nothing narrower
        raise ModelError(f"{source} does not give a working model: {error}") from error
    if not finite or max(ids) >= config["vocab_size"]:
        raise ModelError(f"the weights in {source} are damaged: the model gives no finite numbers")
