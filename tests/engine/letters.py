"""Rewards that vary, for small runs: `write_world` copies them beside its problems."""

from typing import Any


def letters(completions: list[str], **_: Any) -> list[float]:
    return [sum(c.isalpha() for c in text) / 12 for text in completions]


def accuracy(completions: list[str], **_: Any) -> list[float]:
    return [float(sum(map(ord, text)) % 3 == 0) for text in completions]


def steps(completions: list[str], **_: Any) -> list[list[tuple[int, float]]]:
    return [
        [(len(text) // 2, float(text[:1].isalpha())), (len(text), len(set(text)) / 12)]
        for text in completions
    ]
