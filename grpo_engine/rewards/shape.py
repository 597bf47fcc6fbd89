"""Rewards for the form of an answer: tags, length, repetition."""

import re
from collections.abc import Sequence
from typing import Any

from grpo_engine.errors import RewardError
from grpo_engine.tasks.by_text import Score, by_text

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_ALL = re.compile(r"\s*<think>(.+?)</think>\s*<answer>(.+?)</answer>\s*", re.DOTALL)
_TAG = re.compile("|".join(TAGS))


@by_text
def format_parts(text: str) -> Score:
    """Give 0.1 for each of the four tags that is there exactly once."""
    return round(0.1 * sum(text.count(tag) == 1 for tag in TAGS), 1)


@by_text
def format_all(text: str, *, value: float = 0.5) -> Score:
    """Give `value` where the text is one think and one answer part and nothing else, else 0."""
    return value if well_formed(text) else 0.0


def well_formed(text: str) -> bool:
    """Whether the text is `<think>…</think><answer>…</answer>` with no tag inside either part."""
    match = _ALL.fullmatch(text)
    return match is not None and not any(_TAG.search(part) for part in match.groups())


@by_text
def think_format(text: str) -> Score:
    """Give 1 where the text begins with `<think>`, closes it, and opens no other before, else 0."""
    begins = text.startswith("<think>") and text.count("<think>") == 1
    return float(begins and "</think>" in text)


def soft_overlong(
    completion_ids: Sequence[Sequence[int]], max_length: int, buffer: int, **_: Any
) -> list[float]:
    """0 up to L - C tokens, then (L - C - n)/C, and -1 beyond L (DAPO, arXiv:2503.14476, eq. 13).

    L is `max_length`, C is `buffer`.
    """
    if not 0 < buffer <= max_length:
        raise RewardError(
            f"reward soft_overlong: buffer must be in 1..max_length ({max_length}), got {buffer}"
        )
    start = max_length - buffer
    return [
        0.0 if len(ids) <= start else max(-1.0, (start - len(ids)) / buffer)
        for ids in completion_ids
    ]


def repetition(
    completion_ids: Sequence[Sequence[int]], n: int = 3, penalty: float = 1.0, **_: Any
) -> list[float]:
    """-penalty · (1 - distinct n-grams / n-grams) over token ids; 0 for fewer than n tokens."""
    if n < 1 or penalty < 0:
        raise RewardError(
            f"reward repetition: n must be >= 1 and penalty >= 0, got {n} and {penalty}"
        )
    scores = []
    for ids in completion_ids:
        total = len(ids) - n + 1
        distinct = len({tuple(ids[i : i + n]) for i in range(total)})
        scores.append(-penalty * (1 - distinct / total) if total > 0 else 0.0)
    return scores


def length(
    completion_ids: Sequence[Sequence[int]], shortest: int = 0, longest: int = 256, **_: Any
) -> list[float]:
    """1 up to `shortest` tokens, falling in a line to 0 at `longest`."""
    if not 0 <= shortest < longest:
        raise RewardError(
            f"reward length: needs 0 <= shortest < longest, got {shortest} and {longest}"
        )
    span = longest - shortest
    return [min(1.0, max(0.0, (longest - len(ids)) / span)) for ids in completion_ids]
