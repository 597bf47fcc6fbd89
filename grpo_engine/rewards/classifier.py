"""A sequence classifier on MLX as a reward model: a trunk from mlx-lm and a `score` head.

The folder is saved by Hugging Face's `…ForSequenceClassification` with one label. As in
transformers, the score is `score.weight · h` with h the last token's hidden state.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from grpo_engine.errors import RewardError
from grpo_engine.paths import irregular_file
from grpo_engine.tasks.answers import text_of

HEADS = ("score.weight", "model.score.weight", "classifier.weight")


class Classifier:
    """Loads on the first call, in the reward process."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).expanduser()
        if problem := irregular_file(self.path):
            raise RewardError(f"reward model:{path}: {problem}")
        if not (self.path / "config.json").is_file():
            raise RewardError(
                f"reward model:{path}: {self.path} has no config.json; give the folder of a "
                "sequence-classification model (`hf download` fetches one)"
            )
        size = sum(file.stat().st_size for file in self.path.glob("*.safetensors"))
        self.memory_gb = 4 + 3 * size / (1 << 30)
        self.__name__ = self.path.name.replace(":", "_") or "model"

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float]:
        import mlx.core as mx

        trunk, head, tokenizer = self._model
        scores: list[float] = []
        for prompt, completion in zip(prompts, completions, strict=True):
            ids = mx.array([self._ids(tokenizer, prompt, completion)])
            last = trunk(ids)[0, -1].astype(mx.float32)
            scores.append((head[0] * last).sum().item())
        return scores

    def _ids(self, tokenizer: Any, prompt: Any, completion: Any) -> list[int]:
        """Token ids: chat messages through the model's own template, text unchanged."""
        if isinstance(prompt, str):
            return list(tokenizer.encode(prompt + text_of(completion)))
        messages = [dict(message) for message in prompt]
        if messages[-1].get("role") == "assistant":  # a prefill continued by the completion
            messages[-1]["content"] = f"{messages[-1]['content']}{text_of(completion)}"
        else:
            messages.append({"role": "assistant", "content": text_of(completion)})
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        return list(tokenizer.encode(text, add_special_tokens=False))

    @cached_property
    def _model(self) -> tuple[Any, Any, Any]:
        """The trunk, the head's weight and the tokenizer."""
        import mlx.core as mx
        from mlx_lm.utils import load_model, load_tokenizer

        weights: dict[str, Any] = {}
        for file in sorted(self.path.glob("*.safetensors")):
            loaded: Any = mx.load(str(file))
            weights |= loaded
        head = next((weights[name] for name in HEADS if name in weights), None)
        if head is None or head.shape[0] != 1:
            labels = "none" if head is None else f"{head.shape[0]} labels"
            raise RewardError(
                f"reward model:{self.path}: a reward model has one score head ({HEADS[0]} of one "
                f"row), this folder has {labels}"
            )
        model, _ = load_model(self.path, strict=False)
        trunk = getattr(model, "model", None)
        if trunk is None:
            raise RewardError(
                f"reward model:{self.path}: {type(model).__module__} has no trunk to score with; "
                "use a llama- or qwen-like classifier, or an http:// endpoint"
            )
        tokenizer = load_tokenizer(self.path)
        mx.eval(trunk.parameters(), head)
        return trunk, head.astype(mx.float32), tokenizer
