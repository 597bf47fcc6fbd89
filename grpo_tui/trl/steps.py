"""What the hooks took in a generation batch, of all ranks, as answers with numbers by token."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grpo_engine import events as ev
from grpo_tui import record

KEY, TARGET = "grpo_tui_key", "grpo_tui_target"  # columns: a problem's name in all runs, its answer


@dataclass(slots=True)
class MicroBatch:
    """One call of TRL's loss: rows of the rank's generation batch, and their numbers."""

    update: int  # of the generation batch, counted from 0
    rows: Any  # [b]
    accumulation: int
    loss: Any = None
    logprobs: Any = None  # [b, t]
    entropies: Any = None


@dataclass(slots=True)
class Batch:
    """What one rank took in one generation batch; arrays are rows by tokens, padded."""

    prompts: list[Any] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)  # of the problems; empty where the data has none
    targets: list[str] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)  # of the completions
    arrays: dict[str, Any] = field(default_factory=dict)  # by TRL's names
    rewards: Any = None  # [rows of all ranks, functions]
    micro_batches: list[MicroBatch] = field(default_factory=list)
    updates: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, list[float]] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Trainer:
    """What the numbers are read with; the settings are those of TRL's GRPOConfig."""

    functions: Sequence[str]
    weights: Sequence[float]
    loss_type: str
    processes: int
    steps_per_generation: int
    group_size: int
    ends: frozenset[int]  # tokens that end a completion
    sampling: Mapping[str, float]
    decode: Callable[[Sequence[int]], str]


def groups_of(
    batches: Sequence[Batch], trainer: Trainer, origin: ev.Origin = "train"
) -> list[record.Group]:
    """The groups of a generation batch; the ranks' rows follow each other."""
    rows = [row for rank, batch in enumerate(batches) for row in _rows(batch, rank, trainer)]
    keys = [key for batch in batches for key in batch.keys]
    targets = [target for batch in batches for target in batch.targets]
    size = trainer.group_size
    groups = []
    for first in range(0, len(rows), size):
        prompt, prompt_ids, _ = rows[first]
        answers = [answer for _, _, answer in rows[first : first + size]]
        groups.append(
            record.group(
                prompt,
                answers,
                key=keys[first] if keys else "",
                target=targets[first] if targets else "",
                prompt_ids=prompt_ids,
                sampling=trainer.sampling,
                origin=origin,
            )
        )
    return groups


def _rows(
    batch: Batch, rank: int, trainer: Trainer
) -> Iterator[tuple[Any, list[int], record.Rollout]]:
    arrays, count = batch.arrays, len(batch.prompts)
    rewards = None if batch.rewards is None else batch.rewards[rank * count :][:count]
    totals = [None] * count if rewards is None else _rewards(rewards, trainer)
    mask = arrays["completion_mask"] * arrays.get("tool_mask", 1)
    passes = _passes(batch, mask, trainer)
    for row, prompt in enumerate(batch.prompts):
        length = batch.lengths[row]
        ids = arrays["completion_ids"][row, :length].tolist()
        prompt_mask = arrays["prompt_mask"][row] > 0
        scores = None if rewards is None else rewards[row].tolist()
        text, ends = pieces(ids, trainer.decode)

        def of(name: str, row: int = row, length: int = length) -> list[float] | None:
            values = arrays.get(name)
            return None if values is None or values.ndim < 2 else values[row, :length].tolist()

        new = [micro.logprobs[at, :length].tolist() for micro, at, _ in passes[row]]
        entropies = [micro.entropies[at, :length].tolist() for micro, at, _ in passes[row]]
        answer = record.rollout(
            text,
            rewards=None if scores is None else _scores(scores, trainer),
            weights=dict(zip(trainer.functions, trainer.weights, strict=True)),
            reward=totals[row],
            advantage=_advantage(arrays["advantages"][row]),
            finish="stop" if ids and ids[-1] in trainer.ends else "length",
            tokens=record.tokens(
                ids,
                ends=ends,
                sampler=of("sampling_per_token_logps"),
                # TRL keeps none where the first pass has the same.
                old=of("old_per_token_logps") or (new[0] if new else None),
                reference=of("ref_per_token_logps"),
                passes=new,
                entropy=entropies[0] if entropies else None,
                advantages=of("advantages"),
                mask=None if mask[row, :length].all() else mask[row, :length].tolist(),
                updates=[divisors for _, _, divisors in passes[row]],
                spans=spans_of(of("tool_mask"), ends),
            ),
        )
        yield prompt, arrays["prompt_ids"][row][prompt_mask].tolist(), answer


def spans_of(tool_mask: Sequence[float] | None, ends: Sequence[int]) -> list[ev.Span]:
    """The turns of the model, and between them the results of tools, which have a mask of 0."""
    parts: list[tuple[bool, int, int, str]] = []
    if not tool_mask or 0 not in tool_mask or not ends:
        return []
    read = start = 0
    for by_model, tokens in itertools.groupby(tool_mask, key=bool):
        start += (length := len(list(tokens)))
        parts.append((by_model, length, ends[start - 1] - read, "" if by_model else "tools"))
        read = ends[start - 1]
    return record.spans_of(parts)


