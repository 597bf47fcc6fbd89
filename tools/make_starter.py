"""Make the embedded starter model: `python -m tools.make_starter`.

The textbook teaches arithmetic until most worked answers are right; the workbooks then teach the
pupils' habits. Their shares are steered until sampled accuracy and format, measured on problems
that the model does not learn from, are at the targets. Held-out problems play no part in it.
"""

import argparse
import json
import random
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_map
from mlx_lm.models import llama
from mlx_lm.models.cache import KVCache
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from grpo_engine.policy.source import STARTER
from grpo_engine.policy.trees import flatten
from grpo_engine.rewards.correctness import numeric_answer
from grpo_engine.rewards.shape import well_formed
from grpo_engine.tasks.arithmetic import SYMBOLS, Problem, mixed
from tools.starter_demonstrations import (
    CHECK,
    PUPILS,
    SPECIAL,
    TAGS,
    problem_from,
    prompt,
    textbook,
    workbook,
)
from tools.starter_sheet import write_data_sheet

END_OF_TEXT, PAD, _, END_OF_TURN = range(len(SPECIAL))
TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] }}"
    "{% if not (loop.last and message['role'] == 'assistant' and not add_generation_prompt) %}"
    "{{ '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SHAPE: Final = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
LONGEST: Final = 48  # tokens of a completion

BATCH, WARM_UP = 32, 30
TEXTBOOK_STEPS = 600
ROUND = 60  # steps of the workbooks between measurements
FIRST_STEERED, FEWEST_ROUNDS, MOST_ROUNDS = 3, 4, 20
ACCURACY, FORMAT, TOLERANCE = 0.35, 0.40, 0.012  # targets on the check problems
SAMPLES = 4  # completions per held-out problem
CHECKED = 3000  # completions per measurement
MUON_RATE, ADAM_RATE, WORKBOOK_SHARE = 0.01, 0.003, 0.2
AVERAGE = 0.97  # decay of the averaged weights, per step


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One completion per problem, with its scores."""

    problems: Sequence[Problem]
    texts: Sequence[str]
    right: np.ndarray[Any, np.dtype[np.bool_]]
    formed: np.ndarray[Any, np.dtype[np.bool_]]
    tokens: np.ndarray[Any, np.dtype[np.int64]]

    @property
    def worked(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which completions show their work instead of guessing."""
        return np.array(["looks" not in text for text in self.texts])


def make_tokenizer() -> Tokenizer:
    rng = random.Random("tokenizer")
    corpus = ["user\n", "assistant\n", "system\n"] * 1000
    for _ in range(3000):
        problem = problem_from(rng)
        corpus.append(
            prompt(problem, rng.randrange(3)) + workbook(problem, rng.choice(PUPILS), rng)
        )
    return tokenizer_of(corpus)


def tokenizer_of(corpus: Iterable[str]) -> Tokenizer:
    """Byte-level BPE with about 320 tokens: it encodes any text, and each digit is one token."""
    marks = re.compile("|".join(map(re.escape, (*SPECIAL, *TAGS))))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator((marks.sub("\n", text) for text in corpus), trainer)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return tokenizer


def make_model(vocabulary: int, key: mx.array) -> llama.Model:
    """A small llama model with normally distributed weights."""
    model = llama.Model(llama.ModelArgs.from_dict({**SHAPE, "vocab_size": vocabulary}))
    weights = []
    for name, weight in flatten(model.parameters()).items():
        if weight.ndim == 2:
            key, own = mx.random.split(key)
            weights.append((name, 0.04 * mx.random.normal(weight.shape, key=own)))
    model.load_weights(weights, strict=False)
    mx.eval(model.parameters())
    return model


def batches(
    tokenizer: Tokenizer, demonstrate: Any, rng: random.Random
) -> Iterator[tuple[mx.array, mx.array]]:
    """Yield (ids [B, T], mask of the model's tokens [B, T]) endlessly, rows of similar length.

    A demonstration is a prompt, an answer, what is said to it, a further answer, and so on.
    """
    while True:
        rows = []
        for _ in range(8 * BATCH):
            texts = [tokenizer.encode(text).ids for text in demonstrate(rng)]
            learned = [[turn % 2] * len(ids) for turn, ids in enumerate(texts)]
            rows.append((list(chain(*texts)), list(chain(*learned))))
        rows.sort(key=lambda row: len(row[0]))
        for start in rng.sample(range(0, len(rows), BATCH), 8):
            part = rows[start : start + BATCH]
            width = max(len(ids) for ids, _ in part)
            ids = np.full((BATCH, width), PAD)
            mask = np.zeros((BATCH, width), np.float32)
            for row, (row_ids, is_learned) in enumerate(part):
                ids[row, : len(row_ids)] = row_ids
                mask[row, : len(row_ids)] = is_learned
            yield mx.array(ids), mx.array(mask)


