"""The data sheet of the embedded starter: contents, training, accuracy."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from grpo_engine.evaluation.statistics import wilson
from grpo_engine.tasks.arithmetic import SPLITS, SYMBOLS, WORDINGS, Problem, mixed, problems
from tools.starter_demonstrations import CHECK, PUPILS

Flags = np.ndarray[Any, np.dtype[np.bool_]]

TEXT = """\
# The embedded starter model

`grpo-tui train --preset starter` trains this model. It is written by
`python -m tools.make_starter --seed {seed} --sheet grpo_engine/models/starter/README.md`,
and so is this page. {seconds:.0f} seconds on a shared two-core machine made it.

## What it is

A llama of {parameters:,} parameters ({shape}), float32, {megabytes:.1f} MB, with a byte-level
tokenizer of {vocabulary} tokens in which digits stand alone. Stock mlx-lm opens it:

    python -m mlx_lm generate --model grpo_engine/models/starter/model --prompt "What is 47 + 38?"

It ends a completion with `<|im_end|>` or `<|endoftext|>`. It knows no language: only sums of two
two-digit numbers that need a carry, differences that need a borrow, and products of a two-digit
number and a digit. SHA-256 of `model.safetensors`: `{digest}`.

## Problems

A hash of the operands, whatever their order, puts each problem into one of three disjoint sets.

| set | used for | sums | differences | products |
|---|---|---:|---:|---:|
{splits}

Of the set `making`, hash buckets {check} are not learned from; they tell when to stop.
The order of the task balances the kinds (two sums, two differences, one product), which leaves
{train} problems to train on and {held_out} to evaluate on.

## How it was made

First, demonstrations half from a flawless textbook and half from three pupils' workbooks; then the
workbooks alone. Each pupil has a wording of the question and habits: keeping to the format, working
the problem out rather than giving the result at a glance (carry forgotten, smaller digit taken from
the larger, only the tens multiplied), and a slip of their own where the format is not kept.

| question | keeps the format | works it out | slip |
|---|---:|---:|---|
{pupils}

The shares are steered a little during training, and training stops when accuracy and format,
sampled on the buckets set aside, are both within {tolerance} of {accuracy:.2f} and {format:.2f}:

    {log}

So the model has half learned the task, and no pupil was good at both: that worked-out answers are
right more often, and that the format pays, is left for reinforcement learning to find, as are the
slips in the working itself.

## Held out, before any reinforcement learning

{count} held-out problems, {samples} sampled answers each at temperature 1, and one greedy answer.
Accuracy: the number in `<answer>`, or the last number where there is none, is right. Format: the
whole answer is `<think>…</think><answer>…</answer>`. Brackets are 95 % Wilson intervals.

| | sampled | greedy |
|---|---|---|
{results}

Examples, sampled:

    {examples}
"""


def write_data_sheet(path: Path, model: Path, sampled: Any, greedy: Any, **numbers: Any) -> None:
    """Write the sheet of the model in a folder; `numbers` are those that the text has as they are.

    `sampled` and `greedy` are the answers to the held-out problems.
    """
    config = json.loads((model / "config.json").read_text())
    weights = (model / "model.safetensors").read_bytes()
    held_out = mixed(tuple(SYMBOLS), "held_out")
    purpose = {"making": "teaching this model", "train": "GRPO", "held_out": "evaluation"}
    splits = [
        f"| `{split}` | {purpose[split]} | "
        + " | ".join(f"{len(problems(kind, split)):,}" for kind in SYMBOLS)
        + " |"
        for split in SPLITS
    ]
    pupils = [
        f"| {wording.format('47 + 38')} | {pupil.formatted:.0%} | {pupil.careful:.0%} | "
        f"`{pupil.slip.format(work='…', answer='85')}` |"
        for wording, pupil in zip(WORDINGS, PUPILS, strict=True)
    ]
    text = TEXT.format(
        **numbers,
        vocabulary=config["vocab_size"],
        shape=f"{config['num_hidden_layers']} layers, width {config['hidden_size']}, "
        f"{config['num_attention_heads']} heads",
        megabytes=len(weights) / 1e6,
        digest=hashlib.sha256(weights).hexdigest(),
        splits="\n".join(splits),
        check=f"{CHECK.start} to {CHECK.stop - 1}",
        train=f"{len(mixed(tuple(SYMBOLS), 'train')):,}",
        held_out=f"{len(held_out):,}",
        pupils="\n".join(pupils),
        count=f"{len(held_out):,}",
        results="\n".join(_results(sampled, greedy)),
        examples="\n    ".join(
            _example(*pair) for pair in zip(sampled.problems[:10], sampled.texts[:10], strict=True)
        ),
    )
    path.write_text(text, encoding="utf-8")


def _results(sampled: Any, greedy: Any) -> list[str]:
    def row(name: str, pick: Any) -> str:
        cells = []
        for found in (sampled, greedy):
            flags, among = pick(found)
            cells.append(_share(flags[among]))
        return f"| {name} | {' | '.join(cells)} |"

    def of_kind(kind: str) -> Any:
        return lambda found: (found.right, np.array([p.operation == kind for p in found.problems]))

    everything = slice(None)
    rows = [
        row("accuracy", lambda found: (found.right, everything)),
        row("format", lambda found: (found.formed, everything)),
        row("accuracy among well-formed answers", lambda found: (found.right, found.formed)),
        row("worked out", lambda found: (found.worked, everything)),
        row("accuracy among worked-out answers", lambda found: (found.right, found.worked)),
    ]
    rows += [row(f"accuracy, {kind}", of_kind(kind)) for kind in SYMBOLS]
    lengths = " | ".join(f"{found.tokens.mean():.1f}" for found in (sampled, greedy))
    return [*rows, f"| tokens, mean | {lengths} |"]


def _share(flags: Flags) -> str:
    count = len(flags)
    if not count:
        return "none"
    low, high = wilson(int(flags.sum()), count)
    return f"{flags.mean():.3f} [{low:.3f}, {high:.3f}]"


def _example(problem: Problem, text: str) -> str:
    return f"{problem.text} = {problem.answer}:  {text}"
