"""Extracts the answer from a completion and parses numbers in it.

`<think>7+8=15</think><answer>1,085</answer>`, or a text that ends in `\\boxed{1085}` or
`#### 1085`, all contain the number 1085.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

TAGGED = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL)
HASHES = re.compile(r"####\s*([^\n]+)")
NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?|-?\.\d+")
# The minus sign and hyphens of other widths, which people and models write for "-".
MINUSES = str.maketrans("\N{MINUS SIGN}\N{SMALL HYPHEN-MINUS}\N{FULLWIDTH HYPHEN-MINUS}", "---")
# Longer digit strings are not answers and would only slow Python down.
LONGEST_NUMBER = 400


def text_of(completion: Any) -> str:
    """The model's text in a completion, given as a string or a list of messages."""
    if isinstance(completion, str):
        return completion
    said = [m for m in completion if m.get("role") == "assistant"] or completion
    return "\n".join(str(message.get("content") or "") for message in said)


def texts_of(completions: Sequence[Any], prompts: Sequence[Any] | None = None) -> list[str]:
    """The texts of the completions, each preceded by its prompt's prefill."""
    texts = [text_of(completion) for completion in completions]
    if prompts is None:
        return texts
    return [_prefill(prompt) + text for prompt, text in zip(prompts, texts, strict=True)]


def _prefill(prompt: Any) -> str:
    if isinstance(prompt, str) or not prompt or prompt[-1].get("role") != "assistant":
        return ""
    return str(prompt[-1].get("content") or "")


def tagged_answer(text: str) -> str | None:
    """The marked answer: in the last `<answer>`, `\\boxed{}` or `####`."""
    if found := TAGGED.findall(text):
        return str(found[-1]).strip()
    if (boxed := last_boxed(text)) is not None:
        return boxed.strip()
    if found := HASHES.findall(text):
        return str(found[-1]).strip()
    return None


def last_boxed(text: str) -> str | None:
    """The content of the last `\\boxed{…}`; braces may be nested."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 1, start + len("\\boxed{")
    for place in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[begin:place]
    return None


def final_answer(text: str) -> str:
    """The marked answer, else the text after `</think>`, else the whole text."""
    marked = tagged_answer(text)
    return marked if marked is not None else text.rpartition("</think>")[2].strip()


def numbers_in(text: str) -> list[Fraction]:
    """All numbers in the text, as exact fractions."""
    found = map(to_number, NUMBER.findall(text.translate(MINUSES)))
    return [number for number in found if number is not None]


def last_number(text: str) -> Fraction | None:
    """The last number in the text as an exact fraction; None without one."""
    return next(reversed(numbers_in(text)), None)


def to_numbers(text: str) -> list[Fraction]:
    """A number, or several between commas or semicolons (`1, 2, 3`); empty if it is anything else.

    `1,085` is one number.
    """
    if (number := to_number(text)) is not None:
        return [number]
    parts = [to_number(part) for part in re.split("[,;]", text.strip(" ()[]{}."))]
    numbers = [part for part in parts if part is not None]
    return numbers if len(numbers) == len(parts) else []


def to_number(text: str) -> Fraction | None:
    """Parse a number as people write it ($1,085.00, 3/4, -5 %), exactly; None if it is not one."""
    cleaned = re.sub(r"[$€£%]|\\[,$%!]", "", text.translate(MINUSES)).strip().rstrip(".")
    cleaned = re.sub(r"(?<=\d)[,\s](?=\d{3}(?!\d))", "", cleaned)  # between thousands
    cleaned = re.sub(r"\s*([-+/])\s*", r"\1", cleaned)
    if len(cleaned) > LONGEST_NUMBER or not re.fullmatch(
        r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:/\d+)?", cleaned
    ):
        return None
    try:
        above, _, below = cleaned.partition("/")
        return Fraction(above) / Fraction(below or "1")
    except (ValueError, ZeroDivisionError):
        return None


def same_text(a: str, b: str) -> bool:
    """Whether two texts are equal up to case, surrounding punctuation and white space."""

    def plain(text: str) -> str:
        return " ".join(text.translate(MINUSES).split()).strip(" .\"'`").casefold()

    return plain(a) == plain(b)


def split_steps(text: str) -> list[tuple[int, int]]:
    """The (start, end) of each step; a step ends at a blank line, `</think>` or the end."""
    ends = [match.end() for match in re.finditer(r"\n[ \t]*\n\s*|</think>\s*", text)]
    edges = sorted({0, *ends, len(text)})
    return [(a, b) for a, b in pairwise(edges) if text[a:b].strip()]