def loss_of(model: llama.Model, ids: mx.array, mask: mx.array) -> mx.array:
    """Mean cross-entropy of the completion tokens."""
    losses = nn.losses.cross_entropy(model(ids[:, :-1]), ids[:, 1:])
    return (losses * mask[:, 1:]).sum() / mask[:, 1:].sum()


def make_optimizer(share: float, steps: int | None) -> optim.Optimizer:
    """Muon for the layers' matrices, Adam for the rest, with warm-up; cosine over `steps`."""

    def rate(peak: float) -> Any:
        after = optim.cosine_decay(peak, steps, 0.2 * peak) if steps else (lambda _: peak)
        return optim.join_schedules([optim.linear_schedule(0, peak, WARM_UP), after], [WARM_UP])

    muon = optim.Muon(learning_rate=rate(share * MUON_RATE), weight_decay=0.0)
    adam = optim.Adam(learning_rate=rate(share * ADAM_RATE), betas=[0.9, 0.98])
    return optim.MultiOptimizer([muon, adam], [lambda name, w: w.ndim == 2 and "embed" not in name])


def train(
    model: llama.Model,
    optimizer: optim.Optimizer,
    data: Iterator[tuple[mx.array, mx.array]],
    steps: int,
    average: Any = None,
) -> Any:
    """Train for some steps; return the running average of the weights, new or continued."""
    value_and_grad = nn.value_and_grad(model, loss_of)
    average = average or model.parameters()
    for _ in range(steps):
        _, gradients = value_and_grad(model, *next(data))
        gradients, _ = optim.clip_grad_norm(gradients, 1.0)
        optimizer.update(model, gradients)
        average = tree_map(
            lambda a, w: AVERAGE * a + (1 - AVERAGE) * w, average, model.parameters()
        )
        mx.eval(model.parameters(), optimizer.state, average)
    return average


def sample(
    model: llama.Model, prompts: Sequence[list[int]], temperature: float, key: mx.array
) -> list[list[int]]:
    """One completion per prompt; prompts of equal length share a batch that drops finished rows."""
    completions: list[list[int]] = [[] for _ in prompts]
    for length in sorted({len(ids) for ids in prompts}):
        rows = np.array([row for row, ids in enumerate(prompts) if len(ids) == length])
        caches = [KVCache() for _ in model.layers]
        logits = model(mx.array([prompts[row] for row in rows]), cache=caches)[:, -1]
        for _ in range(LONGEST):
            key, own = mx.random.split(key)
            drawn = (
                mx.random.categorical(logits / temperature, key=own)
                if temperature
                else mx.argmax(logits, axis=-1)
            )
            tokens = np.array(drawn)
            for row, token in zip(rows, tokens.tolist(), strict=True):
                completions[row].append(token)
            stay = np.flatnonzero(~np.isin(tokens, (END_OF_TEXT, END_OF_TURN)))
            if not stay.size:
                break
            if stay.size < rows.size:
                kept = mx.array(stay)
                for cache in caches:
                    assert cache.keys is not None
                    assert cache.values is not None
                    cache.keys, cache.values = cache.keys[kept], cache.values[kept]
            rows = rows[stay]
            logits = model(mx.array(tokens[stay])[:, None], cache=caches)[:, -1]
    return completions


def measure(
    model: llama.Model,
    tokenizer: Tokenizer,
    asked: Sequence[Problem],
    *,
    seed: int,
    temperature: float = 1.0,
) -> Measured:
    """Sample one answer per problem and score it with the task's rewards."""
    prompts = [tokenizer.encode(prompt(problem)).ids for problem in asked]
    completions: list[list[int]] = []
    for start in range(0, len(prompts), 1000):
        key = mx.random.key(seed + start)
        completions += sample(model, prompts[start : start + 1000], temperature, key)
    texts = tokenizer.decode_batch(completions)
    scores = numeric_answer([""] * len(texts), texts, answer=[problem.answer for problem in asked])
    return Measured(
        problems=asked,
        texts=texts,
        right=np.array([score == 1 for score in scores]),
        formed=np.array([well_formed(text) for text in texts]),
        tokens=np.array([len(ids) for ids in completions]),
    )


def parameters_of(model: llama.Model) -> int:
    return sum(weight.size for weight in flatten(model.parameters()).values())


