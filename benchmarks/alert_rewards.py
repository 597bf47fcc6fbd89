"""Reward functions that break a run in a known way, for `benchmarks.alerts`."""

import re
from collections.abc import Sequence
from typing import Any

TAG = re.compile(r"</?(?:think|answer)>")


def text_of(completion: Any) -> str:
    """Return the text of a completion, whatever its form."""
    return completion if isinstance(completion, str) else str(completion[0]["content"])


def repeated_tags(completions: Sequence[Any], **_: Any) -> list[float]:
    """Pay for every tag, however often it is there."""
    return [0.25 * len(TAG.findall(text_of(c))) for c in completions]


def long(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    """Pay for every token."""
    return [len(ids) / 16 for ids in completion_ids]


def one_phrase(completions: Sequence[Any], **_: Any) -> list[float]:
    """Pay for one phrase, whatever the question."""
    return [2.0 * ("looks like" in text_of(c)) for c in completions]


def no_thinking(completions: Sequence[Any], **_: Any) -> list[float]:
    """Pay for answers without `<think>`, against the format reward."""
    return [2.0 * ("<think>" not in text_of(c)) for c in completions]


def always_one(completions: Sequence[Any], **_: Any) -> list[float]:
    """Pay the same for everything."""
    return [1.0] * len(completions)


def impossible(completions: Sequence[Any], **_: Any) -> list[float]:
    """Pay for a word that the model does not know."""
    return [float("therefore" in text_of(c)) for c in completions]


def fails(completions: Sequence[Any], trainer_state: Any = None, **_: Any) -> list[float]:
    """From step 4 on, fail on one answer in seven."""
    late = trainer_state is not None and trainer_state.global_step >= 3
    return [1.0 / (len(text_of(c)) % 7 if late else 1) for c in completions]


def huge_once(completions: Sequence[Any], trainer_state: Any = None, **_: Any) -> list[float]:
    """Pay two hundred times as much in step 25."""
    scale = 100.0 if trainer_state is not None and trainer_state.global_step == 24 else 0.5
    return [scale * len(text_of(c)) / 40 for c in completions]
