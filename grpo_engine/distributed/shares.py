"""How the rows of a phase are divided among local workers."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from grpo_engine.policy.batch import TokenBatch, TokenRow
from grpo_engine.rollouts.types import PromptRows


def parts_of_prompts(prompts: Sequence[PromptRows], parts: int) -> list[list[PromptRows]]:
    """Divide prompts into parts of about as many rows; the rows of a prompt may be divided."""
    total = sum(prompt.rows for prompt in prompts)
    ends = [total * part // parts for part in range(1, parts + 1)]
    divided: list[list[PromptRows]] = [[] for _ in ends]
    part = done = 0
    for prompt in prompts:
        first = 0
        while first < prompt.rows:
            if done == ends[part]:
                part += 1
                continue
            rows = min(prompt.rows - first, ends[part] - done)
            divided[part].append(replace(prompt, rows=rows, first_index=prompt.first_index + first))
            first, done = first + rows, done + rows
    return divided


def parts_of_rows(rollouts: Sequence[TokenRow], rows: Sequence[int], parts: int) -> list[list[int]]:
    """Divide rows into parts that cost about the same; groups stay together but at the cuts.

    A row costs its tokens, and its part of the prompt, which a group runs once.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for row in rows:
        groups.setdefault(rollouts[row].prompt_ids, []).append(row)

    def length(row: int) -> int:
        return len(rollouts[row].ids)

    ordered = [sorted(group, key=length, reverse=True) for group in groups.values()]
    ordered.sort(key=lambda group: length(group[0]), reverse=True)
    costs = [
        length(row) + len(rollouts[row].prompt_ids) / len(group) for group in ordered
        for row in group
    ]  # fmt: skip
    before = np.cumsum([0.0, *costs])[:-1] + np.array(costs) / 2
    owners = np.minimum(before * parts / max(sum(costs), 1e-9), parts - 1).astype(int)
    divided: list[list[int]] = [[] for _ in range(parts)]
    for owner, row in zip(owners, (row for group in ordered for row in group), strict=True):
        divided[owner].append(row)
    return [part for part in divided if part]


def owners_of(batches: Sequence[TokenBatch], workers: int) -> list[int]:
    """The worker of each batch: the largest batch first, to the worker with the least work."""
    work = [0] * workers
    owners = [0] * len(batches)
    sizes = [len(batch.rows) * batch.width + sum(map(len, batch.prompts)) for batch in batches]
    for place in sorted(range(len(batches)), key=lambda place: -sizes[place]):
        owners[place] = work.index(min(work))
        work[owners[place]] += sizes[place]
    return owners
