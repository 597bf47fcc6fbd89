"""A generated tokenizer with a chat template, for tests that need no model."""

from typing import Any

CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if think %}<think>{% endif %}{% endif %}"
)


def byte_tokenizer(template: str | None = CHATML) -> Any:
    """One token per byte and some special tokens, so characters can be split between tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    marks = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    kind: Any = PreTrainedTokenizerFast
    made = kind(tokenizer_object=tokenizer, eos_token="<|end|>")
    made.chat_template = template
    return made