def _passes(
    batch: Batch, mask: Any, trainer: Trainer
) -> list[list[tuple[MicroBatch, int, ev.UpdateTotals]]]:
    """By row, the calls of the loss that it was in, its row there, and what TRL divides by."""
    passes: list[list[tuple[MicroBatch, int, ev.UpdateTotals]]] = [[] for _ in batch.prompts]
    for micro in batch.micro_batches:
        if micro.logprobs is None:
            continue
        totals = _totals(micro, batch, mask, trainer)
        for at, row in enumerate(micro.rows.tolist()):
            passes[row].append((micro, at, totals))
    return passes


def _totals(micro: MicroBatch, batch: Batch, mask: Any, trainer: Trainer) -> ev.UpdateTotals:
    """TRL's normaliser of a micro-batch, whose loss the ranks' means are taken of."""
    parts = micro.accumulation * trainer.processes
    in_loss = float(mask[micro.rows].sum())
    tokens = in_loss * parts
    if trainer.loss_type in ("dapo", "cispo", "vespo"):
        items = max(float(batch.arrays["num_items_in_batch"]), 1.0)
        tokens = items * micro.accumulation / trainer.steps_per_generation
    per_pass = trainer.steps_per_generation // micro.accumulation or 1
    return ev.UpdateTotals(
        rows=len(micro.rows) * parts,
        tokens=int(tokens) if tokens.is_integer() else tokens,
        minibatch=micro.update % per_pass,
        micro_batches=parts,
        batch_tokens=int(in_loss),
    )


def _scores(scores: Sequence[float], trainer: Trainer) -> dict[str, float | None]:
    """A row's rewards by function; NaN is a function that does not apply."""
    pairs = zip(trainer.functions, scores, strict=True)
    return {name: None if math.isnan(score) else score for name, score in pairs}


def _rewards(scores: Any, trainer: Trainer) -> list[float | None]:
    """The sums of rewards as TRL takes them, in float32; None where no function applies."""
    totals = np.nansum(scores * np.asarray(trainer.weights, scores.dtype), axis=1)
    missing = np.isnan(scores).all(axis=1)
    return [None if no else t for t, no in zip(totals.tolist(), missing.tolist(), strict=True)]


def _advantage(values: Any) -> float | None:
    """The advantage of a row; None if each token has its own."""
    return float(values) if np.ndim(values) == 0 else None


def updates_of(batches: Sequence[Batch], trainer: Trainer) -> list[ev.PassFinished]:
    """The updates of a generation batch; a loss is the sum of its micro-batches, as in TRL."""
    main = batches[0]
    result = []
    for number, update in enumerate(main.updates):
        micro = [m for batch in batches for m in batch.micro_batches if m.update == number]
        losses = [float(m.loss) for m in micro if m.loss is not None]
        per_pass = 1
        if micro:
            per_pass = trainer.steps_per_generation // micro[0].accumulation or 1
        result.append(
            record.update(
                index=number // per_pass + 1,
                minibatch=number % per_pass,
                loss=math.fsum(losses) / len(batches) if losses else None,
                grad_norm=update.get("grad_norm"),
                learning_rate=update.get("learning_rate"),
                clip_low=update.get("clip_ratio/low_mean"),
                clip_high=update.get("clip_ratio/high_mean"),
            )
        )
    return result


def metrics_of(batch: Batch, updates: Sequence[ev.PassFinished]) -> dict[str, float | None]:
    """TRL's metrics of the step, averaged as TRL averages them, and those of its last update."""
    metrics: dict[str, float | None] = {}
    for name, values in batch.metrics.items():
        valid = [value for value in values if not math.isnan(value)]
        if valid:
            metrics[name] = math.fsum(valid) / (1 if name == "step_time" else len(valid))
    if updates:
        last = updates[-1]
        metrics |= {name: getattr(last, name) for name in ("loss", "grad_norm", "learning_rate")}
    return metrics


def pieces(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> tuple[str, list[int]]:
    """The text of tokens, and the characters up to and with each; none where they do not add up."""
    text = decode(ids)
    parts = [decode((token,)) for token in ids]
    if "".join(parts) == text:
        return text, list(itertools.accumulate(map(len, parts)))
    ends: list[int] = []
    end = start = read = 0
    for position in range(len(ids)):
        # A token may be a part of a character, or lose its space at the beginning of a text.
        before, after = decode(ids[start:read]), decode(ids[start : position + 1])
        if len(after) > len(before) and not after.endswith("�"):
            end += len(after) - len(before)
            start, read = read, position + 1
        ends.append(end)
    if end != len(text):
        return text, []
    return text, ends