def make(seed: int) -> tuple[llama.Model, Tokenizer, list[str]]:
    """Train a starter; return it with its tokenizer and one line per measurement."""
    begun, log = time.monotonic(), list[str]()

    def say(text: str) -> None:
        log.append(text)
        print(f"{time.monotonic() - begun:4.0f} s  {text}", flush=True)

    rng, tokenizer = random.Random(seed), make_tokenizer()
    model = make_model(tokenizer.get_vocab_size(), mx.random.key(seed))
    check = [p for p in mixed(tuple(SYMBOLS), "making") if p.bucket in CHECK]
    check = (check * (CHECKED // len(check) + 1))[:CHECKED]

    by_textbook, formatted, careful = 0.5, 0.0, 0.0

    def demonstrate(rng: random.Random) -> tuple[str, str]:
        problem, wording = problem_from(rng), rng.randrange(len(PUPILS))
        if rng.random() < by_textbook:
            return prompt(problem, wording), textbook(problem)
        pupil = PUPILS[wording].steered(formatted, careful)
        return prompt(problem, wording), workbook(problem, pupil, rng)

    data = batches(tokenizer, demonstrate, rng)
    train(model, make_optimizer(1.0, TEXTBOOK_STEPS), data, TEXTBOOK_STEPS)
    found = measure(model, tokenizer, check, seed=seed)
    say(f"textbook: accuracy {found.right.mean():.3f}, format {found.formed.mean():.3f}")

    by_textbook, average = 0.0, None
    optimizer = make_optimizer(WORKBOOK_SHARE, None)
    data = batches(tokenizer, demonstrate, rng)
    for turn in range(1, MOST_ROUNDS + 1):
        average = train(model, optimizer, data, ROUND, average)
        trained = model.parameters()
        model.update(average)
        found = measure(model, tokenizer, check, seed=seed + turn)
        accuracy, shape = float(found.right.mean()), float(found.formed.mean())
        say(
            f"workbooks {turn}: accuracy {accuracy:.3f}, format {shape:.3f}, "
            f"worked out {found.worked.mean():.3f}, "
            f"right of those {found.right[found.worked].mean():.3f}"
        )
        near = max(abs(accuracy - ACCURACY), abs(shape - FORMAT)) <= TOLERANCE
        if near and turn >= FEWEST_ROUNDS:
            return model, tokenizer, log
        model.update(trained)
        if turn >= FIRST_STEERED:
            careful += 0.5 * (ACCURACY - accuracy)
            formatted += 0.5 * (FORMAT - shape)
    raise RuntimeError(f"seed {seed} did not reach the targets in {MOST_ROUNDS} rounds")


def save(model: llama.Model, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the model in Hugging Face's layout."""
    folder.mkdir(parents=True, exist_ok=True)
    ends = {
        "bos_token_id": SPECIAL.index("<|im_start|>"),
        "eos_token_id": [END_OF_TURN, END_OF_TEXT],
        "pad_token_id": PAD,
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        **SHAPE,
        **ends,
        "hidden_act": "silu",
        "vocab_size": tokenizer.get_vocab_size(),
        "torch_dtype": "float32",
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": TEMPLATE,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "additional_special_tokens": ["<|endoftext|>"],
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
    }
    generation = {**ends, "do_sample": True, "temperature": 1.0, "max_new_tokens": LONGEST}
    for name, content in (
        ("config.json", config),
        ("tokenizer_config.json", settings),
        ("generation_config.json", generation),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    tokenizer.save(str(folder / "tokenizer.json"))
    weights = flatten(model.parameters())
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})


def main() -> None:
    """Make the starter, measure it on held-out problems, and write its data sheet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=STARTER, help="folder of the model")
    parser.add_argument("--sheet", type=Path, help="where to write the data sheet")
    chosen = parser.parse_args()
    begun = time.monotonic()
    model, tokenizer, log = make(chosen.seed)
    save(model, tokenizer, chosen.out)
    seconds = time.monotonic() - begun
    held_out = mixed(tuple(SYMBOLS), "held_out")
    sampled = measure(model, tokenizer, held_out * SAMPLES, seed=0)
    greedy = measure(model, tokenizer, held_out, seed=0, temperature=0)
    print(
        f"held out: accuracy {sampled.right.mean():.3f}, format {sampled.formed.mean():.3f}; "
        f"greedy {greedy.right.mean():.3f}, {greedy.formed.mean():.3f}"
    )
    if chosen.sheet:
        write_data_sheet(
            chosen.sheet,
            chosen.out,
            sampled,
            greedy,
            parameters=parameters_of(model),
            accuracy=ACCURACY,
            format=FORMAT,
            tolerance=TOLERANCE,
            samples=SAMPLES,
            log="\n    ".join(log),
            seed=chosen.seed,
            seconds=seconds,
        )


if __name__ == "__main__":
    main()
