"""Lines of real text whose words are to be written in reverse order, and how near an answer is."""

import re
from difflib import SequenceMatcher
from typing import Any

from reasoning_gym.data import read_data_file

TEXT = "in_the_year_2889.txt"
WORDS = (3, 4, 5)  # in a line, in turn


def lines() -> list[dict[str, Any]]:
    """The text in lines of a few words; `the great hall` has the answer `hall great the`."""
    words = re.findall(r"[a-z]+", read_data_file(TEXT).lower())
    rows: list[dict[str, Any]] = []
    start = 0
    while start + WORDS[-1] <= len(words):
        chosen = words[start : start + WORDS[len(rows) % len(WORDS)]]
        start += len(chosen)
        answer = " ".join(reversed(chosen))
        prompt = f"Reverse the order of the words: {' '.join(chosen)}"
        rows.append({"prompt": prompt, "completion": answer, "answer": answer})
    return rows


def similarity(completions: Any, answer: list[str], **_: Any) -> list[float]:
    """The share of words in common with the right answer, in order: 1 for the answer itself."""
    texts = [completion[0]["content"].split() for completion in completions]
    return [
        SequenceMatcher(None, text, right.split(), autojunk=False).ratio()
        for text, right in zip(texts, answer, strict=True)
    ]
